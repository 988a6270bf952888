from __future__ import annotations

from celery import shared_task

from apps.automation import actions


@shared_task(name="automation.tick", expires=60)
def tick() -> int:
    return actions.run_due()
