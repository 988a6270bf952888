"""A day of traffic in some minutes (`make soak MINUTES=…`): what processes hold must not grow.

The traffic has the shape of a day: quiet at night, two peaks. Every few seconds memory, open files
and sockets of each part, connections of PostgreSQL, temporary files and the size of the database
are measured. Growth is the slope of a regression on time, with the traffic of that moment as a
second variable; its interval is of 95%, and the first quarter, in which caches fill, is left out.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import stats

from tests.chaos.__main__ import INSIDE, a_folder, connect, ends_in_order, enter_namespace

EVERY_S, WARM = 5.0, 0.25
QUIET_S, BUSY_S = 2.0, 0.05  # between two requests of a sender
ALLOWED = 0.10  # of its mean, that something may grow in the day
PARTS = ("web", "endpoint", "storing", "default", "ingest", "judge", "light", "forks")


def busyness(hour: float) -> float:
    """From 0 to 1: peaks at ten and at three, quiet at night."""
    return max(math.exp(-(((hour - peak) / 3) ** 2)) for peak in (10, 15))


@dataclass(frozen=True)
class Growth:
    """Of something in the whole day, as shares of its mean: between `least` and `most`."""

    name: str
    mean: float
    least: float
    most: float

    @property
    def verdict(self) -> str:
        if self.most <= ALLOWED:
            return "flat"
        return "grows" if self.least > ALLOWED else "undecided"


def growth(name: str, hours: list[float], values: list[float], traffic: list[float]) -> Growth:
    """By least squares: values = a + b hours + c traffic."""
    mean = float(np.mean(values))
    columns = np.column_stack([np.ones(len(hours)), hours, traffic])
    solved, _, rank, _ = np.linalg.lstsq(columns, np.array(values), rcond=None)
    left = np.array(values) - columns @ solved
    freedom = len(hours) - rank
    variance = float(left @ left) / freedom
    error = math.sqrt(max(0.0, variance * np.linalg.pinv(columns.T @ columns)[1, 1]))
    reach = float(stats.t.ppf(0.975, freedom)) * error
    scale = 24 / (mean or 1.0)
    return Growth(name, mean, (solved[1] - reach) * scale, (solved[1] + reach) * scale)


def measured(world) -> dict[str, float]:
    """{what: how much}. Memory is PSS in MiB: what forks share counts once."""
    found = dict[str, float]()
    for part in PARTS:
        pids = world.machine.part(part)
        found[f"{part}: memory, MiB"] = sum(map(memory, pids)) / 1024
        found[f"{part}: files and sockets"] = sum(map(files, pids))
    with world.it.connect() as connection:
        count = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"
        found["connections of PostgreSQL"] = connection.execute(count).fetchone()[0]
        found["database, MiB"] = (
            connection.execute("SELECT pg_database_size(current_database())").fetchone()[0] / 2**20
        )
        found["runs"] = connection.execute(
            "SELECT count(*) FROM trajectories_trajectory"
        ).fetchone()[0]
    found["temporary files"] = len(list(world.temporary.rglob("*")))
    return found


def memory(pid: int) -> float:
    """KiB."""
    with suppress(OSError, StopIteration):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return float(next(line.split()[1] for line in lines if line.startswith("Pss:")))
    return 0.0


def files(pid: int) -> int:
    with suppress(OSError):
        return len(list(Path(f"/proc/{pid}/fd").iterdir()))
    return 0


def day(world, minutes: float) -> Iterator[tuple[float, float, dict[str, float]]]:
    """(hour, busyness, what was measured), every few seconds."""
    began = time.monotonic()
    while (hour := (time.monotonic() - began) / 60 / minutes * 24) < 24:
        busy = busyness(hour)
        world.pause(QUIET_S * (BUSY_S / QUIET_S) ** busy)
        yield hour, busy, measured(world)
        time.sleep(EVERY_S)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    given = parser.parse_args()
    enter_namespace("tests.chaos.soak")
    ends_in_order()
    folder = a_folder()
    connect(folder / "data")
    from tests.chaos.world import World

    world = World(folder)
    try:
        world.start()
        world.begin()
        samples = list(day(world, given.minutes))
        world.end()
    finally:
        world.close()
        if INSIDE in os.environ:
            subprocess.run(["umount", "--lazy", str(folder)])
        shutil.rmtree(folder, ignore_errors=True)
    warm = [sample for sample in samples if sample[0] >= 24 * WARM]
    hours, traffic = [sample[0] for sample in warm], [sample[1] for sample in warm]
    counted = {"database, MiB", "runs"}
    grown = [
        growth(name, hours, [sample[2][name] for sample in warm], traffic)
        for name in warm[0][2]
        if name not in counted and any(sample[2][name] for sample in warm)
    ]
    runs, size = (warm[-1][2][name] - warm[0][2][name] for name in ("runs", "database, MiB"))
    print(
        f"{given.minutes:g} minutes, {len(samples)} measurements, {warm[-1][2]['runs']:.0f} runs;"
        f" {size * 1024 / max(runs, 1):.1f} KiB of database a run; load {os.getloadavg()[1]:.0f}\n"
    )
    print("| what | mean | growth in the day (95%) | |\n|---|---|---|---|")
    for one in grown:
        print(
            f"| {one.name} | {one.mean:.0f} | {one.least:+.1%} to {one.most:+.1%} | {one.verdict} |"
        )
    for problem in world.problems:
        print("problem:", problem)
    return any(one.verdict == "grows" for one in grown) or bool(world.problems)


if __name__ == "__main__":
    sys.exit(main())
