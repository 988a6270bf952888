"""Rounds of faults, by seed, on an installation under load (`make chaos ROUNDS=… SEED=…`).

In each round a fault is drawn and inflicted while runs arrive, jobs run and a channel moves; then
traffic ends, the installation settles, and the invariants are checked. With `--write` the table is
put into docs/reliability.md.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "reliability.md"
TABLE = re.compile(r"(?<=<!-- chaos -->\n).*?(?=<!-- /chaos -->)", re.S)
INSIDE = "FLYWHEEL_CHAOS_INSIDE"
DISK = "1500m"


@dataclass
class Outcome:
    recovered_s: list[float] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)


def enter_namespace(module: str = "tests.chaos") -> None:
    """Begins again where file systems can be mounted that nobody else sees."""
    if os.getuid() == 0 and INSIDE not in os.environ and shutil.which("unshare"):
        os.environ[INSIDE] = "1"
        enter = ["unshare", "--mount", "--propagation", "private"]
        os.execvp("unshare", [*enter, sys.executable, "-m", module, *sys.argv[1:]])


def ends_in_order() -> None:
    """On SIGTERM, too."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))


def a_folder(size: str = DISK) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="flywheel-chaos-"))
    if INSIDE in os.environ:
        mount = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=0777", "tmpfs", str(folder)]
        subprocess.run(mount, check=True)
    folder.chmod(0o777)
    return folder


def connect(data: Path) -> None:
    """This process uses the installation's database and broker without keeping them alive."""
    os.environ |= {
        "FLYWHEEL_DATA_DIR": str(data),
        "DJANGO_SETTINGS_MODULE": "flywheel.settings",
        "FLYWHEEL_ALLOW_PRIVATE_URLS": "1",
    }
    from flywheel import embedded

    os.environ |= {"DATABASE_URL": embedded.database_url(), "BROKER_URL": embedded.broker_url()}
    import django

    django.setup()


def drawn(kinds: list[str], rounds: int, seed: int) -> list[str]:
    """Each kind equally often, in an order drawn by the seed."""
    rng, order = random.Random(seed), list[str]()
    while len(order) < rounds:
        order += rng.sample(kinds, len(kinds))
    return order[:rounds]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="*", help="only these faults")
    parser.add_argument("--first", type=int, default=0, help="begin at this round of the seed")
    parser.add_argument("--minutes", type=float, default=1e9, help="no new round after these")
    parser.add_argument("--write", action="store_true", help="the table into docs/reliability.md")
    parser.add_argument("--keep", action="store_true", help="keep the folder, to read its logs")
    given = parser.parse_args()
    ends_in_order()
    enter_namespace()
    folder = a_folder()
    connect(folder / "data")
    from tests.chaos import faults
    from tests.chaos.invariants import Settled
    from tests.chaos.world import World

    world = World(folder)
    outcomes: dict[str, Outcome] = defaultdict(Outcome)
    began = time.monotonic()
    try:
        world.start()
        settled = Settled(world)
        left_out = faults.why_not(world)
        kinds = given.kinds or [name for name in faults.FAULTS if name not in left_out]
        print(
            "not tried: " + "; ".join(f"{k}: {v}" for k, v in left_out.items()) if left_out else ""
        )
        print(f"ready after {time.monotonic() - began:.0f} s", flush=True)
        order = drawn(kinds, given.rounds + given.first, given.seed)
        for number, kind in list(enumerate(order))[given.first :]:
            if time.monotonic() - began > 60 * given.minutes:
                break
            rng = random.Random(f"{given.seed}/{number}/{kind}")
            a_round(world, settled, faults.inflicted[kind], rng, f"{number} {kind}", outcomes[kind])
    finally:
        world.close()
        if given.keep:
            print(f"kept: {folder}")
        elif INSIDE in os.environ:
            subprocess.run(["umount", "--lazy", str(folder)])
        if not given.keep:
            shutil.rmtree(folder, ignore_errors=True)
    text = table(outcomes, given, world, time.monotonic() - began)
    print(text)
    if given.write:
        PAGE.write_text(TABLE.sub(lambda _: text, PAGE.read_text()))
    return bool(sum(len(outcome.violations) for outcome in outcomes.values()))


def a_round(world, settled, inflicted, rng, name: str, outcome: Outcome) -> None:
    from tests.flywheel.machine import eventually

    world.begin()
    eventually(lambda: world.sent() > 20)
    time.sleep(rng.uniform(0, 4))
    try:
        with inflicted(world, rng) as done:
            pass
        violations = []
    except Exception as error:  # the next round may tell more
        done, violations = "", [f"the fault itself failed: {type(error).__name__}: {error}"]
    mended = time.monotonic()
    sent = world.sent()
    try:
        eventually(lambda: is_well(world) and world.sent() > sent)
    except AssertionError as error:
        violations.append(f"recovery: {error}")
    outcome.recovered_s.append(time.monotonic() - mended)
    world.end()
    violations += settled.violations()
    outcome.violations += [f"{name}: {one}" for one in violations]
    print(
        f"{name}: {done}; well after {outcome.recovered_s[-1]:.0f} s, settled after"
        f" {time.monotonic() - mended:.0f} s; {len(world.acknowledged.runs)} runs,"
        f" {len(world.acknowledged.evaluations)} evaluations, {len(world.acknowledged.moves)} moves"
        f" acknowledged, {Counter(world.refused).most_common(3)}",
        flush=True,
    )
    for one in violations:
        print(f"    VIOLATION {one}", flush=True)


def is_well(world) -> bool:
    import httpx2

    try:
        return httpx2.get(f"http://127.0.0.1:{world.it.port}/readyz", timeout=30).is_success
    except httpx2.HTTPError:
        return False


def table(outcomes: dict[str, Outcome], given, world, seconds: float) -> str:
    lines = ["| fault | rounds | violations | seconds until all is well: median | longest |"]
    lines += ["|---|---|---|---|---|"]
    for kind, outcome in sorted(outcomes.items()):
        took = outcome.recovered_s
        lines.append(
            f"| {kind} | {len(took)} | {len(outcome.violations)} | {statistics.median(took):.0f} |"
            f" {max(took):.0f} |"
        )
    rounds = sum(len(outcome.recovered_s) for outcome in outcomes.values())
    done = world.acknowledged
    return (
        f"`make chaos ROUNDS={given.rounds} SEED={given.seed}`, {datetime.now(UTC):%d %B %Y}:"
        f" {rounds} rounds in {seconds / 60:.0f} minutes; {len(done.runs):,} runs,"
        f" {len(done.evaluations)} evaluations and {len(done.moves)} moves of the channel"
        " acknowledged.\n\n" + "\n".join(lines) + "\n"
    )


if __name__ == "__main__":
    sys.exit(main())
