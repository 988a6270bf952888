from __future__ import annotations

from celery import shared_task

from apps.training import stalls


@shared_task(name="training.watch", expires=60)
def watch() -> int:
    return stalls.watch()
