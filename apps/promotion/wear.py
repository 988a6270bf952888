"""How worn held-out tasks are: by evaluations, of which the best could have been picked, and by
people who saw them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import reduce
from operator import or_
from typing import Any

from django.db.models import Count, Q, QuerySet

from apps.core.models import JobState
from apps.evals.holdout.view_log import WORN_OUT, view_count, views_of
from apps.evals.jobs import rows_of
from apps.evals.models import EvalRun, EvalSet, HoldoutView, Split, Task
from apps.promotion.gate.error_control import comparisons_until, level_of, more_tasks
from apps.promotion.gate.planning import Plan, plan, spread_of
from apps.promotion.gate.policy import Policy
from apps.promotion.policies import PRODUCTION, find_channel

WORN_FACTOR = 2.0  # times the tasks of the first comparison
MODELS = 4  # whose newest evaluations show how much success varies


def evaluations_on(eval_set: EvalSet, split: str = Split.HOLDOUT) -> QuerySet[EvalRun]:
    """Evaluations started on any of the same tasks, by their content: a new version of a set is not
    a fresh hold-out, and neither is one whose requests only differ in punctuation."""
    contents = Task.objects.filter(eval_set=eval_set, split=split).values("canonical_hash")
    same = Task.objects.filter(project=eval_set.project_id, canonical_hash__in=contents).order_by()
    places = set(same.values_list("eval_set", "split").distinct())
    if split == Split.HOLDOUT:
        evaluated = views_of(eval_set).filter(
            kind=HoldoutView.Kind.EVALUATION, eval_set__isnull=False
        )
        places |= {
            (pk, split) for pk in evaluated.order_by().values_list("eval_set", flat=True).distinct()
        }
    either = reduce(
        or_, (Q(eval_set=place[0], split=place[1]) for place in sorted(places)), Q(pk__in=())
    )
    return EvalRun.objects.filter(either, started_at__isnull=False)


def comparison_number(baseline: EvalRun, candidate: EvalRun) -> int:
    """Which comparison it is, from 1: the pairs of an evaluation of the baseline (its model and
    prompt) and another one on these tasks, of all that were submitted or begun up to the later one
    of the two.

    Every evaluation counts, compared or not, finished or cancelled: who evaluates ten models and
    compares the best has compared ten, and who evaluates the baseline three times can compare each
    of them with the worst. It does not depend on when the gate is asked.

    1 on every other split than the hold-out: nothing is promoted by those, so they may be compared
    on without limit, and each comparison is wrong as often as the first.
    """
    if candidate.split != Split.HOLDOUT:
        return 1
    pair = baseline, candidate
    created = Q(created_at__lte=max(run.created_at for run in pair))
    begun = Q(started_at__lte=max(run.started_at for run in pair if run.started_at))
    every = evaluations_on(candidate.eval_set, candidate.split).filter(created | begun)
    count = every.count()
    mine = every.filter(
        model_version=baseline.model_version_id,
        environment__agent_hash=baseline.environment.agent_hash,
    ).count()
    return max(1, count - 1, mine * (count - mine))


def next_number(eval_set: EvalSet) -> int:
    """The number of the next candidate's comparison on a set's hold-out, against what production
    runs.
    """
    runs, channel = evaluations_on(eval_set), find_channel(eval_set.project, PRODUCTION)
    live = (
        runs.filter(model_version=channel.current_id)
        if channel and channel.current_id
        else runs.none()
    )
    by_prompt = (
        live.order_by()
        .values("environment__agent_hash")
        .annotate(n=Count("pk"))
        .values_list("n", flat=True)
    )
    mine = max(by_prompt, default=1)
    return mine * max(1, runs.count() - mine + 1)


@dataclass(frozen=True)
class Wear:
    """`level`: the error that the next comparison may make. `factor`: the tasks it needs for the
    same power, relative to the first.
    """

    tasks: int
    evaluations: int
    views: int
    level: float
    factor: float
    evaluations_left: int  # until fresh tasks are due

    @property
    def due(self) -> bool:
        """Fresh tasks are needed if an improvement needs twice the tasks that it needed at first,
        or if many views were counted.
        """
        return self.factor >= WORN_FACTOR or self.views > WORN_OUT

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"fresh_tasks_due": self.due}


def wear_of(eval_set: EvalSet, policy: Policy) -> Wear:
    count = evaluations_on(eval_set).count()
    level = level_of(next_number(eval_set), policy.alpha)
    factor = more_tasks(level, level_of(1, policy.alpha))
    left = max(0, comparisons_until(WORN_FACTOR, policy.alpha) - next_number(eval_set))
    return Wear(eval_set.tasks.holdout().count(), count, view_count(eval_set), level, factor, left)


def plan_for(eval_set: EvalSet, policy: Policy, samples: int) -> Plan:
    """What the next comparison on a set's hold-out can show, from the newest evaluation of each
    model on the same tasks.
    """
    runs = evaluations_on(eval_set)
    finished = (
        runs.filter(state=JobState.SUCCEEDED)
        .order_by("model_version_id", "-created_at")
        .distinct("model_version_id")
    )
    newest = sorted(finished, key=lambda run: run.created_at, reverse=True)[:MODELS]
    spread = spread_of([rows_of(run.samples.defer("output", "messages")) for run in newest])
    return plan(eval_set.tasks.holdout().count(), samples, policy, next_number(eval_set), spread)
