"""Spans as objects, one a record: what Phoenix exports (its REST API, `get_spans_dataframe` as
Parquet or CSV) and what OpenTelemetry's console exporter prints. Assembled as OTLP is.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

from apps.trajectories.decoding import RowError
from apps.trajectories.importers.otlp_files import MAX_SPANS, assembled
from apps.trajectories.importers.paths import loose
from apps.trajectories.importers.records import ImportError_, Record
from apps.trajectories.importers.shapes import Row, first, items, moment, obj, require_object, text
from apps.trajectories.otlp import Span
from apps.trajectories.otlp.spans import Event
from apps.trajectories.values import kept

KIND = "openinference.span.kind"
STATUS = {"OK": 1, "ERROR": 2}
AS_JSON = (
    "metadata",
    "input.value",
    "output.value",
    "llm.invocation_parameters",
    "llm.prompt_template.variables",
    "tool.parameters",
    "arguments",
    "document.metadata",
    "json_schema",
)  # attributes that are the text of an object, also where an export has unpacked it


def rows(records: Iterable[Record], name: str) -> Iterator[Row]:
    spans: list[Span] = []
    for position, record in records:
        try:
            spans.append(_span(require_object(record)))
        except RowError as error:
            yield position, error
        if len(spans) > MAX_SPANS:
            raise ImportError_(
                f"{name} has more than {MAX_SPANS:,} spans. Split it, whole traces together."
            )
    yield from assembled(spans, [])


def _span(record: dict) -> Span:
    """Raises RowError without ids."""
    record = {key: loose(value) for key, value in record.items()}
    context = obj(record.get("context"))
    trace, span = (
        _hex(first(context, key) or record.get(f"context.{key}")) for key in ("trace_id", "span_id")
    )
    if not trace or not span:
        raise RowError("context", "a span without trace_id and span_id")
    status = obj(record.get("status"))
    code = text(first(record, "status_code") or status.get("status_code")).upper()
    begin, end = _ns(record.get("start_time")), _ns(record.get("end_time"))
    return Span(
        trace_id=trace,
        span_id=span,
        parent_id=_hex(first(record, "parent_id", "parent_span_id")),
        name=text(record.get("name"), 500),
        start_ns=begin,
        end_ns=end,
        status_code=STATUS.get(code.rpartition(".")[2], 0),
        status_message=text(first(record, "status_message") or status.get("description")),
        attributes=_attributes(record),
        events=[_event(obj(one)) for one in items(record.get("events"))],
        resource=obj(kept(obj(obj(record.get("resource")).get("attributes")))),
    )


def _hex(value: Any) -> str:
    return text(value).lower().removeprefix("0x")


def _ns(value: Any) -> int:
    at = moment(value)
    return int(datetime.fromisoformat(at).timestamp() * 1_000_000) * 1000 if at else 0


def _attributes(record: dict) -> dict[str, Any]:
    """Flat, by OpenTelemetry's dotted names, whether they were nested, or columns of a table."""
    found: dict[str, Any] = {}
    _flatten(record.get("attributes"), "", found)
    for name, value in record.items():
        if name.startswith("attributes."):
            _flatten(value, name.removeprefix("attributes."), found)
    kind = text(record.get("span_kind"))
    if kind and KIND not in found:
        found[KIND] = kind
    return found


def _flatten(value: Any, name: str, found: dict[str, Any]) -> None:
    if isinstance(value, dict | list) and name.endswith(AS_JSON):
        found[name] = json.dumps(value, ensure_ascii=False)
    elif isinstance(value, dict):
        for key, inner in value.items():
            _flatten(inner, f"{name}.{key}" if name else str(key), found)
    elif isinstance(value, list) and any(isinstance(inner, dict) for inner in value):
        for at, inner in enumerate(value):
            _flatten(inner, f"{name}.{at}", found)
    elif value is not None and name:
        found[name] = kept(value)


def _event(event: dict) -> Event:
    attributes: dict[str, Any] = {}
    _flatten(event.get("attributes"), "", attributes)
    return Event(
        name=text(event.get("name"), 200),
        time_ns=_ns(event.get("timestamp")),
        attributes=attributes,
    )
