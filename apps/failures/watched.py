"""What the judge costs (`core.watching.measures`)."""

from __future__ import annotations

from django.db.models import Sum
from django.utils import timezone

from apps.core.models import Stage
from apps.core.watching.measures import Values, measured
from apps.failures.models import JudgeDay, Rubric


@measured("flywheel_judge_usd_today", "What judges cost today (UTC), of all projects")
def judge_usd() -> Values:
    today = JudgeDay.objects.filter(day=timezone.now().date())
    return {(): today.aggregate(usd=Sum("usd"))["usd"] or 0.0}


@measured(
    "flywheel_judge_budget_usd_today", "What judges that are on may cost today, of all projects"
)
def judge_budget() -> Values:
    on = Rubric.objects.filter(is_on=True, project__stage=Stage.ACTIVE)
    return {(): on.aggregate(usd=Sum("usd_per_day"))["usd"] or 0.0}


@measured("flywheel_judge_questions_today", "What judges were asked today (UTC)")
def judge_questions() -> Values:
    today = JudgeDay.objects.filter(day=timezone.now().date())
    return {(): today.aggregate(asked=Sum("asked"))["asked"] or 0}
