from __future__ import annotations

from celery import shared_task

from apps.environments.protocol.sessions import forget_expired


@shared_task(name="environments.forget_sessions", expires=300)
def forget_sessions() -> int:
    return forget_expired()
