"""Traces that were accepted and gave no run, and why. This is found out from their spans when
somebody asks: the door writes nothing for it.
"""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime, timedelta

from django.utils import timezone
from msgspec import Struct

from apps.core.models import Project
from apps.trajectories.models import SpanBatch, Trace
from apps.trajectories.otlp import LogRecord, Span, assemble
from apps.trajectories.traces import Packed, unpacked

SHOWN = 100  # traces that are looked into
LATEST = 2_000  # of the project's, among which they are
SINCE = timedelta(days=3)
NAMES = 5


class SilentTrace(Struct):
    """A trace without a run. `scopes`: its instrumentations; `spans` counts them."""

    trace_id: str
    at: datetime
    spans: int
    scopes: list[str]
    why: str


def silent_traces(project: Project) -> list[SilentTrace]:
    """Of the latest traces of three days those that gave no run, the newest first."""
    rows = Trace.objects.filter(project=project, touched_at__gte=timezone.now() - SINCE)
    latest = rows.order_by("-touched_at").values_list("trace_id", "touched_at", "due_at", "runs")
    silent = {
        trace_id: touched_at
        for trace_id, touched_at, due_at, runs in latest.filter(problem="", forgotten=False)[
            :LATEST
        ]
        if due_at is None and not runs
    }
    chosen = list(silent)[:SHOWN]
    held: defaultdict[str, list[Packed]] = defaultdict(list)
    for batch in SpanBatch.objects.filter(project=project, trace_id__in=chosen).order_by("pk"):
        held[batch.trace_id].append(unpacked(batch))
    return [_explained(name, silent[name], held[name]) for name in chosen if held[name]]


def _explained(trace_id: str, at: datetime, parts: list[Packed]) -> SilentTrace:
    spans = [span for part in parts for span in part.spans]
    logs = [log for part in parts for log in part.logs]
    scopes = dict.fromkeys(
        " ".join(filter(None, (item.scope.name, item.scope.version))) for item in (*spans, *logs)
    )
    return SilentTrace(trace_id, at, len(spans), [*filter(None, scopes)][:NAMES], _why(spans, logs))


def _why(spans: list[Span], logs: list[LogRecord]) -> str:
    if not spans:
        return "Only log records came, and no span of a model, tool or agent that they are about."
    if assemble(spans, logs):
        return "Its run was deleted, or is another trace's."
    names = list(dict.fromkeys(span.name for span in spans))
    shown = ", ".join(f"“{name[:60]}”" for name in names[:NAMES])
    more = f" and {len(names) - NAMES} more" if len(names) > NAMES else ""
    return f"No span says that a model, a tool or an agent was called: {shown}{more}."
