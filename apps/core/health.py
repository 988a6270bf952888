"""GET /healthz: 200 when the database (with this version's schema), the broker, one worker of each
queue and beat answer. `lag_s`: how long the oldest of what has arrived waits in the background.
"""

from __future__ import annotations

import logging

import redis
from django.conf import settings
from django.db import DatabaseError, connection
from django.http import HttpRequest, JsonResponse

from apps.core import lags, schema
from flywheel import alive
from flywheel.commit import commit
from flywheel.version import VERSION

log = logging.getLogger(__name__)
DATABASE_WAIT_S = 2


def healthz(request: HttpRequest) -> JsonResponse:
    parts = {**_database(), **_broker_and_workers()}
    healthy = all(parts.values())
    answer = {"healthy": healthy, "version": VERSION, "commit": commit(), "parts": parts}
    if parts["database"] and parts["schema"]:
        answer["lag_s"] = lags.seconds()
    return JsonResponse(answer, status=200 if healthy else 503)


def _database() -> dict[str, bool]:
    try:
        _require_answer()
        state = schema.schema_state()
    except DatabaseError:
        return {"database": False, "schema": False}
    if not state.fits:
        log.warning("%s", state.sentence)
    return {"database": True, "schema": state.fits}


def _require_answer() -> None:
    """Raises DatabaseError for a server that hangs: it still accepts connections, and a query on an
    open one would wait as long as it hangs.
    """
    parameters = connection.get_connection_params() | {"connect_timeout": DATABASE_WAIT_S}
    with connection.wrap_database_errors:
        connection.get_new_connection(parameters).close()


def _broker_and_workers() -> dict[str, bool]:
    names = [*settings.QUEUES, alive.BEAT]
    labels = {name: name if name == alive.BEAT else f"worker {name}" for name in names}
    try:
        missing = alive.missing(names)
    except redis.RedisError:
        return {"broker": False} | dict.fromkeys(labels.values(), False)
    return {"broker": True} | {label: name not in missing for name, label in labels.items()}
