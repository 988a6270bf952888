"""Days of traffic in some minutes (`make soak MINUTES=…`): what processes hold must not grow.

The traffic of each of the days has the same shape: quiet at night, two peaks. Every few seconds
memory, threads, files and sockets of each part and connections of PostgreSQL are measured; the
levels of days are compared (`growth`). `--samples FILE` keeps all that was measured, with files and
connections by kind; `--trace judge ingest` has these parts write where their memory was allocated
into `--traces FOLDER` (their memory is larger then).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from tests.chaos.__main__ import INSIDE, a_folder, connect, ends_in_order, enter_namespace
from tests.chaos.growth import growth

EVERY_S = 5.0
QUIET_S, BUSY_S = 2.0, 0.05  # between two requests of a sender
COUNTED = ("database, MiB", "runs", "processes")  # grow, or are no numbers
TRACED = Path(__file__).parent / "traced"  # a sitecustomize.py


def busyness(hour: float) -> float:
    """From 0 to 1: peaks at ten and at three, quiet at night."""
    return max(math.exp(-(((hour - peak) / 3) ** 2)) for peak in (10, 15))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--days", type=int, default=8)
    parser.add_argument("--samples", type=Path)
    parser.add_argument("--trace", nargs="*", default=[])
    parser.add_argument("--traces", type=Path, default=Path("var/soak"))
    given = parser.parse_args()
    enter_namespace("tests.chaos.soak")
    ends_in_order()
    folder = a_folder("6g")
    connect(folder / "data")
    from tests.chaos.world import World

    world = World(folder)
    if given.trace:
        given.traces.mkdir(parents=True, exist_ok=True)
        world.machine.environment |= {
            "PYTHONPATH": str(TRACED),
            "FLYWHEEL_SOAK_TRACES": str(given.traces.resolve()),
            "FLYWHEEL_SOAK_TRACED": ",".join(given.trace),
            "FLYWHEEL_SOAK_TRACED_S": str(60 * given.minutes / given.days),
        }
    samples = list[list[dict[str, Any]]]()
    try:
        world.start()
        with closing(days(world, given.minutes, given.days)) as lived:
            samples.extend(list(day) for day in lived)
    finally:
        world.close()
        if given.samples:
            given.samples.write_text(json.dumps(samples))
        if INSIDE in os.environ:
            subprocess.run(["umount", "--lazy", str(folder)])
        shutil.rmtree(folder, ignore_errors=True)
    return report(given, samples, world.problems)


def days(world, minutes: float, number: int) -> Iterator[Iterator[dict[str, Any]]]:
    """Of each day what was measured, while its traffic flows."""
    from tests.chaos.traffic import Asker, Failing, Reader, Ticks
    from tests.failures.judge_server import running
    from tests.failures.test_judge import make_rubric

    with ExitStack() as stack:
        judge = stack.enter_context(running())
        make_rubric(world.project, judge, usd_per_day=1000.0)
        world.begin()
        others = [*(one(world, BUSY_S) for one in (Reader, Asker, Failing)), Ticks()]
        for other in others:
            other.start()
        for other in others:
            stack.callback(other.stopping.set)
        for _ in range(number):
            yield day(world, others[:-1], 60 * minutes / number)
        for other in others:
            other.stopping.set()
            other.join(60)
            print(f"{type(other).__name__}: {dict(other.done)}")
        print(f"the judge was asked {len(judge.seen)} times")
        world.end()


def day(world, others: list, seconds: float) -> Iterator[dict[str, Any]]:
    from tests.chaos.holds import held

    began = time.monotonic()
    while (hour := (time.monotonic() - began) / seconds * 24) < 24:
        pause = QUIET_S * (BUSY_S / QUIET_S) ** busyness(hour)
        world.pause(pause)
        for other in others:
            other.pause_s = pause
        yield {"at": time.time(), "hour": hour} | held(world)
        time.sleep(EVERY_S)


def report(given, samples: list[list[dict[str, Any]]], problems: list[str]) -> int:
    first, last = samples[len(samples) // 2][0], samples[-1][-1]
    runs, size = (last[name] - first[name] for name in ("runs", "database, MiB"))
    print(
        f"{given.minutes:g} minutes as {given.days} days, {last['runs']:.0f} runs;"
        f" {size * 1024 / max(runs, 1):.1f} KiB of database a run; load {os.getloadavg()[2]:.0f}\n"
    )
    names = [
        name
        for name, value in last.items()
        if name not in (*COUNTED, "at", "hour") and not isinstance(value, dict)
    ]
    grown = [growth(name, [[sample[name] for sample in day] for day in samples]) for name in names]
    middle = given.days // 2
    print(f"| what | day 1 | day {middle + 1} | day {given.days} | a day (95%) | |")
    print("|---|---|---|---|---|---|")
    for one in grown:
        levels = " | ".join(f"{one.levels[at]:.1f}" for at in (0, middle, -1))
        print(f"| {one.name} | {levels} | {one.least:+.1f} to {one.most:+.1f} | {one.verdict} |")
    for part, pids in last["processes"].items():
        if part != "postgres" and pids != samples[0][-1]["processes"][part]:
            problems.append(f"{part} was started again: {pids}")
    for problem in problems:
        print("problem:", problem)
    return any(one.verdict == "grows" for one in grown) or bool(problems)


if __name__ == "__main__":
    sys.exit(main())
