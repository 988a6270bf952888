"""Claude Code and Codex: runs of what they say in log events, with or without spans."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone
from google.protobuf.json_format import ParseDict
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from apps.trajectories import assembly, schema, traces
from apps.trajectories.models import Trajectory, with_content
from apps.trajectories.otlp import Event, LogRecord, Scope, Span, assemble, placed
from tests.amounts import amount
from tests.trajectories.test_traces import LOGS, TRACES, attributes

NOON, MS = 1_790_000_000_000_000_000, 1_000_000
TRACE, ROOT = f"{7:032x}", f"{1:016x}"
CLAUDE = {"service.name": "claude-code", "service.version": "2.1"}
CODEX = {"service.name": "codex_exec", "service.version": "0.17"}
TRACING = Scope("com.anthropic.claude_code.tracing", "2.1")
COUNTS = {"output_tokens": 30, "cache_read_tokens": 300, "cache_creation_tokens": 20}
HIDDEN = "<REDACTED>"


def claude_span(number: int, kind: str, at: int, ms: int, parent: int = 1, **more: Any) -> Span:
    said = {key.replace("__", "."): value for key, value in more.items() if key in more}
    events, error = said.pop("events", []), said.pop("failed", "")
    return Span(
        TRACE,
        f"{number:016x}",
        f"{parent:016x}" if parent else "",
        f"claude_code.{kind}",
        start_ns=NOON + at * MS,
        end_ns=NOON + (at + ms) * MS,
        status_code=2 if error else 0,
        status_message=error,
        attributes={"span.type": kind, "session.id": "s1", **said},
        events=events,
        resource=CLAUDE,
        scope=TRACING,
    )


def asked(number: int, at: int, input_tokens: int, request: str, parent: int = 1) -> Span:
    return claude_span(
        number,
        "llm_request",
        at,
        50,
        parent,
        model="sonnet",
        gen_ai__request__model="sonnet",
        gen_ai__response__id=request,
        input_tokens=input_tokens,
        **COUNTS,
    )


def used(number: int, name: str, at: int, call: str, parent: int = 1, output: str = "") -> Span:
    events = [Event("tool.output", NOON, {"output": output})] if output else []
    return claude_span(
        number, "tool", at, 20, parent, tool_name=name, tool_use_id=call, events=events
    )


def claude_log(name: str, at: int, span: int = 1, traced: bool = True, **said: Any) -> LogRecord:
    return LogRecord(
        TRACE if traced and span else "",
        f"{span:016x}" if traced and span else "",
        NOON + at * MS,
        name,
        f"claude_code.{name}",
        {"event.name": name, "session.id": "s1"}
        | ({"prompt.id": "p1"} if span else {})
        | {key.replace("__", "."): value for key, value in said.items()},
        CLAUDE,
    )


def answered(at: int, tokens: int, cost: float, request: str, **more: Any) -> LogRecord:
    said = {"input_tokens": tokens, "cost_usd": cost, "request_id": request, "model": "sonnet"}
    return claude_log("api_request", at, **said, **COUNTS, duration_ms=50, **more)


def claude_logs(traced: bool = True, **hide: str) -> list[LogRecord]:
    """Two tools, of which the second fails, and an answer; before them a title of the session."""

    def words(text: str) -> str:
        return hide.get("words", text)

    tool = {"duration_ms": 20, "traced": traced}
    first = {"tool_name": "Bash", "tool_use_id": "toolu_1", "success": "true"}
    second = {"tool_name": "Read", "tool_use_id": "toolu_2", "success": "false"}
    if not hide:
        first["tool_input"] = '{"command":"ls"}'
        second |= {"tool_input": '{"file_path":"/none"}', "error": "No such file"}
    said = {"traced": traced, "model": "sonnet"}
    return [
        answered(60, 100, 0.5, "req_title", span=0),
        claude_log("assistant_response", 60, 0, request_id="req_title", response=words("A title")),
        claude_log("user_prompt", 100, traced=traced, prompt=words("How many files?")),
        answered(160, 100, 0.001, "req_1", traced=traced),
        claude_log(
            "assistant_response", 160, request_id="req_1", response=words("I look."), **said
        ),
        claude_log("tool_result", 175, **tool, **first),
        answered(260, 101, 0.002, "req_2", traced=traced),
        claude_log("tool_result", 275, **tool, **second),
        answered(360, 102, 0.003, "req_3", traced=traced),
        claude_log(
            "assistant_response", 361, request_id="req_3", response=words("One file."), **said
        ),
    ]


def claude_spans(**hide: str) -> list[Span]:
    prompt = hide.get("words", "How many files?")
    return [
        claude_span(1, "interaction", 0, 500, 0, user_prompt=prompt),
        asked(2, 10, 100, "req_title"),
        asked(3, 110, 100, "req_1"),
        used(4, "Bash", 155, "toolu_1", output="" if hide else "hello.txt"),
        asked(5, 210, 101, "req_2"),
        used(6, "Read", 255, "toolu_2"),
        claude_span(7, "tool.execution", 256, 5, 6, failed="No such file"),
        asked(8, 310, 102, "req_3"),
    ]


def run_of(spans: list[Span], logs: list[LogRecord]) -> dict[str, Any]:
    (run,) = assemble(*placed(spans, logs))
    return run.row


def talk(row: dict[str, Any]) -> list[tuple]:
    return [
        (
            message["role"],
            message["content"],
            *(
                (call["function"]["name"], json.loads(call["function"]["arguments"]))
                for call in message.get("tool_calls") or ()
            ),
        )
        for message in row["messages"]
    ]


TALK = [
    ("user", "How many files?"),
    ("assistant", "I look.", ("Bash", {"command": "ls"})),
    ("tool", "hello.txt"),
    ("assistant", None, ("Read", {"file_path": "/none"})),
    ("tool", "No such file"),
    ("assistant", "One file."),
]


def counts(row: dict[str, Any]) -> dict[str, float]:
    """Of all calls together."""
    return {name: value for name, value in row["usage"].items() if name != "calls"}


def assert_figures(row: dict[str, Any]) -> None:
    """Three calls of the agent; that of the title is not one of them."""
    assert counts(row) == {
        "input_tokens": 1263,
        "output_tokens": 90,
        "cache_read_tokens": 900,
        "cache_write_tokens": 60,
        "cost_usd": pytest.approx(0.006),
    }
    assert row["session_id"] == "s1"
    assert row["outcome"] == {"status": "unknown"}
    assert row["metadata"]["recovered_errors"] == 1
    assert row["metadata"]["format"] == "claude-code"


def test_claude_codes_events_complete_its_spans() -> None:
    row = run_of(claude_spans(), claude_logs())
    assert talk(row) == TALK
    assert_figures(row)
    kinds = [step["kind"] for step in row["metadata"]["steps"]]
    assert kinds == ["agent", "other", "model", "tool", "model", "tool", "other", "model"]


def test_claude_codes_events_alone_are_a_run() -> None:
    """Without spans the results of tools are not known."""
    row = run_of([], claude_logs(traced=False))
    silent = [("tool", None) if turn == ("tool", "hello.txt") else turn for turn in TALK]
    assert talk(row) == silent
    assert_figures(row)
    assert row["started_at"] < row["ended_at"]


def test_claude_codes_spans_alone_are_a_run() -> None:
    row = run_of(claude_spans(), [])
    assert talk(row)[0] == ("user", "How many files?")
    assert ("tool", "hello.txt") in talk(row)
    assert ("tool", "No such file") in talk(row)


def test_without_request_ids_calls_are_known_by_their_tokens() -> None:
    """A provider that is no provider of the API itself gives none."""
    spans, logs = claude_spans(), claude_logs()
    for item in (*spans, *logs):
        item.attributes.pop("request_id", None)
        item.attributes.pop("gen_ai.response.id", None)
    row = run_of(spans, logs)
    assert talk(row) == TALK
    assert_figures(row)


def test_content_that_is_switched_off_is_no_content() -> None:
    for spans, traced in ((claude_spans(words=HIDDEN), True), ([], False)):
        row = run_of(spans, claude_logs(traced=traced, words=HIDDEN))
        assert row["metadata"]["content_captured"] is False
        assert HIDDEN not in json.dumps(row["messages"])
        assert row["usage"]["input_tokens"] == 1263


def test_events_and_spans_in_any_order_are_one_run() -> None:
    spans, logs = claude_spans(), claude_logs()
    assert run_of(spans[::-1], logs[::-1]) == run_of(spans, logs)


def test_a_request_that_fails_is_a_failure() -> None:
    error = {"error": "prompt is too long", "request_id": "req_1", "model": "sonnet"}
    for traced in (True, False):
        logs = [
            claude_log("user_prompt", 100, traced=traced, prompt="Hello"),
            claude_log("api_error", 160, traced=traced, duration_ms=50, **error),
        ]
        span = asked(3, 110, 100, "req_1")
        row = run_of([claude_spans()[0], span] if traced else [], logs)
        assert row["outcome"] == {"status": "failure", "reason": "prompt is too long"}
        assert talk(row)[0][0] == "user"


def test_a_sub_agent_has_a_conversation_of_its_own() -> None:
    spans = [
        claude_spans()[0],
        asked(2, 110, 100, "req_1"),
        used(3, "Agent", 155, "toolu_1"),
        asked(4, 160, 100, "req_2", parent=3),
        used(5, "Bash", 210, "toolu_2", parent=3, output="hello.txt"),
        asked(6, 260, 101, "req_3", parent=3),
        asked(7, 410, 101, "req_4"),
    ]
    logs = [
        claude_log("user_prompt", 100, prompt="Delegate"),
        answered(160, 100, 0.001, "req_1"),
        answered(205, 100, 0.001, "req_2"),
        answered(310, 101, 0.001, "req_3"),
        claude_log("assistant_response", 310, request_id="req_3", response="Inner words"),
        claude_log(
            "tool_result",
            320,
            tool_name="Agent",
            tool_use_id="toolu_1",
            tool_input='{"prompt":"x"}',
        ),
        answered(460, 101, 0.001, "req_4"),
        claude_log("assistant_response", 460, request_id="req_4", response="Outer words"),
    ]
    row = run_of(spans, logs)
    assert [turn[1] for turn in talk(row)] == ["Delegate", None, None, "Outer words"]
    (inner,) = row["metadata"]["threads"]
    said = [(message["role"], message["content"]) for message in inner["messages"]]
    assert said == [
        ("user", "x"),
        ("assistant", None),
        ("tool", "hello.txt"),
        ("assistant", "Inner words"),
    ]
    assert row["usage"]["input_tokens"] == 4 * 420 + 2


def codex_log(name: str, at: int, trace: int = 0, **said: Any) -> LogRecord:
    return LogRecord(
        f"{trace:032x}" if trace else "",
        f"{trace:016x}" if trace else "",
        NOON + at * MS,
        "event otel/src/events.rs:1",
        None,
        {"event.name": f"codex.{name}", "conversation.id": "c1", "model": "gpt-5"}
        | {key.replace("__", "."): value for key, value in said.items()},
        CODEX,
    )


def codex_call(at: int, ms: int = 40) -> list[LogRecord]:
    counts = {"input_token_count": "150", "output_token_count": "30"}
    parts = {"cached_token_count": "60", "reasoning_token_count": "8", "tool_token_count": "180"}
    return [
        codex_log("api_request", at + ms // 2, 5, duration_ms=ms // 2, attempt=0),
        codex_log("sse_event", at + ms, event__kind="response.created", duration_ms=0),
        codex_log("sse_event", at + ms, event__kind="response.completed", **counts, **parts),
    ]


def codex_logs() -> list[LogRecord]:
    """Half of Codex' events name spans of its internal tracing, the others none."""
    return [
        codex_log("conversation_starts", 0, 4, provider_name="openai"),
        codex_log("user_prompt", 10, 5, prompt="How many files?"),
        *codex_call(20),
        codex_log(
            "tool_result",
            90,
            6,
            tool_name="exec_command",
            call_id="call_1",
            duration_ms=20,
            success="true",
            arguments='{"cmd":"ls"}',
            output="hello.txt",
        ),
        *codex_call(100),
        codex_log("user_prompt", 500, 7, prompt="And now?"),
        *codex_call(510),
    ]


