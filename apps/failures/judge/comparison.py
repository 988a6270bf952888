"""Compares strategies for the blamed step on cases that people confirmed with a step: accuracy and
cost.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from apps.core.models import Project
from apps.failures.actions.diagnose import as_input
from apps.failures.actions.modes import ensure_modes
from apps.failures.judge import rubrics
from apps.failures.judge.asking import Judged
from apps.failures.judge.strategies import Question
from apps.failures.models import Failure, FailureState, Rubric, Source
from apps.trajectories.models import in_chunks
from workers.lib.spending import NOTHING, Usage


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

    def add(self, judged: Judged, question: Question, label: Label, usd: float) -> None:
        self.n += 1
        self.usage, self.usd = self.usage + judged.usage, self.usd + usd
        self.errors += judged.verdict is None
        if judged.verdict is None or not judged.verdict.failed:
            return
        self.found += 1
        self.same_mode += judged.verdict.mode == label.mode
        far = distance(question.steps, label.step, judged.verdict.message_index)
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
    by: Any = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Score]:
    """A score for each strategy, as soon as it is complete. All are asked about the same runs,
    without people's decisions on them.

    Every question is reserved before it is asked, against `max_usd` of this comparison and the
    rubric's daily budget. Raises rubrics.NoMoney; what was asked until then is paid and lost.
    """
    ensure_modes(project)
    modes, left = rubrics.modes_of(project), max_usd
    runs = {row.pk: as_input(row) | HIDDEN for row in _rows(project, labels)}
    for strategy in strategies:
        score = Score(strategy)
        asked = [
            (label, Question.of(strategy, rubric.text, modes, runs[label.trajectory]))
            for label in labels
        ]
        with ThreadPoolExecutor(rubric.concurrency, "judge") as threads:
            for at in range(0, len(asked), rubric.concurrency):
                part = asked[at : at + rubric.concurrency]
                left -= _ask_all(project, rubric, part, score, threads, left, by, sleep)
        yield score


HIDDEN = {"outcome_reason": "", "outcome_label": "", "interventions": [], "metadata": {}}


def _rows(project: Project, labels: Sequence[Label]) -> Iterator[Any]:
    for chunk in in_chunks(
        project.trajectories.filter(pk__in=[label.trajectory for label in labels]).order_by("pk")
    ):
        yield from chunk


def _ask_all(
    project: Project,
    rubric: Rubric,
    part: Sequence[tuple[Label, Question]],
    score: Score,
    threads: ThreadPoolExecutor,
    left: float,
    by: Any,
    sleep: Callable[[float], None],
) -> float:
    """Asks questions in parallel; returns their cost in USD."""
    server, booked = rubrics.server_of(rubric), []
    try:
        for label, question in part:
            max_cost = question.max_cost(server)
            if max_cost > 0 and max_cost > left - sum(usd for _, _, usd in booked):
                raise rubrics.NoMoney(
                    "The limit of this comparison does not allow another question (up to"
                    f" ${max_cost:.4f})."
                )
            rubrics.book_try(
                project=project,
                by=by,
                trajectory=label.trajectory,
                max_cost=max_cost,
                budget=rubric.usd_per_day,
            )
            booked.append((label, question, max_cost))
    except rubrics.NoMoney:
        for label, _, max_cost in booked:
            rubrics.settle_try(
                project=project, by=by, trajectory=label.trajectory, max_cost=max_cost, cost=0.0
            )
        raise
    spent = 0.0
    answers = threads.map(lambda item: item[1].ask(server, sleep), booked)
    for (label, question, max_cost), judged in zip(booked, answers, strict=True):
        cost = server.cost(judged.usage)
        rubrics.settle_try(
            project=project, by=by, trajectory=label.trajectory, max_cost=max_cost, cost=cost
        )
        score.add(judged, question, label, cost)
        spent += cost
    return spent
