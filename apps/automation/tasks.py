from __future__ import annotations

from celery import shared_task

from apps.automation import actions, engine
from apps.automation.models import FlowRun


@shared_task(name="automation.tick", expires=60)
def tick() -> dict[str, int]:
    """Start due flows, and advance open runs in one task per project, since a step may take
    minutes.
    """
    started = actions.tick()
    for runs in actions.moving().values():
        advance.apply_async(args=[runs], expires=60)
    return started


@shared_task(name="automation.advance")
def advance(runs: list[str]) -> int:
    return sum(
        engine.advance(run) for run in FlowRun.objects.filter(pk__in=runs).order_by("created_at")
    )
