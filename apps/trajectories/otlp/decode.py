"""OTLP bodies, protobuf or JSON, to spans and log records. A bad span is left out and counted; its
neighbours stay.
"""

from __future__ import annotations

import base64
import binascii
import json as stdlib_json
import math
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from typing import Any, Generic, TypeVar

import msgspec
from google.protobuf.message import DecodeError as ProtobufError
from google.protobuf.message import Message
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from apps.trajectories.otlp.conventions import KIND_NAMES
from apps.trajectories.otlp.conventions.coding_agents import is_internal
from apps.trajectories.otlp.silence import Silence, is_heard
from apps.trajectories.otlp.spans import Event, Link, LogRecord, Scope, Span
from apps.trajectories.values import tidy

MAX_DEPTH = 32
MAX_NS = 2**63 - 1
STATUS = {"UNSET": 0, "OK": 1, "ERROR": 2}
KINDS = {"UNSPECIFIED": 0, "INTERNAL": 1, "SERVER": 2, "CLIENT": 3, "PRODUCER": 4, "CONSUMER": 5}
VALUE_FORM = 'attribute values are written {"stringValue": "…"}, {"intValue": "1"} …'
Item = TypeVar("Item", Span, LogRecord)


class DecodeError(Exception):
    """A body that is not an OTLP request; the text is one sentence for the sender."""


class Decoded(msgspec.Struct, Generic[Item]):
    """What was read, and for OTLP's partial success how many were left out and why the first of
    them was; `internal`: how many are an agent's internal tracing, of which nothing is kept.
    """

    items: list[Item]
    rejected: int = 0
    reason: str = ""
    internal: int = 0
    silence: Silence = msgspec.field(default_factory=Silence)  # of a request that is only checked


class _BadItem(Exception):
    """One span or log record that cannot be kept."""


def decode_traces(body: bytes, json: bool) -> Decoded[Span]:
    """The spans of an ExportTraceServiceRequest. Raises DecodeError."""
    if not json:
        items = _protobuf_items(_protobuf(body, ExportTraceServiceRequest).resource_spans, "spans")
        return _count_internal(_collect(items, _pb_span))
    document = _json(body)
    unread: list[str] = []
    decoded = _collect(_json_items(document, "Spans", "spans"), partial(_json_span, unread=unread))
    _count_internal(decoded)
    _with_unread(decoded, unread)
    if (
        not decoded.reason
        and not decoded.items
        and not decoded.rejected
        and _list(document, "resourceSpans")
    ):
        decoded.reason = (
            "the request has no spans; they belong into resourceSpans[].scopeSpans[].spans"
        )
    return decoded


def decode_logs(body: bytes, json: bool) -> Decoded[LogRecord]:
    """The records of an ExportLogsServiceRequest. Raises DecodeError."""
    if not json:
        return _collect(
            _protobuf_items(_protobuf(body, ExportLogsServiceRequest).resource_logs, "logs"),
            _pb_log,
        )
    unread: list[str] = []
    records = _json_items(_json(body), "Logs", "logRecords")
    return _with_unread(_collect(records, partial(_json_log, unread=unread)), unread)


def _count_internal(decoded: Decoded[Span]) -> Decoded[Span]:
    decoded.internal = sum(is_internal(span.scope.name, span.attributes) for span in decoded.items)
    return decoded


def _with_unread(decoded: Decoded[Item], names: list[str]) -> Decoded[Item]:
    if names and not decoded.reason:
        decoded.reason = f"the value of {names[0][:100]} was not read: {VALUE_FORM}"
    return decoded


