"""OTLP, the pure half: bodies to spans (`decode`), what a span says (`conventions`), spans to rows
(`assemble`).
"""

from apps.trajectories.otlp.assemble import Run, assemble
from apps.trajectories.otlp.conventions import are_steps, names_a_step
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
from apps.trajectories.otlp.spans import Event, Link, LogRecord, Scope, Span

__all__ = [
    "DecodeError",
    "Decoded",
    "Event",
    "Link",
    "Links",
    "LogRecord",
    "Run",
    "Scope",
    "Span",
    "are_steps",
    "assemble",
    "check_logs",
    "check_traces",
    "decode_logs",
    "decode_traces",
    "names_a_step",
    "placed",
]
