"""Spans and log records as they are stored: plain JSON inside, times in nanoseconds since 1970, ids
in lower-case hex.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field


class Scope(Struct):
    name: str = ""
    version: str = ""
    schema_url: str = ""


class Event(Struct):
    name: str
    time_ns: int = 0
    attributes: dict[str, Any] = field(default_factory=dict)


class Link(Struct):
    trace_id: str
    span_id: str
    attributes: dict[str, Any] = field(default_factory=dict)


class Span(Struct):
    """`parent_id` is "" for a root; `status_code` is OTLP's: 0 unset, 1 ok, 2 error; `kind` is
    OTLP's number.
    """

    trace_id: str
    span_id: str
    parent_id: str = ""
    name: str = ""
    kind: int = 0
    start_ns: int = 0
    end_ns: int = 0
    status_code: int = 0
    status_message: str = ""
    attributes: dict[str, Any] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    resource: dict[str, Any] = field(default_factory=dict)
    scope: Scope = field(default_factory=Scope)

    @property
    def has_thrown(self) -> bool:
        return any(event.name == "exception" for event in self.events)


class LogRecord(Struct):
    """A log record; the ids are "" if it belongs to no span."""

    trace_id: str = ""
    span_id: str = ""
    time_ns: int = 0
    event_name: str = ""
    body: Any = None
    attributes: dict[str, Any] = field(default_factory=dict)
    resource: dict[str, Any] = field(default_factory=dict)
    scope: Scope = field(default_factory=Scope)
