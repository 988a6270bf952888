"""What people decided about runs, as examples for the judge and as its measure.

Each decision is either for *learning* (examples in a rubric, the search for a better text) or
*held back* (only the report). Which one is a hash of the run's request when it was first decided
on, so it never changes, and two runs of the same request are on the same side.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from apps.core.models import Project
from apps.failures.models import DecisionSide, Failure, FailureState, OutcomeCheck, Source
from apps.failures.rules.findings import UNEXPLAINED
from apps.trajectories.models import Trajectory

MOST = 2_000  # newest decisions of each kind
HELD_BACK = 0.5
GREETING = 16  # characters
# below these the report says next to nothing
FEWEST_HELD_BACK = {True: 10, False: 10}  # failed, fine
FEWEST_LEARNING = {True: 6, False: 6}


@dataclass(frozen=True)
class Decision:
    """What a person decided about a run. `mode` is empty if it is fine or the mode is not known;
    `step` is the blamed message.
    """

    run: UUID
    failed: bool
    mode: str
    step: int | None
    at: datetime | None
    held_back: bool


def decisions(project: Project) -> list[Decision]:
    """The newest first. What was decided about the failure counts before an answer to a check."""
    cases = Failure.objects.filter(project=project, source=Source.PERSON)
    cases = cases.exclude(state=FailureState.OPEN)
    found = {
        run: (state == FailureState.CONFIRMED, mode, step, at)
        for run, state, mode, step, at in cases.order_by("-trajectory_id").values_list(
            "trajectory_id", "state", "mode__slug", "blamed_message", "decided_at"
        )[:MOST]
    }
    checks = OutcomeCheck.objects.filter(project=project, answer__in=["failed", "fine"])
    for run, answer, at in checks.order_by("-trajectory_id").values_list("pk", "answer", "at")[
        :MOST
    ]:
        found.setdefault(run, (answer == OutcomeCheck.Answer.FAILED, "", None, at))
    side_of = sides(project, found)
    return [
        Decision(run, failed, _named(mode, failed), step if failed else None, at, side_of[run])
        for run, (failed, mode, step, at) in sorted(found.items(), reverse=True)
        if run in side_of
    ]


def _named(mode: str, failed: bool) -> str:
    return mode if failed and mode != UNEXPLAINED else ""


def sides(project: Project, runs: Collection[UUID]) -> dict[UUID, bool]:
    """{run: whether a decision on it is held back}; as fixed by the first decision, if any."""
    rows = Trajectory.objects.filter(project=project, pk__among=list(runs))
    fixed = DecisionSide.objects.filter(trajectory__among=list(runs))
    known = dict(fixed.values_list("trajectory_id", "held_back"))
    return {
        run: known.get(run, _is_held_back(project, run, preview))
        for run, preview in rows.values_list("pk", "preview")
    }


def fix_sides(project: Project, runs: Collection[UUID]) -> None:
    """With the first decision on a run: what is sent of it later does not change its side."""
    made = [
        DecisionSide(trajectory_id=run, held_back=side)
        for run, side in sides(project, runs).items()
    ]
    DecisionSide.objects.bulk_create(made, ignore_conflicts=True)


def _is_held_back(project: Project, run: UUID, request: str) -> bool:
    """A greeting is no request: such runs are on a side of their own."""
    words = " ".join(request.casefold().split())
    group = words if len(words) > GREETING else str(run)
    digest = hashlib.blake2b(f"held back {project.pk} {group}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64 < HELD_BACK


def frozen(decided: Iterable[Decision]) -> list[dict[str, Any]]:
    """As the spec of a job keeps them."""
    return [
        {"run": str(row.run), "failed": row.failed, "mode": row.mode, "step": row.step}
        for row in decided
    ]


@dataclass(frozen=True)
class Counts:
    """How many decisions of each side say that a run failed (True), or that it is fine."""

    learning: dict[bool, int]
    held_back: dict[bool, int]

    @classmethod
    def of(cls, decided: Iterable[Decision]) -> Counts:
        counts = cls({True: 0, False: 0}, {True: 0, False: 0})
        for decision in decided:
            side = counts.held_back if decision.held_back else counts.learning
            side[decision.failed] += 1
        return counts

    @property
    def all_learning(self) -> int:
        return sum(self.learning.values())

    @property
    def all_held_back(self) -> int:
        return sum(self.held_back.values())

    @property
    def all(self) -> int:
        return self.all_learning + self.all_held_back

    def lacking(self) -> str:
        """How many decisions are missing before a rubric can be improved; empty if enough."""
        sides = (("to learn from", self.learning, FEWEST_LEARNING),)
        return _lacking([*sides, ("held back for the report", self.held_back, FEWEST_HELD_BACK)])

    def lacking_for_report(self) -> str:
        return _lacking([("held back for the report", self.held_back, FEWEST_HELD_BACK)])


def _lacking(sides: list[tuple[str, dict[bool, int], dict[bool, int]]]) -> str:
    missing = [
        f"{fewest[failed] - there[failed]} more on {'failed' if failed else 'fine'} runs {use}"
        for use, there, fewest in sides
        for failed in (True, False)
        if there[failed] < fewest[failed]
    ]
    if not missing:
        return ""
    return (
        f"More decisions by people are needed: {', '.join(missing)}. A hash of the request decides"
        " which side a run is on: about every second decision is held back."
    )
