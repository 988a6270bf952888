"""Traces of Flywheel itself, for the operator's own OpenTelemetry backend. Off unless
OTEL_TRACES_EXPORTER is “otlp”: then nothing of OpenTelemetry is imported, and nothing is wrapped.

Requests, jobs and queries become spans (`flywheel.tracing`), with what log lines are about as
attributes. What a request posts to workers carries its id and its trace.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from flywheel import logs

log = logging.getLogger(__name__)
INSTALL = "Install requirements/telemetry.txt, or unset OTEL_TRACES_EXPORTER."
NOTHING = nullcontext()
_tracing: Any = None  # the module flywheel.tracing, where it is on


class TelemetryError(Exception):
    """A sentence for operators."""


def is_wanted() -> bool:
    is_disabled = os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    return os.environ.get("OTEL_TRACES_EXPORTER", "").strip() == "otlp" and not is_disabled


def problem() -> str:
    """Why no traces are sent although they are wanted; "" where all is well."""
    protocol = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or os.environ.get(
        "OTEL_EXPORTER_OTLP_PROTOCOL", ""
    )
    if not is_wanted():
        return ""
    if protocol not in ("", "http/protobuf"):
        return f"Traces are sent as http/protobuf only, not as {protocol}."
    try:
        import flywheel.tracing  # noqa: F401
    except ImportError as error:
        return f"Traces are not sent: {error.name} is not installed. {INSTALL}"
    return ""


def begin(process: str) -> None:
    """Of a process that answers requests or runs tasks."""
    global _tracing
    if _tracing is not None or not is_wanted():
        return
    if why := problem():
        log.warning(why)
        return
    from flywheel import tracing

    tracing.start(process)
    _tracing = tracing


def traced(application: Callable[..., Any]) -> Callable[..., Any]:
    """Of Django's WSGI application."""
    return _tracing.traced(application) if _tracing else application


def traced_asgi(application: Callable[..., Any]) -> Callable[..., Any]:
    return _tracing.traced_asgi(application) if _tracing else application


def queries(texts: Sequence[bytes]) -> AbstractContextManager[Any]:
    """Around statements that go past Django's cursors."""
    return _tracing.queries(texts) if _tracing else NOTHING


def carried() -> dict[str, str]:
    """What a message to a worker carries of the request or job that posts it."""
    about = logs.current()
    headers = {"request": about["request"]} if "request" in about else {}
    return headers | (_tracing.carried() if _tracing else {})


def task(name: str, args: Sequence[Any], headers: dict[str, str]) -> AbstractContextManager[Any]:
    """Around a task that a message with these headers asked for."""
    return _tracing.task(name, args, headers) if _tracing else NOTHING
