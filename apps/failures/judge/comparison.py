"""Compares strategies for the blamed step on cases that people confirmed with a step: accuracy and
cost.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from apps.core.models import Project
from apps.failures.actions.modes import ensure_modes
from apps.failures.judge import batch, rubrics
from apps.failures.judge.measuring import question_about, verdict_of
from apps.failures.judge.questions import Stored
from apps.failures.models import Failure, FailureState, Rubric, Source
from apps.trajectories.models import Trajectory, in_chunks
from workers.lib.spending import NOTHING, Usage


class Stopped(Exception):
    """The sentence says why not everything was asked. What was is kept, and not paid for again."""


PURPOSE = "strategies"


@dataclass
class Score:
    """A strategy's results on `n` labelled runs. `exact` and `within_one` count steps of the
    agent.
    """

    strategy: str
    n: int = 0
    found: int = 0  # runs in which it sees a failure
    exact: int = 0
    within_one: int = 0
    same_mode: int = 0
    errors: int = 0
    usage: Usage = field(default=NOTHING)
    usd: float = 0.0

    def add(self, entry: Stored, label: Label) -> None:
        self.n += 1
        if row := entry.row:
            self.usage += Usage(row.input_tokens, row.output_tokens)
            self.usd += row.cost_usd
        verdict = verdict_of(entry)
        self.errors += verdict is None
        if verdict is None or not verdict.failed:
            return
        self.found += 1
        self.same_mode += verdict.mode == label.mode
        far = distance(entry.question.steps, label.step, verdict.message_index)
        self.exact += far == 0
        self.within_one += far <= 1


@dataclass(frozen=True)
class Label:
    """What a person confirmed."""

    trajectory: Any
    mode: str
    step: int


def distance(steps: Sequence[int], true: int, said: int | None) -> float:
    """Between two messages of the agent, in agent steps."""
    if said not in steps or true not in steps:
        return float("inf")
    return abs(steps.index(true) - steps.index(said))


def labelled(project: Project, limit: int) -> list[Label]:
    """The newest confirmed cases with a step that is one of the agent's own."""
    rows = Failure.objects.filter(
        project=project,
        source=Source.PERSON,
        state=FailureState.CONFIRMED,
        blamed_message__isnull=False,
    )
    rows = rows.select_related("mode").order_by("-trajectory_id")[:limit]
    return [Label(row.trajectory_id, row.mode.slug, row.blamed_message) for row in rows]


def compare(
    project: Project,
    rubric: Rubric,
    strategies: Sequence[str],
    labels: Sequence[Label],
    *,
    max_usd: float,
    sleep: batch.Sleep = time.sleep,
) -> Iterator[Score]:
    """A score for each strategy, as soon as it is complete. All are asked about the same runs,
    without people's decisions on them. Raises Stopped.
    """
    ensure_modes(project)
    modes, report = rubrics.modes_of(project), batch.Report()
    named = Trajectory.objects.filter(
        project=project, pk__in=[label.trajectory for label in labels]
    )
    rows = {row.pk: row for chunk in in_chunks(named) for row in chunk}
    for strategy in strategies:
        score = Score(strategy)
        entries = [
            (label, question_about(rubric, rows[label.trajectory], modes, PURPOSE, strategy))
            for label in labels
            if label.trajectory in rows
        ]
        left = max_usd - report.spent_usd
        asked = (entry for _, entry in entries)
        batch.ask_all(rubric, asked, report, sleep=sleep, most_usd=left, is_trial=True)
        if report.stopped:
            raise Stopped(report.stopped)
        for label, entry in entries:
            score.add(entry, label)
        yield score
