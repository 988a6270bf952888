"""Spans that come after those of their run were removed: they add to the stored run and never
replace it. Pure.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from apps.trajectories import costs
from apps.trajectories.otlp.assemble import MAX_STEPS, Run
from apps.trajectories.otlp.threads import print_of

Row = dict[str, Any]
SpanKey = tuple[str, str]  # trace id and span id


def spans_of(metadata: dict[str, Any]) -> list[SpanKey]:
    """The spans that a stored run was made of, by start; of a very long run the first MAX_STEPS."""
    steps, trace_ids = metadata.get("steps"), metadata.get("trace_ids")
    first = trace_ids[0] if isinstance(trace_ids, list) and trace_ids else ""
    found = [step for step in steps if isinstance(step, dict)] if isinstance(steps, list) else []
    return [(str(step.get("trace_id", first)), str(step.get("span_id"))) for step in found]


def knows_more(metadata: dict[str, Any], at_hand: set[SpanKey]) -> bool:
    """Whether a stored run was made of something that is not among the spans at hand."""
    return metadata.get("source") != "otlp" or not at_hand.issuperset(spans_of(metadata))


def began_late(metadata: dict[str, Any]) -> bool:
    return metadata.get("began_late") is True


def mark(run: Run) -> None:
    """Notes of a run that it began when other spans of its trace were gone."""
    run.row["metadata"]["began_late"] = True


def belongs_to(run: Run, parents: set[SpanKey], stored: Row) -> bool:
    """Whether late spans are a part of a stored run: one hangs below it, it goes on with what it
    said, or it says nothing.

    What a client sent as a row under the trace's id is the run of the trace.
    """
    return (
        stored["metadata"].get("source") != "otlp"
        or not parents.isdisjoint(spans_of(stored["metadata"]))
        or _goes_on(stored["messages"], run.row["messages"])
        or not any(step["kind"] in ("model", "agent") for step in run.row["metadata"]["steps"])
    )


def extended(stored: Row, late: Row) -> Row:
    """The stored run with what later spans add: steps, errors, tokens, and messages where these go
    on with its own.
    """
    known, added = stored["metadata"], late["metadata"]
    grows = _goes_on(stored["messages"], late["messages"])
    row = stored | ({"messages": late["messages"], "outcome": late["outcome"]} if grows else {})
    row["usage"] = costs.usage_of_calls(
        [call for part in (stored, late) for call in _calls(part["usage"])]
    )
    row["ended_at"] = max(
        filter(None, (stored.get("ended_at"), late.get("ended_at"))), default=None, key=_time
    )
    if row["ended_at"] and stored.get("started_at"):
        row["latency_ms"] = round(_ms_between(stored["started_at"], row["ended_at"]), 3)
    shift = _ms_between(stored["started_at"], late["started_at"]) if "started_at" in late else 0.0
    steps = [
        {key: value for key, value in step.items() if grows or key != "message_index"}
        | {"start_ms": round(step["start_ms"] + shift, 3), "trace_id": trace_id}
        for step, (trace_id, _) in zip(added["steps"], spans_of(added), strict=True)
    ]
    row["metadata"] = known | {
        "steps": [*known.get("steps", ()), *steps][:MAX_STEPS],
        "span_count": known.get("span_count", 0) + len(steps),
        "late_spans": known.get("late_spans", 0) + len(steps),
    }
    for name in ("errors", "evaluations", "trace_ids"):
        if found := [
            *known.get(name, ()),
            *(item for item in added.get(name, ()) if item not in known.get(name, ())),
        ]:
            row["metadata"][name] = found[:1_000]
    return {name: value for name, value in row.items() if value is not None}


def _calls(usage: dict[str, Any]) -> list[dict[str, Any]]:
    """The model calls of a row's usage; what it says of all together counts as one."""
    return usage.get("calls") or ([{"usage": usage}] if usage else [])


def _goes_on(earlier: list[dict], later: list[dict]) -> bool:
    """Whether a conversation begins with all of another and says more."""
    one, other = ([print_of(message) for message in messages] for messages in (earlier, later))
    return len(other) > len(one) and other[: len(one)] == one


def _time(value: Any) -> datetime:
    return value if isinstance(value, datetime) else datetime.fromisoformat(value)


def _ms_between(start: Any, end: Any) -> float:
    return max((_time(end) - _time(start)).total_seconds() * 1000, 0.0)