def check_traces(body: bytes) -> Decoded[Span]:
    """What `decode_traces` would say of a protobuf body, without its items and in a tenth of the
    time. Only spans of traces in which no attribute names a kind are read for `silence`.
    """
    checked: Decoded[Span] = Decoded([])
    traces: dict[bytes, list[tuple[Any, Scope]] | None] = {}  # None: a span names its kind
    for entry in _protobuf(body, ExportTraceServiceRequest).resource_spans:
        for group in entry.scope_spans:
            for raw in group.spans:
                try:
                    _pb_ids(raw)
                    own = traces.setdefault(raw.trace_id, [])
                    is_codex = is_internal(group.scope.name, (p.key for p in raw.attributes))
                    checked.internal += is_codex
                    if own is None or is_codex:
                        continue
                    if any(pair.key in KIND_NAMES for pair in raw.attributes):
                        traces[raw.trace_id] = None
                    else:
                        own.append((raw, Scope(group.scope.name)))
                except _BadItem as error:
                    checked.rejected += 1
                    checked.reason = checked.reason or str(error)
    checked.silence = _silence(traces)
    return checked


def _silence(traces: dict[bytes, list[tuple[Any, Scope]] | None]) -> Silence:
    unheard = [
        own
        for own in traces.values()
        if own and not (any(_may_call(raw) for raw, _ in own) and is_heard(_read(own)))
    ]
    if len(unheard) < len(traces):
        unheard = [own for own in unheard if any(not raw.parent_span_id for raw, _ in own)]
    return Silence(len(traces), len(unheard))


def _may_call(raw: Any) -> bool:
    """Whether a span has a sign of a model call: roles of messages, or tokens."""
    return bool(raw.events) or any(
        "oken" in pair.key
        or "usage" in pair.key
        or "role" in pair.value.string_value
        or pair.value.WhichOneof("value") in ("array_value", "kvlist_value")
        for pair in raw.attributes
    )


def _read(found: list[tuple[Any, Scope]]) -> list[Span]:
    return [_pb_span(raw, {}, scope) for raw, scope in found]


def check_logs(body: bytes) -> Decoded[LogRecord]:
    """As `check_traces`, for `decode_logs`: a record without ids belongs to no span and is not
    bad.
    """
    _protobuf(body, ExportLogsServiceRequest)
    return Decoded([])


def _collect(
    found: Iterable[tuple[Any, dict, Scope]], build: Callable[[Any, dict, Scope], Item]
) -> Decoded[Item]:
    decoded: Decoded[Item] = Decoded([])
    for raw, resource, scope in found:
        try:
            decoded.items.append(build(raw, resource, scope))
        except _BadItem as error:
            decoded.rejected += 1
            decoded.reason = decoded.reason or str(error)
    return decoded


def _text(value: Any) -> str:
    return tidy(value) if isinstance(value, str) else ""


