"""What granian serves: Django, in workers that die with their master, so that a new one finds the
port free.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from functools import wraps
from typing import Any

from workers.lib.guard import end_with_parent

DJANGOS = {"context", "cursor_factory", "server_side_binding", "prepare_threshold"}


def application() -> Any:
    """Called once in each worker."""
    end_with_parent(signal.SIGKILL)
    from django.conf import settings

    from flywheel.wsgi import application  # sets Django up, which the others need

    from apps.core.watching import watcher  # isort: skip
    from flywheel import telemetry
    from flywheel.bodies import whole_bodies
    from flywheel.logs import with_request_id
    from flywheel.metrics import counted
    from flywheel.postgres.watched import watch
    from flywheel.receiving import receivers

    receivers.join()
    watch.begin(connection_parameters(), settings.FLYWHEEL_DATABASE_SILENT_S)
    watcher.begin()
    telemetry.begin("web")
    answering = at_once(whole_bodies(telemetry.traced(application)))
    return with_request_id(counted(answering))


def connection_parameters() -> dict[str, Any]:
    """What the database is connected to with, apart from Django's own wishes."""
    from django.db import connection

    wanted = connection.get_connection_params()
    return {key: wanted[key] for key in wanted if key not in DJANGOS}


def at_once(application: Callable[..., Any]) -> Callable[..., Any]:
    """Gives granian what a response holds as a list, which it sends in one piece. To walk through
    it took a fifth of a small request.
    """

    @wraps(application)
    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        response = application(environ, start_response)
        if getattr(response, "streaming", True):
            return response
        try:
            return [response.content]
        finally:
            response.close()

    return answer