def internal(number: int = 1) -> Span:
    said = {"code.file.path": "core/src/x.rs", "busy_ns": 1, "target": "codex_core"}
    return Span(
        f"{5:032x}", f"{number:016x}", attributes=said, resource=CODEX, scope=Scope("codex_exec")
    )


def test_a_codex_conversation_is_a_run() -> None:
    row = run_of([internal()], codex_logs())
    assert talk(row) == [
        ("user", "How many files?"),
        ("assistant", None, ("exec_command", {"cmd": "ls"})),
        ("tool", "hello.txt"),
        ("user", "And now?"),
    ]
    assert counts(row) == {
        "input_tokens": 450,
        "output_tokens": 90,
        "cache_read_tokens": 180,
        "reasoning_tokens": 24,
    }
    assert (row["session_id"], row["metadata"]["format"]) == ("c1", "codex")
    steps = [(step["kind"], step["duration_ms"]) for step in row["metadata"]["steps"]]
    assert steps == [
        ("other", 0),
        ("model", 40),
        ("tool", 20),
        ("model", 40),
        ("other", 0),
        ("model", 40),
    ]


def test_a_codex_request_that_fails_is_a_failure() -> None:
    error = codex_log("api_request", 40, 5, duration_ms=9, attempt=0, error__message="http 500")
    logs = [*codex_logs()[:2], error]
    assert run_of([], logs)["outcome"] == {"status": "failure", "reason": "http 500"}
    recovered = run_of([], logs + codex_call(60))
    assert recovered["outcome"] == {"status": "unknown"}
    assert recovered["metadata"]["recovered_errors"] == 1


