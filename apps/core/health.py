"""GET /healthz: 200 when the database (with this version's schema), the broker, one worker of each
queue and beat answer.
"""

from __future__ import annotations

import logging

import redis
from django.conf import settings
from django.db import DatabaseError
from django.http import HttpRequest, JsonResponse

from apps.core import schema
from flywheel import alive

log = logging.getLogger(__name__)


def healthz(request: HttpRequest) -> JsonResponse:
    parts = {**_database(), **_broker_and_workers()}
    healthy = all(parts.values())
    return JsonResponse({"healthy": healthy, "parts": parts}, status=200 if healthy else 503)


def _database() -> dict[str, bool]:
    try:
        different = schema.differences()
        ready = not (different or schema.is_behind())
    except DatabaseError:
        return {"database": False, "schema": False}
    if not ready:
        log.warning(
            "The database has another schema: %s", "; ".join(different) or "run manage.py prepare"
        )
    return {"database": True, "schema": ready}


def _broker_and_workers() -> dict[str, bool]:
    names = [*settings.QUEUES, alive.BEAT]
    labels = {name: name if name == alive.BEAT else f"worker {name}" for name in names}
    try:
        missing = alive.missing(names)
    except redis.RedisError:
        return {"broker": False} | dict.fromkeys(labels.values(), False)
    return {"broker": True} | {label: name not in missing for name, label in labels.items()}
