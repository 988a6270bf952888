from __future__ import annotations

from celery import shared_task

from apps.teamwork import actions


@shared_task(name="teamwork.forget_orphans", expires=3600)
def forget_orphans() -> int:
    return actions.forget_orphans()
