"""Which production runs can become tasks, and with which prompt those ran."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from django.db.models import QuerySet

from apps.core.models import Project
from apps.evals.models import EvalSet, Split
from apps.failures.models import FailureState
from apps.trajectories.models import Outcome, Trajectory, in_chunks, with_content
from workers.lib.messages import system_prompt

MOST = 5_000  # runs at once
PROMPTS_READ = 200  # the newest runs


@dataclass(frozen=True)
class UsualPrompt:
    """The most common system prompt of some runs: `count` of `runs` have it."""

    text: str
    count: int
    runs: int


def candidates(project: Project) -> QuerySet[Trajectory]:
    """Trajectories that can become tasks: successes, and failures that nobody has dismissed."""
    rows = project.trajectories.filter(outcome_status__in=[Outcome.FAILURE, Outcome.SUCCESS])
    return rows.exclude(failure__state=FailureState.DISMISSED)


def newest(rows: QuerySet[Trajectory]) -> Iterator[Trajectory]:
    """The newest MOST of these with their content, oldest first."""
    runs = Trajectory.objects.filter(pk__in=rows.order_by("-pk").values("pk")[:MOST]).order_by("pk")
    return (row for chunk in in_chunks(runs) for row in chunk)


def usual_system_prompt(eval_set: EvalSet) -> UsualPrompt | None:
    """Of the newest runs that the set's tasks were made from; those of held-out tasks do not count.
    None if none of them has one.
    """
    tasks = eval_set.tasks.exclude(split=Split.HOLDOUT).exclude(trajectory=None)
    rows = Trajectory.objects.filter(pk__in=tasks.values("trajectory")).order_by("-pk")
    runs = with_content(list(rows[:PROMPTS_READ]))
    prompts = Counter(text for run in runs if (text := system_prompt(run.messages)).strip())
    return next((UsualPrompt(*item, len(runs)) for item in prompts.most_common(1)), None)
