"""How far held-out tasks are worn: by evaluations, of which the best could have been picked, and by people who saw them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import or_

from django.db.models import Q, QuerySet

from apps.evals.models import EvalRun, EvalSet, Split, Task
from apps.promotion.gate.error_control import level_of, more_tasks


def evaluations_on(eval_set: EvalSet, split: str = Split.HOLDOUT) -> QuerySet[EvalRun]:
    """Those begun on any of the same tasks, by their content: a new version of a set is not a fresh hold-out."""
    contents = Task.objects.filter(eval_set=eval_set, split=split).values("canonical_hash")
    same = Task.objects.filter(project=eval_set.project_id, canonical_hash__in=contents).order_by()
    places = set(same.values_list("eval_set", "split").distinct())
    either = reduce(or_, (Q(eval_set=place[0], split=place[1]) for place in sorted(places)), Q(pk__in=()))
    return EvalRun.objects.filter(either, started_at__isnull=False)


def comparison_number(baseline: EvalRun, candidate: EvalRun) -> int:
    """Which comparison it is, from 1: the evaluations on these tasks up to the later one of the two, without the first.

    Every evaluation counts, of either model, compared or not, finished or cancelled: who evaluates ten models and compares
    the best has compared ten. So it does not depend on when the gate is asked.
    """
    until = max(baseline.created_at, candidate.created_at)
    return max(1, evaluations_on(candidate.eval_set, candidate.split).filter(created_at__lte=until).count() - 1)


@dataclass(frozen=True)
class Wear:
    """`level`: the error that the next comparison may make. `factor`: its tasks for the same power, in those of the first."""

    evaluations: int
    level: float
    factor: float

    @property
    def due(self) -> bool:
        """Fresh tasks are due where the same improvement needs twice the tasks that it needed at first."""
        return self.factor >= 2


def wear_of(eval_set: EvalSet, alpha: float) -> Wear:
    count = evaluations_on(eval_set).count()
    level = level_of(max(1, count), alpha)
    return Wear(count, level, more_tasks(level, level_of(1, alpha)))
