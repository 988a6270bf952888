"""The JSON lines that a child process writes (docs/jobs.md). Light: no torch."""

from __future__ import annotations

import json
import math
import os
import sys
import threading
from datetime import UTC, datetime
from typing import Any

import msgspec

from workers.lib.memory import peak_memory


def _plain(value: Any) -> Any:
    """JSON has no NaN and no infinity: they become null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def encoded(event: dict[str, Any]) -> bytes:
    """As JSON in ASCII, so that no reader takes a Unicode separator for the end of the line.
    msgspec is ten times as fast, but escapes nothing, and supports neither numbers of numpy nor
    lone surrogates.
    """
    try:
        line = msgspec.json.encode(event)
    except (UnicodeEncodeError, TypeError):
        line = b""
    return (
        line
        if line and line.isascii()
        else json.dumps(_plain(event), separators=(",", ":")).encode()
    )


class Emitter:
    """Numbers the events of one attempt from 1 and writes each immediately as one line. `mute`:
    only report an error at the end; for processes other than a job's first.
    """

    def __init__(self, fd: int | None = None, *, mute: bool = False) -> None:
        if fd is None:
            fd = int(os.environ.get("FLYWHEEL_EVENTS_FD") or sys.stdout.fileno())
        self.fd, self.mute = fd, mute
        self.seq, self.lock = 0, threading.Lock()
        self.outcome: list[str] = []  # what a training run has achieved, in sentences

    def emit(self, type: str, **fields: Any) -> None:
        if self.mute and type != "error":
            return
        with self.lock:
            self.seq += 1
            at = datetime.now(UTC).isoformat()
            line = encoded({"type": type, "seq": self.seq, "at": at, **fields}) + b"\n"
            while line:
                line = line[os.write(self.fd, line) :]

    def progress(self, done: int, total: int, label: str) -> None:
        self.emit("progress", done=done, total=total, label=label)

    def metric(self, step: int, values: dict[str, float]) -> None:
        self.emit("metric", step=step, values=values)

    def sample(self, **fields: Any) -> None:
        self.emit("sample", **fields)

    def checkpoint(self, step: int, path: str) -> None:
        self.emit("checkpoint", step=step, path=path)

    def log(self, level: str, message: str) -> None:
        self.emit("log", level=level, message=message)

    def result(
        self, *, adapter: str | None = None, metrics: dict | None = None, **more: Any
    ) -> None:
        if self.outcome:
            more["outcome"] = self.outcome
        self.emit("result", adapter=adapter, metrics=metrics or {}, peak=peak_memory(), **more)

    def error(self, message: str, traceback: str = "", cause: str = "") -> None:
        """`cause` is "memory" or "disk" if there was too little of it."""
        self.emit("error", message=message, traceback=traceback, cause=cause, peak=peak_memory())