SOURCES: list[tuple[Any, Any]] = [
    (claude_spans, claude_logs),
    (list, lambda: claude_logs(traced=False)),
    (list, codex_logs),
]
ATTRIBUTES = [
    (spans_of, logs_of, place, name)
    for spans_of, logs_of in SOURCES
    for place, item in enumerate((*spans_of(), *logs_of()))
    for name in item.attributes
]
ODD = [None, "", -1, 1e30, True, [], {}, [None], {"a": [{}]}, "x" * 9]


@pytest.mark.more
@pytest.mark.parametrize("number", range(len(ODD)))
def test_odd_values_give_runs_that_can_be_stored(number: int) -> None:
    step = amount(10, 1)
    for spans_of, logs_of, place, name in ATTRIBUTES[number % step :: step]:
        spans, logs = spans_of(), logs_of()
        (*spans, *logs)[place].attributes[name] = ODD[number]
        for run in assemble(*placed(spans, logs)):
            schema.parse(run.row)


# Through the doors


def _value(pairs: dict[str, Any]) -> list[dict]:
    return attributes(**{name.replace(".", "__"): text(value) for name, value in pairs.items()})


def text(value: Any) -> Any:
    return value if isinstance(value, int | str) else str(value)


def packed_logs(logs: list[LogRecord]) -> bytes:
    records = [
        {
            "timeUnixNano": str(log.time_ns),
            "eventName": log.event_name,
            "attributes": _value(log.attributes),
        }
        | ({"body": {"stringValue": log.body}} if log.body else {})
        for log in logs
    ]
    document = {
        "resourceLogs": [
            {
                "resource": {"attributes": _value(logs[0].resource)},
                "scopeLogs": [{"logRecords": records}],
            }
        ]
    }
    return ParseDict(document, ExportLogsServiceRequest()).SerializeToString()


