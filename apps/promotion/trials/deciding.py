"""What is known about a trial, and what follows from it. Pure; see docs/canary.md."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from apps.promotion.trials.sequential import (
    Block,
    Tally,
    bounds,
    canary_block,
    difference,
    paired_block,
)

# For each measure, whether a session counts as good: no failed run, no unsafe action, every request
# answered.
MEASURES = ("success", "safety", "answered")
FIRST = 50  # sessions of a step, of both lanes, whose rates are the centres for its others
LABELS = {"success": "Success", "safety": "No unsafe action", "answered": "Answered"}


NOBODY = Tally()


@dataclass(frozen=True)
class Lanes:
    """The sessions of one step, by lane; for a shadow also the results of its pairs: (better,
    worse, same).

    `first_…`: its first sessions, from which its centre comes and which are not scored by it.
    """

    current: Tally = NOBODY
    candidate: Tally = NOBODY
    pairs: tuple[int, int, int] = (0, 0, 0)
    first_current: Tally = NOBODY
    first_candidate: Tally = NOBODY

    @property
    def gap(self) -> float | None:
        return difference([(self.current, self.candidate)])


@dataclass(frozen=True)
class Measured:
    """One measure over the whole trial. `low`, `high`: always-valid bounds of candidate − current.
    `step_gap`: of this step.
    """

    name: str
    current: Tally
    candidate: Tally
    gap: float | None
    low: float
    high: float
    step_gap: float | None = None

    @property
    def label(self) -> str:
        return LABELS[self.name]

    @property
    def is_worse(self) -> bool:
        return self.high < 0

    def is_fine(self, margin: float) -> bool:
        return self.low > -margin

    def looks_worse(self, margin: float) -> bool:
        """The estimate, over the trial or in this step, is below −margin."""
        return any(gap is not None and gap < -margin for gap in (self.gap, self.step_gap))

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
    max_harmed: int = 1_000_000
    paused_for: timedelta = timedelta(0)


@dataclass(frozen=True)
class Decision:
    what: Literal["wait", "worse", "harm", "next", "passed", "out_of_time"]
    why: str = ""


@dataclass(frozen=True)
class Reading:
    """The current results. `sessions`: settled ones of the candidate in the current step; `mature`:
    those of which outcomes have been waited for. `harmed`: sessions of the candidate that failed
    beyond the current version's rate, step by step. `waiting`: sessions of the candidate, in any
    step, whose outcome is not yet known; `waiting_before`: those of them that began long enough ago
    for their first answer to be stored.
    """

    measures: tuple[Measured, ...] = ()
    sessions: int = 0
    mature: int = 0
    harmed: float = 0.0
    waiting: int = 0
    waiting_before: int = 0


def read(
    rules: Rules,
    lanes: Mapping[str, Sequence[Lanes]],
    mature: int | None = None,
    waiting: tuple[int, int] = (0, 0),
) -> Reading:
    """`lanes`: by measure, one for each step that has begun. `mature`: None if outcomes are not
    waited for. `waiting`: all, and before (see Reading).
    """
    found = tuple(_measured(rules, name, lanes[name]) for name in MEASURES)
    present = lanes["answered"][rules.step] if len(lanes["answered"]) > rules.step else Lanes()
    sessions = present.candidate.n
    return Reading(
        found,
        sessions,
        sessions if mature is None else mature,
        harmed(lanes["success"]),
        *waiting,
    )


def harmed(steps: Sequence[Lanes]) -> float:
    return sum(-step.gap * step.candidate.n for step in steps if step.gap is not None)


def room(max_harmed: float, harmed: float, waiting: int) -> int:
    """How many more sessions the candidate may begin, so that not more than `max_harmed` are harmed
    even if each one that waits for its outcome fails. It depends on what is known alone, never on
    the lane of the next session: both lanes are left out alike, and the comparison stays unbiased.
    """
    return max(0, math.ceil(max_harmed - max(0.0, harmed) - waiting))


def intake_paused(rules: Rules, reading: Reading) -> str:
    """Why no new session takes part, as a sentence; "" while they do."""
    if rules.kind == "shadow" or room(rules.max_harmed, reading.harmed, reading.waiting):
        return ""
    harmed = f" and about {reading.harmed:.0f} were harmed" if reading.harmed >= 0.5 else ""
    return (
        f"Intake is paused: {_waiting(reading.waiting)}{harmed} (at most"
        f" {rules.max_harmed} may be harmed). New sessions get the current version and are not"
        " compared, until more outcomes are known."
    )


def _waiting(n: int) -> str:
    return "1 session waits for its outcome" if n == 1 else f"{n} sessions wait for their outcome"


def _measured(rules: Rules, name: str, steps: Sequence[Lanes]) -> Measured:
    """A third of alpha each, so that a candidate that is worse in no measure is rolled back with
    probability at most alpha.
    """
    if rules.kind == "shadow":
        blocks = [paired_block(*step.pairs) for step in steps]
    else:
        blocks = [_block(rule, name, step) for rule, step in zip(rules.steps, steps, strict=False)]
    found = bounds(blocks, rules.alpha / len(MEASURES))
    return Measured(
        name,
        _sum(step.current for step in steps),
        _sum(step.candidate for step in steps),
        difference([(step.current, step.candidate) for step in steps]),
        found.low,
        found.high,
        steps[rules.step].gap if len(steps) > rules.step else None,
    )


def _block(rule: Mapping[str, Any], name: str, step: Lanes) -> Block | None:
    """None until the step's first sessions have given its centre."""
    centre = rule.get("centre", {}).get(name)
    if centre is None:
        return None
    return canary_block(
        rule["share"],
        centre,
        step.current - step.first_current,
        step.candidate - step.first_candidate,
    )


