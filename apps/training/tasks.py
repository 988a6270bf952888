from __future__ import annotations

from celery import shared_task

from apps.training import judged_outputs, stalls
from apps.training.models import TrainingRun


@shared_task(name="training.watch", expires=60)
def watch() -> int:
    return stalls.watch()


@shared_task(name="training.judge_outputs", expires=60)
def judge_outputs() -> int:
    """A task for each run with outputs that its project's judge has not read."""
    found = judged_outputs.due()
    for pk in found:
        judge_outputs_of.apply_async(args=[str(pk)], expires=60)
    return len(found)


@shared_task(name="training.judge_outputs_of")
def judge_outputs_of(run_id: str) -> dict | None:
    run = (
        TrainingRun.objects.filter(pk=run_id)
        .select_related("project", "environment__verifier")
        .first()
    )
    return vars(judged_outputs.ask_judge(run)) if run else None
