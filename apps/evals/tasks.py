from __future__ import annotations

from celery import shared_task

from apps.evals import importing


@shared_task(name=importing.TASK)
def import_tasks(identity: str) -> None:
    importing.run(identity)