def _finite(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


# Protobuf


def _protobuf(body: bytes, form: type[Message]) -> Any:
    try:
        return form.FromString(body)
    except ProtobufError as error:
        raise DecodeError(
            f"The body is not an OTLP {form.__name__} in protobuf, or it is cut off."
        ) from error


def _protobuf_items(resources: Any, signal: str) -> Iterator[tuple[Any, dict, Scope]]:
    for entry in resources:
        resource = _pb_attributes(entry.resource.attributes)
        for group in entry.scope_spans if signal == "spans" else entry.scope_logs:
            scope = Scope(
                _text(group.scope.name), _text(group.scope.version), _text(group.schema_url)
            )
            for raw in group.spans if signal == "spans" else group.log_records:
                yield raw, resource, scope


def _pb_attributes(pairs: Any, depth: int = 0) -> dict[str, Any]:
    found = {}
    for pair in pairs:
        value = pair.value
        text = value.string_value  # "" also where it is something else
        found[tidy(pair.key)] = tidy(text) if text else _pb_value(value, depth)
    return found


def _pb_value(value: Any, depth: int) -> Any:
    """An AnyValue as plain JSON; bytes become base64, what is nested too deep a note."""
    which = value.WhichOneof("value")
    if which == "string_value":
        return tidy(value.string_value)
    if which is None:
        return None
    plain = getattr(value, which)
    if which == "double_value":
        return _finite(plain)
    if which == "bytes_value":
        return base64.b64encode(plain).decode()
    if which in ("array_value", "kvlist_value"):
        if depth >= MAX_DEPTH:
            return f"(nested deeper than {MAX_DEPTH} levels)"
        if which == "array_value":
            return [_pb_value(item, depth + 1) for item in plain.values]
        return _pb_attributes(plain.values, depth + 1)
    return plain


def _pb_ids(raw: Any) -> tuple[str, str]:
    if (
        len(raw.trace_id) != 16
        or len(raw.span_id) != 8
        or not any(raw.trace_id)
        or not any(raw.span_id)
    ):
        raise _BadItem("a span without a valid trace id and span id")
    return raw.trace_id.hex(), raw.span_id.hex()


def _pb_span(raw: Any, resource: dict, scope: Scope) -> Span:
    trace_id, span_id = _pb_ids(raw)
    return Span(
        trace_id,
        span_id,
        (
            raw.parent_span_id.hex()
            if len(raw.parent_span_id) == 8 and any(raw.parent_span_id)
            else ""
        ),
        _text(raw.name),
        raw.kind,
        min(raw.start_time_unix_nano, MAX_NS),
        min(raw.end_time_unix_nano, MAX_NS),
        raw.status.code,
        _text(raw.status.message),
        _pb_attributes(raw.attributes),
        [
            Event(_text(e.name), min(e.time_unix_nano, MAX_NS), _pb_attributes(e.attributes))
            for e in raw.events
        ],
        [
            Link(link.trace_id.hex(), link.span_id.hex(), _pb_attributes(link.attributes))
            for link in raw.links
        ],
        resource,
        scope,
    )


def _pb_log(raw: Any, resource: dict, scope: Scope) -> LogRecord:
    attributes = _pb_attributes(raw.attributes)
    return LogRecord(
        raw.trace_id.hex() if any(raw.trace_id) else "",
        raw.span_id.hex() if any(raw.span_id) else "",
        min(raw.time_unix_nano or raw.observed_time_unix_nano, MAX_NS),
        _text(raw.event_name) or _text(attributes.get("event.name")),
        _pb_value(raw.body, 0),
        attributes,
        resource,
        scope,
    )


# JSON


def _json(body: bytes) -> dict:
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        document = _lenient_json(body)
    if not isinstance(document, dict):
        raise DecodeError("The body is JSON, but not an OTLP request: it must be an object.")
    return document


def _lenient_json(body: bytes) -> Any:
    """JSON with what strict readers refuse but real senders post: NaN and lone surrogates."""
    try:
        return stdlib_json.loads(body)
    except RecursionError as error:
        raise DecodeError("The body is JSON that is nested too deep.") from error
    except ValueError as error:
        raise DecodeError("The body is not JSON, or it is cut off.") from error


def _get(value: Any, name: str) -> Any:
    """A field by its camelCase name, or by the snake_case or PascalCase of it."""
    if not isinstance(value, dict):
        return None
    if name in value:
        return value[name]
    snake = _snake(name)
    return value[snake] if snake in value else value.get(name[0].upper() + name[1:])


@cache
def _snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)


def _list(value: Any, name: str) -> list:
    found = _get(value, name)
    return found if isinstance(found, list) else []


def _json_items(document: dict, signal: str, items: str) -> Iterator[tuple[Any, dict, Scope]]:
    if document and not isinstance(_get(document, f"resource{signal}"), list):
        raise DecodeError(
            f"The body is JSON, but not an OTLP request: it has no list resource{signal}."
        )
    for entry in _list(document, f"resource{signal}"):
        resource = _json_attributes(_get(_get(entry, "resource"), "attributes"))
        for group in _list(entry, f"scope{signal}") or _list(
            entry, f"instrumentationLibrary{signal}"
        ):
            head = _get(group, "scope")
            scope = Scope(
                _text(_get(head, "name")),
                _text(_get(head, "version")),
                _text(_get(group, "schemaUrl")),
            )
            for raw in _list(group, items):
                yield raw, resource, scope