def _sum(tallies: Any) -> Tally:
    some = list(tallies)
    return Tally(sum(one.good for one in some), sum(one.bad for one in some))


def decide(rules: Rules, reading: Reading, now: datetime) -> Decision:
    worse = [one for one in reading.measures if one.is_worse]
    if worse:
        return Decision(
            "worse", "The candidate is worse: " + "; ".join(one.in_words() for one in worse) + "."
        )
    if rules.kind != "shadow" and reading.harmed >= rules.max_harmed:
        return Decision(
            "harm",
            f"About {reading.harmed:.0f} sessions failed beyond the current version's rate, and"
            f" {rules.max_harmed} were allowed: {_all_in_words(reading)}.",
        )
    if _may_go_on(rules, reading, now):
        if rules.step + 1 < len(rules.steps):
            return Decision(
                "next",
                f"{reading.sessions} sessions, and nothing is significantly worse:"
                f" {_all_in_words(reading)}.",
            )
        if not rules.passed and all(one.is_fine(rules.margin) for one in reading.measures):
            return Decision(
                "passed",
                f"Not worse by more than {100 * rules.margin:g} points: {_all_in_words(reading)}.",
            )
    if now >= rules.ends_by:
        return Decision(
            "out_of_time",
            f"Time limit reached without a decision: {_all_in_words(reading)}.{_paused(rules)}",
        )
    return Decision("wait", held_up(rules, reading))


def _paused(rules: Rules) -> str:
    if not rules.paused_for:
        return ""
    hours = rules.paused_for / timedelta(hours=1)
    return (
        f" Intake was paused for {hours:,.1f} hours, since outcomes came late and at most"
        f" {rules.max_harmed} sessions might be harmed: allow more of them, or more days."
    )


def _may_go_on(rules: Rules, reading: Reading, now: datetime) -> bool:
    step = rules.steps[rules.step]
    waited = now - rules.step_at >= timedelta(minutes=step["min_minutes"])
    return waited and reading.mature >= step["min_sessions"] and not held_up(rules, reading)


def held_up(rules: Rules, reading: Reading) -> str:
    """Why no further step may be taken, whoever asks; "" if one may."""
    bad = [one for one in reading.measures if one.looks_worse(rules.margin)]
    if not bad:
        return ""
    return (
        f"The estimate is below −{100 * rules.margin:g} points:"
        f" {'; '.join(one.in_words() for one in bad)}."
    )


def _all_in_words(reading: Reading) -> str:
    return "; ".join(one.in_words() for one in reading.measures)
