"""Rounds of faults, by seed, on an installation under load (`make chaos ROUNDS=… SEED=…`).

In each round a fault is drawn and inflicted while runs arrive, jobs run and a channel moves; then
traffic ends, the installation settles, and the invariants are checked. Each round is a line of
var/chaos/rounds.jsonl. With `--write` these are kept in bench/data/chaos.jsonl, and the table of
all that were kept of this version is put into docs/reliability.md; `--rounds 0 --write` does only
that.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from flywheel.version import VERSION
from tests.chaos import rounds
from tests.chaos.rounds import ROOT, Round

PAGE = ROOT / "docs" / "reliability.md"
TABLE = re.compile(r"(?<=<!-- chaos -->\n).*?(?=<!-- /chaos -->)", re.S)
INSIDE = "FLYWHEEL_CHAOS_INSIDE"
DISK = "1500m"
TRAINS_EVERY = 3  # rounds
OURS = "servers"  # of /readyz: the model server is a thread of this process


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
        "FLYWHEEL_MODEL_FOLDERS": str(data / "models"),
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


def commit() -> str:
    """Of the code; with a + where files differ from it."""
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty=+", "--abbrev=8", "--exclude=*"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    return described.stdout.strip()


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
    wrong = False
    if given.rounds:
        ends_in_order()
        enter_namespace()
        wrong = run(given)
    if given.write:
        kept = [one for one in rounds.keep([rounds.NEW]) if one.version == VERSION]
        text = rounds.table(kept)
        PAGE.write_text(TABLE.sub(lambda _: text, PAGE.read_text()))
        print(text)
    return wrong


def run(given: argparse.Namespace) -> bool:
    """Whether a violation was found."""
    folder = a_folder()
    connect(folder / "data")
    from tests.chaos import faults
    from tests.chaos.invariants import Settled
    from tests.chaos.world import World

    world, wrong = World(folder), False
    began = time.monotonic()
    try:
        world.start()
        settled = Settled(world)
        left_out = faults.why_not(world)
        kinds = given.kinds or [name for name in faults.FAULTS if name not in left_out]
        for kind, reason in left_out.items():
            print(f"not tried: {kind}, {reason}")
        print(f"ready after {time.monotonic() - began:.0f} s", flush=True)
        order = drawn(kinds, given.rounds + given.first, given.seed)
        for number, kind in list(enumerate(order))[given.first :]:
            if time.monotonic() - began > 60 * given.minutes:
                break
            done = a_round(world, settled, faults.inflicted[kind], given.seed, number, kind)
            rounds.append(rounds.NEW, done)
            print(done.says(), flush=True)
            if done.violations:
                wrong = True
                world.keep_evidence(rounds.NEW.parent / f"{given.seed}-{number}-{kind}")
    finally:
        world.close()
        if given.keep:
            print(f"kept: {folder}")
        elif INSIDE in os.environ:
            subprocess.run(["umount", "--lazy", str(folder)])
        if not given.keep:
            shutil.rmtree(folder, ignore_errors=True)
    return wrong


class Watch:
    """Seconds of each part of a round."""

    def __init__(self) -> None:
        self.took = dict[str, float]()
        self.last = time.monotonic()

    def lap(self, name: str) -> None:
        now = time.monotonic()
        self.took[name], self.last = round(now - self.last, 1), now


def a_round(world, settled, inflicted, seed: int, number: int, kind: str) -> Round:
    from tests.flywheel.machine import eventually

    rng = random.Random(f"{seed}/{number}/{kind}")
    began, watch, before = datetime.now(UTC), Watch(), world.acknowledged.counts()
    world.begin(trains=number % TRAINS_EVERY == 0)
    eventually(world.is_busy)
    time.sleep(rng.uniform(0, 4))
    watch.lap("traffic")
    try:
        with inflicted(world, rng) as did:
            pass
        violations = []
    except Exception as error:  # the next round may tell more
        did, violations = "", [f"the fault itself failed: {type(error).__name__}: {error}"]
    watch.lap("fault")
    sent = world.sent()
    try:
        eventually(lambda: is_well(world) and world.sent() > sent)
    except AssertionError as error:
        violations.append(f"recovery: {error}: {health(world)}")
    watch.lap("well")
    world.end()
    watch.lap("last answers")
    violations += settled.violations()
    watch.lap("done")
    after = world.acknowledged.counts()
    return Round(
        seed=seed,
        number=number,
        kind=kind,
        began=began.isoformat(timespec="seconds"),
        version=VERSION,
        commit=commit(),
        did=did,
        well_s=watch.took["well"],
        done_s=round(watch.took["well"] + watch.took["last answers"] + watch.took["done"], 1),
        load=round(os.getloadavg()[0], 1),
        took=watch.took,
        waited=settled.waited,
        acknowledged={name: after[name] - before[name] for name in after},
        resumed=settled.resumed_since(),
        violations=violations,
    )


def health(world) -> dict[str, str]:
    """What is not well of /readyz."""
    import httpx2

    try:
        answer = httpx2.get(f"http://127.0.0.1:{world.it.port}/readyz", timeout=30).json()
    except (httpx2.HTTPError, ValueError) as error:
        return {"web": str(error)}
    states = {name: part["state"] for name, part in answer["parts"].items() if name != OURS}
    return {name: state for name, state in states.items() if state != "ok"}


def is_well(world) -> bool:
    return not health(world)


if __name__ == "__main__":
    sys.exit(main())
