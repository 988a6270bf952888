"""OTLP, the pure half: bodies to spans (`decode`), what a span says (`conventions`), spans to rows
(`assemble`).
"""

from apps.trajectories.otlp.assemble import Run, assemble
from apps.trajectories.otlp.decode import (
    Decoded,
    DecodeError,
    check_logs,
    check_traces,
    decode_logs,
    decode_traces,
)
from apps.trajectories.otlp.events import placed
from apps.trajectories.otlp.links import Links
from apps.trajectories.otlp.shape import TAG as BY_SHAPE
from apps.trajectories.otlp.silence import Silence, silence_of
from apps.trajectories.otlp.spans import Event, Link, LogRecord, Scope, Span

__all__ = [
    "BY_SHAPE",
    "DecodeError",
    "Decoded",
    "Event",
    "Link",
    "Links",
    "LogRecord",
    "Run",
    "Scope",
    "Silence",
    "Span",
    "assemble",
    "check_logs",
    "check_traces",
    "decode_logs",
    "decode_traces",
    "placed",
    "silence_of",
]
