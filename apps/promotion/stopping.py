"""When an evaluation may stop early: a sequential policy decides on the results so far."""

from __future__ import annotations

from apps.core.bus import on
from apps.evals.jobs import IsDecided
from apps.evals.models import EvalRun
from apps.promotion.gate import NotComparable
from apps.promotion.inputs import Inputs
from apps.promotion.policies import PRODUCTION, find_channel, policy_of
from apps.promotion.wear import comparison_number


@on(IsDecided)
def is_decided(question: IsDecided) -> bool:
    """Whether success and safety decide between `stop_against` and this evaluation, by the policy
    of `stop_channel`.
    """
    run = question.run
    baseline = EvalRun.objects.filter(project=run.project_id, pk=run.spec["stop_against"]).first()
    policy = policy_of(find_channel(run.project, run.spec.get("stop_channel") or PRODUCTION))[0]
    if baseline is None or not policy.sequential:
        return False
    try:
        inputs = Inputs.of(baseline, run, None, {}, sequential=True)
        return inputs.compare(policy, comparison_number(baseline, run)).verdict != "inconclusive"
    except NotComparable:
        return False
