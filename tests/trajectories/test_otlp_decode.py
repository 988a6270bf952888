"""OTLP bodies of every kind: what is good is read, what is bad is one clear sentence, and never
anything else.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from apps.trajectories.otlp import DecodeError, LogRecord, Scope, Span, decode_logs, decode_traces

TRACE, SPAN, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", "00f067aa0ba902b7"
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=12,
)
FIELDS = st.sampled_from(
    [
        "resourceSpans",
        "resource_spans",
        "scopeSpans",
        "spans",
        "resource",
        "scope",
        "attributes",
        "traceId",
        "spanId",
        "parentSpanId",
        "name",
        "kind",
        "startTimeUnixNano",
        "status",
        "code",
        "events",
        "links",
        "key",
        "value",
        "stringValue",
        "intValue",
        "doubleValue",
        "arrayValue",
        "kvlistValue",
        "values",
        "bytesValue",
        "boolValue",
    ]
)
OTLP_LIKE = st.recursive(
    ANY_JSON | st.sampled_from([TRACE, SPAN, "NaN", "9" * 50]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELDS, inner, max_size=6),
    max_leaves=30,
)


def body(*spans: dict, **more: Any) -> bytes:
    scope = {"scope": {"name": "s", "version": "1"}, "schemaUrl": "u", "spans": list(spans)}
    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": "a"}}]}
    return json.dumps(
        {"resourceSpans": [{"resource": resource, "scopeSpans": [scope]}], **more}
    ).encode()


def span(**fields: Any) -> dict:
    return {"traceId": TRACE, "spanId": SPAN, "name": "n", **fields}


def protobuf() -> ExportTraceServiceRequest:
    request = ExportTraceServiceRequest()
    group = request.resource_spans.add().scope_spans.add()
    raw = group.spans.add(trace_id=bytes.fromhex(TRACE), span_id=bytes.fromhex(SPAN), name="n\x00")
    raw.attributes.append(KeyValue(key="bytes", value=AnyValue(bytes_value=b"\xff\x00")))
    raw.attributes.append(KeyValue(key="nan", value=AnyValue(double_value=float("nan"))))
    raw.attributes.append(
        KeyValue(key="list", value={"array_value": {"values": [{"int_value": 1}, {}]}})
    )
    raw.events.add(name="e", time_unix_nano=5)
    raw.status.code, raw.end_time_unix_nano = 2, 2**64 - 1
    return request


def test_it_reads_json_with_hex_ids_and_numbers_in_strings() -> None:
    sent = span(
        parentSpanId=PARENT,
        kind="SPAN_KIND_CLIENT",
        startTimeUnixNano="1700000000000000000",
        endTimeUnixNano=1700000000000000001,
        status={"code": "STATUS_CODE_ERROR", "message": "m"},
        attributes=[
            {"key": "i", "value": {"intValue": "7"}},
            {"key": "d", "value": {"doubleValue": 0.5}},
            {"key": "b", "value": {"boolValue": False}},
            {"key": "l", "value": {"arrayValue": {"values": [{"stringValue": "x"}]}}},
            {
                "key": "k",
                "value": {"kvlistValue": {"values": [{"key": "in", "value": {"intValue": 1}}]}},
            },
        ],
        events=[{"name": "e", "timeUnixNano": "3", "attributes": []}],
        links=[{"traceId": TRACE, "spanId": PARENT}],
    )
    decoded = decode_traces(body(sent), json=True)
    (read,) = decoded.items
    assert (read.trace_id, read.span_id, read.parent_id, read.kind) == (TRACE, SPAN, PARENT, 3)
    assert (read.start_ns, read.end_ns) == (1700000000000000000, 1700000000000000001)
    assert (read.status_code, read.status_message) == (2, "m")
    assert read.attributes == {"i": 7, "d": 0.5, "b": False, "l": ["x"], "k": {"in": 1}}
    assert read.events[0].time_ns == 3 and read.links[0].span_id == PARENT
    assert read.resource == {"service.name": "a"} and read.scope == Scope("s", "1", "u")
    assert msgspec.json.decode(msgspec.json.encode(read), type=Span) == read


def test_it_takes_snake_case_and_base64_ids() -> None:
    sent = {
        "trace_id": base64.b64encode(bytes.fromhex(TRACE)).decode(),
        "span_id": base64.b64encode(bytes.fromhex(SPAN)).decode(),
        "start_time_unix_nano": "4",
        "attributes": [{"key": "a", "value": {"string_value": "b"}}],
    }
    request = {"resource_spans": [{"scope_spans": [{"spans": [sent]}]}]}
    (read,) = decode_traces(json.dumps(request).encode(), json=True).items
    assert (read.trace_id, read.span_id, read.start_ns, read.attributes) == (
        TRACE,
        SPAN,
        4,
        {"a": "b"},
    )


GO = {
    "text": {"Value": {"StringValue": "b"}},
    "number": {"Value": {"IntValue": 7}},
    "list": {"Value": {"ArrayValue": {"values": [{"Value": {"BoolValue": True}}]}}},
    "object": {
        "Value": {
            "KvlistValue": {"values": [{"key": "x", "value": {"Value": {"DoubleValue": 0.5}}}]}
        }
    },
    "empty": {"Value": None},
    "nothing": {},
}


def test_it_reads_what_go_and_rust_make_of_the_messages() -> None:
    expected = {
        "text": "b",
        "number": 7,
        "list": [True],
        "object": {"x": 0.5},
        "empty": None,
        "nothing": None,
    }
    rust = json.loads(json.dumps(GO).replace('"Value"', '"value"'))
    for values in (GO, rust):
        sent = span(attributes=[{"key": key, "value": value} for key, value in values.items()])
        decoded = decode_traces(body(sent), json=True)
        assert (decoded.items[0].attributes, decoded.rejected, decoded.reason) == (expected, 0, "")
    pascal = json.dumps(
        {
            "ResourceSpans": [
                {"ScopeSpans": [{"Spans": [{"TraceId": TRACE, "SpanId": SPAN, "Name": "n"}]}]}
            ]
        }
    )
    assert decode_traces(pascal.encode(), json=True).items[0].name == "n"


ANY, OBJECT = {"stringValue": "b"}, {"stringValue": '{"x": [1]}'}
FORMS = {
    "an object": {"a": "b", "n": 7, "o": {"x": [1]}},
    "an object of AnyValues": {
        "a": ANY,
        "n": {"intValue": "7"},
        "o": {"stringValue": '{"x": [1]}'},
    },
    "pairs": [["a", "b"], ["n", 7], ["o", {"x": [1]}]],
    "typed values": [
        {"key": "a", "value": {"type": "STRING", "value": "b"}},
        {"key": "n", "value": {"type": "INT64", "value": 7}},
        {"key": "o", "value": {"type": "STRING", "value": '{"x": [1]}'}},
    ],
    "halves of numbers": [
        {"key": "a", "value": ANY},
        {"key": "n", "value": {"intValue": {"low": 7, "high": 0, "unsigned": False}}},
        {"key": "o", "value": OBJECT},
    ],
}


@pytest.mark.parametrize("sent", FORMS.values(), ids=FORMS)
def test_attributes_are_read_in_other_forms_of_json(sent: Any) -> None:
    event = {"name": "e", "attributes": sent}
    request = json.loads(body(span(attributes=sent, events=[event])))
    request["resourceSpans"][0]["resource"]["attributes"] = sent
    decoded = decode_traces(json.dumps(request).encode(), json=True)
    read = decoded.items[0]
    assert read.attributes == {"a": "b", "n": 7, "o": '{"x": [1]}'} and not decoded.reason
    assert read.events[0].attributes == read.resource == read.attributes


@pytest.mark.parametrize("sent", ["a=b", [{"name": "a", "value": "b"}], [{"a": "b"}]])
def test_attributes_in_no_known_form_are_told(sent: Any) -> None:
    decoded = decode_traces(body(span(attributes=sent)), json=True)
    assert (decoded.items, decoded.rejected) == ([], 1) and "can be read" in decoded.reason
    records = [{"attributes": sent, "traceId": TRACE}]
    logs = {"resourceLogs": [{"scopeLogs": [{"logRecords": records}]}]}
    assert "was not read" in decode_logs(json.dumps(logs).encode(), json=True).reason


@pytest.mark.parametrize(
    "form",
    [
        lambda plain: f"0x{plain}",
        lambda plain: list(bytes.fromhex(plain)),
        lambda plain: {"type": "Buffer", "data": list(bytes.fromhex(plain))},
    ],
)
def test_ids_are_read_in_other_forms(form: Callable[[str], Any]) -> None:
    (read,) = decode_traces(body(span(traceId=form(TRACE), spanId=form(SPAN))), json=True).items
    assert (read.trace_id, read.span_id) == (TRACE, SPAN)


def test_values_that_are_not_read_are_told() -> None:
    unknown = {"key": "a", "value": {"text": "b"}}
    decoded = decode_traces(body(span(attributes=[unknown])), json=True)
    assert (decoded.items, decoded.rejected) == ([], 1) and '{"stringValue": "…"}' in decoded.reason
    decoded = decode_traces(
        body(span(attributes=[unknown, {"key": "c", "value": {"stringValue": "d"}}])), json=True
    )
    assert decoded.items[0].attributes == {"a": None, "c": "d"}
    assert decoded.rejected == 0 and decoded.reason.startswith("the value of a was not read")
    decoded = decode_traces(b'{"resourceSpans": [{"scope_span": []}]}', json=True)
    assert decoded.rejected == 0 and "no spans" in decoded.reason


def test_it_reads_protobuf_and_cleans_it() -> None:
    (read,) = decode_traces(protobuf().SerializeToString(), json=False).items
    assert (read.trace_id, read.span_id, read.name) == (TRACE, SPAN, "n\ufffd")
    assert read.attributes == {"bytes": "/wA=", "nan": "nan", "list": [1, None]}
    assert (read.status_code, read.end_ns, read.events[0].name) == (2, 2**63 - 1, "e")


def test_it_leaves_out_bad_spans_and_keeps_their_neighbours() -> None:
    sent = body(span(), span(traceId="0" * 32), span(spanId=5), "no span", span(spanId=PARENT))  # type: ignore[arg-type]
    decoded = decode_traces(sent, json=True)
    assert [item.span_id for item in decoded.items] == [SPAN, PARENT]
    assert decoded.rejected == 3 and "trace id" in decoded.reason
    request = protobuf()
    request.resource_spans[0].scope_spans[0].spans.add(name="no ids")
    decoded = decode_traces(request.SerializeToString(), json=False)
    assert (len(decoded.items), decoded.rejected) == (1, 1)


@pytest.mark.parametrize(
    ("sent", "as_json", "word"),
    [
        (protobuf().SerializeToString()[:-3], False, "cut off"),
        (b"not protobuf", False, "protobuf"),
        (b'{"resourceSpans": [', True, "cut off"),
        (b"[1]", True, "object"),
        (b'{"resourceLogs": []}', True, "resourceSpans"),
        (b"[" * 100_000, True, "JSON"),
        (b"\xff\xfe\x00", True, "JSON"),
        (b"", True, "JSON"),
    ],
)
def test_a_body_that_is_not_otlp_is_refused_in_one_sentence(
    sent: bytes, as_json: bool, word: str
) -> None:
    with pytest.raises(DecodeError, match=word) as caught:
        decode_traces(sent, json=as_json)
    assert str(caught.value).endswith(".") and "\n" not in str(caught.value)


def test_odd_characters_and_numbers_are_mended() -> None:
    sent = body(span(name="a\x00b", attributes=[{"key": "d", "value": {"doubleValue": 1}}]))
    sent = sent.replace(b'"doubleValue": 1', b'"doubleValue": NaN').replace(
        b'"service.name"', b'"lone \\ud800"'
    )
    (read,) = decode_traces(sent, json=True).items
    assert (read.name, read.attributes["d"]) == ("a\ufffdb", "nan")
    msgspec.json.encode(read)


def test_a_value_nested_too_deep_is_a_note_and_not_an_error() -> None:
    value: dict = {"stringValue": "bottom"}
    for _ in range(200):
        value = {"arrayValue": {"values": [value]}}
    (read,) = decode_traces(
        body(span(attributes=[{"key": "deep", "value": value}])), json=True
    ).items
    assert "nested deeper" in json.dumps(read.attributes["deep"])


def test_empty_requests_are_requests() -> None:
    assert decode_traces(b"{}", json=True).items == decode_traces(b"", json=False).items == []


def test_it_reads_log_records() -> None:
    record = {
        "traceId": TRACE,
        "spanId": SPAN,
        "observedTimeUnixNano": "9",
        "eventName": "gen_ai.choice",
        "body": {"kvlistValue": {"values": [{"key": "index", "value": {"intValue": "0"}}]}},
    }
    old = {
        "body": {"stringValue": "plain"},
        "attributes": [{"key": "event.name", "value": {"stringValue": "e"}}],
    }
    request = {"resourceLogs": [{"scopeLogs": [{"logRecords": [record, old, 3]}]}]}
    decoded = decode_logs(json.dumps(request).encode(), json=True)
    assert decoded.items[0] == LogRecord(TRACE, SPAN, 9, "gen_ai.choice", {"index": 0})
    assert decoded.items[1].event_name == "e" and decoded.items[1].trace_id == ""
    assert decoded.rejected == 1
    binary = ExportLogsServiceRequest()
    entry = (
        binary.resource_logs.add()
        .scope_logs.add()
        .log_records.add(
            trace_id=bytes.fromhex(TRACE),
            span_id=bytes.fromhex(SPAN),
            time_unix_nano=9,
            event_name="gen_ai.choice",
        )
    )
    entry.body.kvlist_value.values.add(key="index").value.int_value = 0
    assert decode_logs(binary.SerializeToString(), json=False).items == decoded.items[:1]


def decodes_or_refuses(sent: bytes, as_json: bool) -> None:
    for decode in (decode_traces, decode_logs):
        try:
            decoded = decode(sent, json=as_json)
        except DecodeError:
            continue
        again = msgspec.json.decode(msgspec.json.encode(decoded.items))
        assert len(again) == len(decoded.items)


@given(st.binary(max_size=200), st.booleans())
def test_random_bytes_are_read_or_refused(sent: bytes, as_json: bool) -> None:
    decodes_or_refuses(sent, as_json)


@given(
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=8),
    st.booleans(),
)
def test_broken_bodies_are_read_or_refused(changes: list[tuple[int, int]], as_json: bool) -> None:
    sent = bytearray(
        body(span(kind=1, status={"code": 1})) if as_json else protobuf().SerializeToString()
    )
    for position, value in changes:
        sent[position % len(sent)] = value
    decodes_or_refuses(bytes(sent), as_json)


@settings(max_examples=150)
@given(OTLP_LIKE)
def test_json_of_any_shape_is_read_or_refused(document: Any) -> None:
    decodes_or_refuses(json.dumps(document).encode(), True)
    wrapped = {"resourceSpans": [{"scopeSpans": [{"spans": [document]}]}]}
    wrapped["resourceLogs"] = [{"scopeLogs": [{"logRecords": [document]}]}]
    decodes_or_refuses(json.dumps(wrapped).encode(), True)
    decodes_or_refuses(
        body(span(attributes=[{"key": "k", "value": document}], events=[document])), True
    )