def _json_attributes(sent: Any, depth: int = 0, unread: list[str] | None = None) -> dict[str, Any]:
    """Attributes as OTLP's list of keys and values, as a list of pairs, or as a plain object.

    `unread` gets the names whose values are in no known form.
    """
    attributes: dict[str, Any] = {}
    for key, value in _pairs(sent):
        attributes[key] = _json_value(value, depth)
        if unread is not None and attributes[key] is None and _says_something(value):
            unread.append(key)
    if not attributes and unread is not None and _says_something(sent):
        unread.append("attributes")
    return attributes


def _pairs(sent: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(sent, dict):
        values = {_text(key): value for key, value in sent.items()}
        yield from ((key, _plain_value(value)) for key, value in values.items())
        return
    for pair in sent if isinstance(sent, list) else ():
        if isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str):
            yield _text(pair[0]), _plain_value(pair[1])
        elif isinstance(pair, dict) and isinstance(key := _get(pair, "key"), str):
            yield _text(key), _get(pair, "value")


def _plain_value(value: Any) -> Any:
    """The value of a plain object. One that is an AnyValue is read as such, any other as JSON."""
    if not isinstance(value, dict | list) or (isinstance(value, dict) and _is_any_value(value)):
        return value
    return {"stringValue": stdlib_json.dumps(value)}


def _is_any_value(value: dict) -> bool:
    names = {name.replace("_", "").lower() for name in value if isinstance(name, str)}
    return len(value) == 1 and bool(
        names & (SCALARS.keys() | {"value", "arrayvalue", "kvlistvalue"})
    )


def _says_something(value: Any) -> bool:
    if isinstance(value, dict):
        return any(item is not None for item in value.values())
    return bool(value) if isinstance(value, list | str) else False


def _json_value(value: Any, depth: int) -> Any:
    """An AnyValue of OTLP/JSON as plain JSON, also as Go's encoding/json writes it (`{"Value":
    {"StringValue": "…"}}`). Bare scalars and lists, and `{"type": …, "value": …}`, which some
    senders post, are taken as they are.
    """
    if isinstance(value, (str, bool, int, float)):
        return (
            _text(value)
            if isinstance(value, str)
            else value
            if isinstance(value, bool)
            else _number(value)
        )
    if depth >= MAX_DEPTH and isinstance(value, (dict, list)):
        return f"(nested deeper than {MAX_DEPTH} levels)"
    if isinstance(value, list):
        return [_json_value(item, depth + 1) for item in value]
    if not isinstance(value, dict):
        return None
    if value.keys() == {"type", "value"}:
        return _json_value(value["value"], depth + 1)
    for name, item in value.items():
        kind = name.replace("_", "").lower() if item is not None else ""
        if kind == "value" and len(value) == 1:
            return _json_value(item, depth + 1) if isinstance(item, dict) else None
        if kind == "arrayvalue":
            values = item if isinstance(item, list) else _list(item, "values")
            return [_json_value(inner, depth + 1) for inner in values]
        if kind == "kvlistvalue":
            return _json_attributes(_get(item, "values"), depth + 1)
        if kind in SCALARS:
            return SCALARS[kind](item)
    return None


def _number(value: int | float) -> int | float | str | None:
    return _double(value) if isinstance(value, float) else _integer(value)


def _integer(value: Any) -> int | str | None:
    """An int64, which JSON carries as a string and protobufjs as two halves. What is none stays
    text.
    """
    if isinstance(value, dict) and value.keys() >= {"low", "high"}:
        low, high = value["low"], value["high"]
        if not (isinstance(low, int) and isinstance(high, int)):
            return None
        value = (high << 32) + (low & 0xFFFFFFFF) if abs(high) < 2**31 else None
    if isinstance(value, (str, int, float)):
        try:
            number = int(value)
        except (ValueError, OverflowError):
            return _text(str(value))
        return number if -(2**63) <= number < 2**63 else str(value)[:100]
    return None


def _double(value: Any) -> float | str | None:
    if isinstance(value, (str, int, float)):
        try:
            return _finite(float(value))
        except (ValueError, OverflowError):
            return _text(str(value)[:100])
    return None