def packed_internal() -> bytes:
    request = ExportTraceServiceRequest()
    scope = request.resource_spans.add().scope_spans.add()
    scope.scope.name = "codex_exec"
    span = scope.spans.add(trace_id=bytes([5] * 16), span_id=bytes([5] * 8))
    span.attributes.add(key="busy_ns").value.int_value = 1
    return request.SerializeToString()


@pytest.mark.django_db
def test_events_that_come_one_by_one_become_one_run(agent: Client) -> None:
    logs = claude_logs(traced=False)[2:]
    for log in logs:
        body = packed_logs([log])
        assert agent.post(LOGS, body, content_type="application/x-protobuf").status_code == 200
        traces.sort_some()
        _assemble()
    (row,) = with_content(list(Trajectory.objects.all()))
    assert (row.input_tokens, row.output_tokens) == (1263, 90)
    assert [message["role"] for message in row.content["messages"]] == [turn[0] for turn in TALK]


@pytest.mark.django_db
def test_internal_tracing_is_counted_and_not_kept(agent: Client) -> None:
    answer = agent.post(TRACES, packed_internal(), content_type="application/x-protobuf")
    assert answer.status_code == 200
    assert b"1 spans are the internal tracing of Codex" in answer.content
    traces.sort_some()
    assert not traces.look().has_spans


@pytest.mark.django_db
def test_metrics_are_answered_with_what_becomes_of_them(agent: Client) -> None:
    answer = agent.post("/v1/metrics", b"{}", content_type="application/json")
    assert "not kept" in answer.json()["partialSuccess"]["errorMessage"]


def _assemble() -> None:
    while assembly.step(timezone.now() + timedelta(minutes=1)):
        pass
