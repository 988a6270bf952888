"""One span of a run: what its steps keep of it, and the span itself as long as it is there
(`assembly.KEPT`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from apps.trajectories import contents
from apps.trajectories.models import SpanBatch, Trajectory
from apps.trajectories.otlp import LogRecord, Span
from apps.trajectories.otlp.conventions import ANSWER, GIVEN, Reading, read
from apps.trajectories.otlp.conventions.base import first
from apps.trajectories.traces import decode
from workers.lib.token_usage import TOKENS

OF_A_STEP = (
    "span_id",
    "parent_id",
    "trace_id",
    "name",
    "kind",
    "start_ms",
    "duration_ms",
    "error",
    "message_index",
    "model",
    "request_model",
    "provider",
    *TOKENS,
    "cost_usd",
    "cost_basis",
    "tool",
    "agent",
    "interrupted",
    "repeats",
)


@dataclass
class Opened:
    """What is known of a span. `input` and `output` are messages or values; `attributes` are by
    name; `stored` says that the span itself is there, and not only what the run keeps of it."""

    input: Any = None
    output: Any = None
    attributes: dict[str, Any] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    resource: dict[str, Any] = field(default_factory=dict)
    error_type: str = ""
    stacktrace: str = ""
    reading: Reading | None = None
    stored: bool = False


def open_span(row: Trajectory, metadata: dict[str, Any], step: dict[str, Any]) -> Opened:
    """Of a step of this run."""
    found = find(row, metadata, step)
    if found is None:
        return _remembered(metadata, step)
    span, logs = found
    reading = read(span, logs)
    given, answer = _input_and_output(span, reading)
    return Opened(
        input=given,
        output=answer,
        attributes=span.attributes,
        events=[
            *(msgspec.to_builtins(event) for event in span.events),
            *(
                {
                    "name": log.event_name or "log",
                    "time_ns": log.time_ns,
                    "body": log.body,
                    "attributes": log.attributes,
                }
                for log in logs
            ),
        ],
        resource=span.resource,
        error_type=reading.error.type if reading.error else "",
        stacktrace=reading.error.stacktrace if reading.error else "",
        reading=reading,
        stored=True,
    )


def find(
    row: Trajectory, metadata: dict[str, Any], step: dict[str, Any]
) -> tuple[Span, list[LogRecord]] | None:
    """The span and its log records; None if it was removed, or never came over OTLP."""
    span_id, traces = step.get("span_id"), metadata.get("trace_ids")
    trace_id = step.get("trace_id") or (traces[0] if isinstance(traces, list) and traces else None)
    if (
        metadata.get("source") != "otlp"
        or not isinstance(span_id, str)
        or not isinstance(trace_id, str)
    ):
        return None
    batches = SpanBatch.objects.filter(project=row.project_id, trace_id=trace_id).order_by("pk")
    span, logs = None, []
    for data in batches.values_list("data", flat=True).iterator(chunk_size=50):
        part = decode(contents.decompress(data))
        span = next((one for one in part.spans if one.span_id == span_id), span)
        logs += [log for log in part.logs if log.span_id == span_id]
    return (span, sorted(logs, key=lambda log: log.time_ns)) if span else None


def _input_and_output(span: Span, reading: Reading) -> tuple[Any, Any]:
    """Messages of a model call or an agent, arguments and result of a tool, else the raw values."""
    if reading.kind == "tool":
        return reading.tool_arguments, reading.tool_result
    raw = first(span.attributes, GIVEN), first(span.attributes, ANSWER)
    return reading.input or raw[0], reading.output or raw[1]


def _remembered(metadata: dict[str, Any], step: dict[str, Any]) -> Opened:
    """What the run keeps: a step may have what its sender put there (input, output,
    attributes…).
    """
    by_span, errors = metadata.get("attributes_by_span"), metadata.get("errors")
    own = (
        by_span.get(step.get("span_id"))
        if isinstance(by_span, dict) and isinstance(step.get("span_id"), str)
        else None
    )
    error = next(
        (
            (
                one
                for one in errors
                if isinstance(one, dict) and one.get("span_id") == step.get("span_id")
            )
            if isinstance(errors, list)
            else iter(())
        ),
        {},
    )
    sent = step.get("attributes")
    rest = {
        name: value
        for name, value in step.items()
        if name not in (*OF_A_STEP, "input", "output", "attributes")
    }
    return Opened(
        input=step.get("input"),
        output=step.get("output"),
        attributes=rest
        | (sent if isinstance(sent, dict) else {})
        | (own if isinstance(own, dict) else {}),
        error_type=str(error.get("type") or ""),
        stacktrace=str(error.get("stacktrace") or ""),
    )