SCALARS: dict[str, Callable[[Any], Any]] = {
    "stringvalue": lambda found: _text(found) if isinstance(found, str) else None,
    "intvalue": _integer,
    "boolvalue": lambda found: found if isinstance(found, bool) else None,
    "doublevalue": _double,
    "bytesvalue": _text,
}


def _hex_id(value: Any, size: int) -> str:
    """An id of `size` bytes as hex, from hex (also with `0x`, or as a UUID), from base64 or from a
    list of bytes (Node's Buffer); "" if it is none of these, or all zero.
    """
    if isinstance(value, dict):
        value = value.get("data")
    try:
        if isinstance(value, list):
            raw = bytes(value) if len(value) == size else b""
        elif isinstance(value, str):
            plain = value.lower().removeprefix("0x").replace("-", "")
            is_hex = len(plain) == 2 * size and not value.endswith("=")
            raw = bytes.fromhex(plain) if is_hex else base64.b64decode(value, validate=True)
        else:
            return ""
    except (ValueError, TypeError, binascii.Error):
        return ""
    return raw.hex() if len(raw) == size and any(raw) else ""


def _nanoseconds(value: Any) -> int:
    number = _integer(value)
    return max(number, 0) if isinstance(number, int) else 0


def _enum(value: Any, names: dict[str, int]) -> int:
    if isinstance(value, str):
        return names.get(value.upper().rsplit("_", 1)[-1], 0)
    return value if isinstance(value, int) and 0 <= value <= 5 else 0


def _json_span(raw: Any, resource: dict, scope: Scope, unread: list[str]) -> Span:
    trace_id, span_id = _hex_id(_get(raw, "traceId"), 16), _hex_id(_get(raw, "spanId"), 8)
    if not trace_id or not span_id:
        raise _BadItem("a span without a valid trace id and span id")
    status, here = _get(raw, "status"), []
    attributes = _json_attributes(_get(raw, "attributes"), unread=here)
    if here and len(here) >= len(attributes):
        raise _BadItem(f"a span without any attribute that can be read: {VALUE_FORM}")
    unread += here
    return Span(
        trace_id,
        span_id,
        _hex_id(_get(raw, "parentSpanId"), 8),
        _text(_get(raw, "name")),
        _enum(_get(raw, "kind"), KINDS),
        _nanoseconds(_get(raw, "startTimeUnixNano")),
        _nanoseconds(_get(raw, "endTimeUnixNano")),
        _enum(_get(status, "code"), STATUS),
        _text(_get(status, "message")),
        attributes,
        [_json_event(event, unread) for event in _list(raw, "events")],
        [_json_link(link) for link in _list(raw, "links")],
        resource,
        scope,
    )


def _json_event(raw: Any, unread: list[str]) -> Event:
    return Event(
        _text(_get(raw, "name")),
        _nanoseconds(_get(raw, "timeUnixNano")),
        _json_attributes(_get(raw, "attributes"), unread=unread),
    )


def _json_link(raw: Any) -> Link:
    return Link(
        _hex_id(_get(raw, "traceId"), 16),
        _hex_id(_get(raw, "spanId"), 8),
        _json_attributes(_get(raw, "attributes")),
    )


def _json_log(raw: Any, resource: dict, scope: Scope, unread: list[str]) -> LogRecord:
    if not isinstance(raw, dict):
        raise _BadItem("a log record that is not an object")
    attributes = _json_attributes(_get(raw, "attributes"), unread=unread)
    return LogRecord(
        _hex_id(_get(raw, "traceId"), 16),
        _hex_id(_get(raw, "spanId"), 8),
        _nanoseconds(_get(raw, "timeUnixNano")) or _nanoseconds(_get(raw, "observedTimeUnixNano")),
        _text(_get(raw, "eventName")) or _text(attributes.get("event.name")),
        _json_value(_get(raw, "body"), 0),
        attributes,
        resource,
        scope,
    )
