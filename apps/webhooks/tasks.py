from __future__ import annotations

from celery import shared_task

from apps.webhooks import actions, sending


@shared_task(name=actions.SEND, expires=60)
def send_due() -> int:
    return sending.send_due()


@shared_task(name="webhooks.forget_old", expires=3600)
def forget_old() -> int:
    return sending.forget_old()
