"""GET /healthz: 200 when the database, the broker, one worker of each queue and beat answer."""

from __future__ import annotations

import redis
from django.conf import settings
from django.db import DatabaseError, connection
from django.http import HttpRequest, JsonResponse

from flywheel import alive


def healthz(request: HttpRequest) -> JsonResponse:
    parts = {"database": _database(), **_broker_and_workers()}
    healthy = all(parts.values())
    return JsonResponse({"healthy": healthy, "parts": parts}, status=200 if healthy else 503)


def _database() -> bool:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except DatabaseError:
        return False
    return True


def _broker_and_workers() -> dict[str, bool]:
    names = [*settings.QUEUES, alive.BEAT]
    labels = {name: name if name == alive.BEAT else f"worker {name}" for name in names}
    try:
        missing = alive.missing(names)
    except redis.RedisError:
        return {"broker": False} | dict.fromkeys(labels.values(), False)
    return {"broker": True} | {label: name not in missing for name, label in labels.items()}
