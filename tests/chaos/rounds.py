"""What rounds came to: each is a line of a file as soon as it is over, and the table of
docs/reliability.md is made of all that were kept of this version.
"""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
NEW, KEPT = ROOT / "var" / "chaos" / "rounds.jsonl", ROOT / "bench" / "data" / "chaos.jsonl"
HEAD = (
    "| fault | rounds | with a violation | all is well after: median | longest"
    " | all is done after: median | longest |"
)


@dataclass(frozen=True)
class Round:
    """`code`: the version and commit that ran. `well_s`: from the fault's end until /readyz is well
    and runs are acknowledged again; `done_s`: until nothing is left to do. `took`: seconds of each
    part of it, and `waited` of what had to be done at its end. `acknowledged`: in this round.
    """

    seed: int
    number: int
    kind: str
    began: str
    version: str
    commit: str
    did: str
    well_s: float
    done_s: float
    load: float
    took: dict[str, float]
    acknowledged: dict[str, int]
    waited: dict[str, float] = field(default_factory=dict)
    resumed: int = 0
    violations: list[str] = field(default_factory=list)

    @property
    def key(self) -> tuple:
        return self.began, self.seed, self.number

    @property
    def name(self) -> str:
        return f"{self.seed}/{self.number} {self.kind}"

    def says(self) -> str:
        took = ", ".join(f"{name} {seconds:.0f}" for name, seconds in self.took.items())
        done = ", ".join(f"{count} {name}" for name, count in self.acknowledged.items())
        waited = ", ".join(f"{name} {seconds:.0f}" for name, seconds in self.waited.items())
        lines = [
            f"{self.name}: {self.did}; load {self.load:.0f}; seconds: {took} ({waited}); {done}"
        ]
        return "\n".join([*lines, *(f"    VIOLATION {one}" for one in self.violations)])


def read(path: Path) -> list[Round]:
    if not path.exists():
        return []
    return [Round(**json.loads(line)) for line in path.read_text().splitlines()]


def append(path: Path, done: Round) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(asdict(done)) + "\n")


def keep(files: Iterable[Path]) -> list[Round]:
    """All rounds that were kept, with those of these files, each once."""
    rounds = {one.key: one for path in (KEPT, *files) for one in read(path)}
    ordered = [rounds[key] for key in sorted(rounds)]
    KEPT.write_text("".join(json.dumps(asdict(one)) + "\n" for one in ordered))
    return ordered


def table(rounds: list[Round]) -> str:
    """A line per kind, and above them what they all were."""
    kinds: dict[str, list[Round]] = {}
    for one in rounds:
        kinds.setdefault(one.kind, []).append(one)
    total = sum((Counter(one.acknowledged) for one in rounds), Counter[str]())
    days = list(dict.fromkeys(f"{datetime.fromisoformat(one.began):%-d %B %Y}" for one in rounds))
    seeds = sorted({one.seed for one in rounds})
    loads = [one.load for one in rounds]
    acknowledged = ", ".join(f"{total[name]:,} {name}" for name in total)
    lines = [
        f"{len(rounds)} rounds of version {rounds[-1].version}, {' and '.join(days)}, seeds"
        f" {', '.join(map(str, seeds))}; load {min(loads):.0f} to {max(loads):.0f}, median"
        f" {statistics.median(loads):.0f}. Acknowledged: {acknowledged}. Trainings went on from"
        f" where they were {sum(one.resumed for one in rounds):,} times. Seconds from the fault's"
        " end:",
        "",
        HEAD,
        "|---" * (HEAD.count("|") - 1) + "|",
    ]
    for kind, some in sorted(kinds.items()):
        wrong = sum(bool(one.violations) for one in some)
        cells = [kind, str(len(some)), str(wrong)]
        for seconds in ([one.well_s for one in some], [one.done_s for one in some]):
            cells += [f"{statistics.median(seconds):.0f}", f"{max(seconds):.0f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
