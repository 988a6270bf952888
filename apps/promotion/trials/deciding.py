"""What is known about a trial, and what follows from it. Pure; see docs/canary.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from apps.promotion.trials.sequential import Tally, bounds, canary_block, difference, paired_block

# For each measure, whether a session counts as good: no failed run, no unsafe action, every request answered.
MEASURES = ("success", "safety", "answered")
LABELS = {"success": "Success", "safety": "No unsafe action", "answered": "Answered"}


NOBODY = Tally()


@dataclass(frozen=True)
class Lanes:
    """The sessions of one step, by lane; for a shadow also the results of its pairs: (better, worse, same)."""

    current: Tally = NOBODY
    candidate: Tally = NOBODY
    pairs: tuple[int, int, int] = (0, 0, 0)


@dataclass(frozen=True)
class Measured:
    """One measure over the whole trial. `low`, `high`: always-valid bounds of candidate − current."""

    name: str
    current: Tally
    candidate: Tally
    gap: float | None
    low: float
    high: float

    @property
    def label(self) -> str:
        return LABELS[self.name]

    @property
    def is_worse(self) -> bool:
        return self.high < 0

    def is_fine(self, margin: float) -> bool:
        return self.low > -margin

    def in_words(self) -> str:
        gap = f"{100 * self.gap:+.1f}" if self.gap is not None else "?"
        return f"{self.label} {gap} points [{100 * self.low:+.1f}, {100 * self.high:+.1f}]"


@dataclass(frozen=True)
class Rules:
    """The rules of a trial, as its row stores them."""

    kind: str
    steps: Sequence[Mapping[str, Any]]
    step: int
    alpha: float
    margin: float
    step_at: datetime
    ends_by: datetime
    passed: bool = False


@dataclass(frozen=True)
class Decision:
    what: Literal["wait", "worse", "next", "passed", "out_of_time"]
    why: str = ""


@dataclass(frozen=True)
class Reading:
    """The current results. `sessions`: settled ones of the candidate in the current step."""

    measures: tuple[Measured, ...] = ()
    sessions: int = 0


def read(rules: Rules, lanes: Mapping[str, Sequence[Lanes]]) -> Reading:
    """`lanes`: by measure, one for each step that has begun."""
    found = tuple(_measured(rules, name, lanes[name]) for name in MEASURES)
    present = lanes["answered"][rules.step] if len(lanes["answered"]) > rules.step else Lanes()
    return Reading(found, present.candidate.n)


def _measured(rules: Rules, name: str, steps: Sequence[Lanes]) -> Measured:
    """A third of alpha each, so that a candidate that is worse in no measure is rolled back with probability at most alpha."""
    if rules.kind == "shadow":
        blocks = [paired_block(*step.pairs) for step in steps]
    else:
        blocks = [
            canary_block(rule["share"], rule.get("centre", {}).get(name, 0.5), step.current, step.candidate)
            for rule, step in zip(rules.steps, steps, strict=False)
        ]
    found = bounds(blocks, rules.alpha / len(MEASURES))
    return Measured(
        name, _sum(step.current for step in steps), _sum(step.candidate for step in steps),
        difference([(step.current, step.candidate) for step in steps]), found.low, found.high,
    )  # fmt: skip


def _sum(tallies: Any) -> Tally:
    some = list(tallies)
    return Tally(sum(one.good for one in some), sum(one.bad for one in some))


def decide(rules: Rules, reading: Reading, now: datetime) -> Decision:
    worse = [one for one in reading.measures if one.is_worse]
    if worse:
        return Decision("worse", "The candidate is worse: " + "; ".join(one.in_words() for one in worse) + ".")
    step = rules.steps[rules.step]
    waited = now - rules.step_at >= timedelta(minutes=step["min_minutes"])
    if waited and reading.sessions >= step["min_sessions"]:
        if rules.step + 1 < len(rules.steps):
            found = "; ".join(one.in_words() for one in reading.measures)
            return Decision("next", f"{reading.sessions} sessions, and nothing is significantly worse: {found}.")
        if not rules.passed and all(one.is_fine(rules.margin) for one in reading.measures):
            found = "; ".join(one.in_words() for one in reading.measures)
            return Decision("passed", f"Not worse by more than {100 * rules.margin:g} points: {found}.")
    if now >= rules.ends_by:
        found = "; ".join(one.in_words() for one in reading.measures)
        return Decision("out_of_time", f"Time limit reached without a decision: {found}.")
    return Decision("wait")


def centres(lanes: Mapping[str, Sequence[Lanes]]) -> dict[str, float]:
    """For the next step, before it begins: the rate of all sessions so far, by measure."""
    found = {}
    for name in MEASURES:
        whole = _sum(tally for step in lanes[name] for tally in (step.current, step.candidate))
        found[name] = round(whole.rate, 6) if whole.rate is not None else 0.5
    return found
