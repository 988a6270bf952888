"""How every process writes its log: one line with time (UTC), level, and the request, job and
project that it is about, as text or as JSON (LOG_FORMAT). No query string and no header stands in
one.
"""

from __future__ import annotations

import json
import logging
import os
import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

SECRET = (
    re.compile(  # what opens something: the key of a password's reset, the address of a rollout
        r"(?<=/password/reset/)\w+-[^/]+|(?<=/rollout/)[\w-]+"
    )
)
PROBES = ("/healthz", "/livez", "/readyz", "/metrics")
LEVEL = re.compile(r"\b(DEBUG|INFO|LOG|NOTICE|WARNING|ERROR|CRITICAL|FATAL|PANIC)\b")
LEVELS = {"LOG": "INFO", "NOTICE": "INFO", "FATAL": "CRITICAL", "PANIC": "CRITICAL"}
REQUEST_ID = re.compile(r"[\w.-]{1,64}")
access = logging.getLogger("flywheel.access")
_watcher: Callable[[Mapping[str, str]], None] | None = None
_about: ContextVar[Mapping[str, str]] = ContextVar("about", default=MappingProxyType({}))


@contextmanager
def about(**names: str) -> Iterator[None]:
    """What the lines inside are about: request, job, project."""
    before = _about.set({**_about.get(), **names})
    if _watcher is not None:
        _watcher(names)
    try:
        yield
    finally:
        _about.reset(before)


def note(**names: str) -> None:
    """The same for the rest of the request or job; outside of one nothing."""
    if known := _about.get():
        _about.set({**known, **names})
        if _watcher is not None:
            _watcher(names)


def current() -> Mapping[str, str]:
    return _about.get()


def watch(watcher: Callable[[Mapping[str, str]], None] | None) -> None:
    """Calls it with all that lines are about from now on."""
    global _watcher
    _watcher = watcher


def is_json() -> bool:
    return os.environ.get("LOG_FORMAT") == "json"


def as_line(line: bytes, logger: str, **more: str) -> bytes:
    """What another program wrote, for a log: where lines are JSON, one that is none becomes the
    message of one. `more`: fields that it has besides.
    """
    if not is_json() or not (text := line.decode(errors="replace").strip()):
        return line
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        said = None
    if not isinstance(said, dict):
        level = LEVEL.search(text)
        said = {"time": now(), "level": LEVELS.get(level[1], level[1]) if level else "INFO"}
        said |= {"logger": logger, "message": text}
    elif not more:
        return line
    return json.dumps({**said, **more}, ensure_ascii=False).encode() + b"\n"


def now() -> str:
    return f"{datetime.now(UTC).isoformat(timespec='milliseconds')[:-6]}Z"


def message_of(line: str) -> str:
    """What a line says, whatever its form."""
    if line.startswith("{"):
        with suppress(ValueError, TypeError, KeyError):
            return str(json.loads(line)["message"])
    return line


class Line(logging.Formatter):
    converter = time.gmtime
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        if is_json():
            return self._as_json(record)
        names = " ".join(f"{name}={value}" for name, value in _about.get().items())
        # What somebody sent may be in it: indented, no line of that looks like one of ours.
        text = SECRET.sub("…", super().format(record))
        first, *rest = map(_printable, text.split("\n"))
        return "\n    ".join([f"{first} [{names}]" if names else first, *rest])

    def _as_json(self, record: logging.LogRecord) -> str:
        said: dict[str, Any] = {
            "time": self.formatTime(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **_about.get(),
        }
        if record.exc_info:
            said["error"] = self.formatException(record.exc_info)
        return SECRET.sub("…", json.dumps(said, ensure_ascii=False))


def with_request_id(application: Callable[..., Any]) -> Callable[..., Any]:
    """Of a WSGI application: each request has an id, the client's (X-Request-ID) or a new one,
    which its answer and all its lines have, and a line when it is answered.
    """

    def answer(sent: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        asked = sent.get("HTTP_X_REQUEST_ID", "")
        name = asked if REQUEST_ID.fullmatch(asked) else uuid.uuid4().hex[:16]
        began, status = time.perf_counter(), ["500"]

        def start(said: str, headers: list[tuple[str, str]], *more: Any) -> Any:
            status[0] = said[:3]
            return start_response(said, [*headers, ("X-Request-ID", name)], *more)

        with about(request=name):
            try:
                return application(sent, start)
            finally:
                access.info(
                    '%s "%s %s" %s %.1f ms',
                    sent.get("REMOTE_ADDR", ""),
                    sent.get("REQUEST_METHOD", ""),
                    readable(sent.get("PATH_INFO", "")),
                    status[0],
                    1000 * (time.perf_counter() - began),
                )

    return answer


class NotHealth(logging.Filter):
    """Whoever asks /healthz reads the answer; a line for each time says nothing. It is told by the
    path of the request, not by the words of a line: others choose these, and could hide by them.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name not in (access.name, "django.request") or not record.args:
            return True
        return not any(value in PROBES for value in record.args)


class NotChosen(logging.Filter):
    """granian warns of more threads than cores: here they wait for the database."""

    def filter(self, record: logging.LogRecord) -> bool:
        return "Configuration allows spawning up to" not in record.getMessage()


def readable(path: str) -> str:
    """A path as WSGI gives it: what a client put into it stays on its line, and what is a
    secret in it out of it.
    """
    return _printable(SECRET.sub("…", path.encode("latin-1", "replace").decode(errors="replace")))


def _printable(text: str) -> str:
    if text.isprintable():
        return text
    kept = (one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
    return "".join(kept)
