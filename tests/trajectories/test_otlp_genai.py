"""OpenTelemetry's GenAI conventions 0.1.0, in a repository of their own, beside the older ones."""

from __future__ import annotations

from typing import Any

import pytest

from apps.failures.classify import classify
from apps.trajectories.dialects import messages_of
from apps.trajectories.otlp import Event, LogRecord, Span, assemble
from apps.trajectories.otlp.conventions import read
from tests.trajectories.test_otlp_assemble import (
    NOON,
    SECOND,
    agent,
    bot,
    model,
    replied,
    span,
    texts,
    user,
    wants,
)

USED = "gen_ai.usage."


@pytest.mark.parametrize(
    ("named", "column", "count"),
    [
        ("cache_read.input_tokens", "cache_read_tokens", 40),
        ("cache_read_input_tokens", "cache_read_tokens", 40),
        ("cache_write.input_tokens", "cache_write_tokens", 30),
        ("cache_creation.input_tokens", "cache_write_tokens", 30),
        ("reasoning.output_tokens", "reasoning_tokens", 20),
        ("audio.input_tokens", "input_audio", 10),
        ("image.input_tokens", "input_image", 10),
        ("audio.output_tokens", "output_audio", 5),
        ("image.output_tokens", "output_image", 5),
        ("audio.cache_read.input_tokens", "cache_audio_read", 4),
        ("image.cache_read.input_tokens", "cache_image_read", 4),
    ],
)
def test_parts_of_the_tokens(named: str, column: str, count: int) -> None:
    counts = {f"{USED}input_tokens": 100, f"{USED}output_tokens": 50, USED + named: count}
    used = read(span(1, 0, attributes={"gen_ai.operation.name": "chat"} | counts), []).usage
    assert (used.input_tokens, used.output_tokens) == (100, 50)
    assert (getattr(used, column, None) or used.parts.get(column)) == count


@pytest.mark.parametrize(
    "key", ["acme.usage.cache_input_tokens", "acme.llm.usage.cache_read_tokens"]
)
def test_parts_are_read_under_any_frameworks_names(key: str) -> None:
    counts = {f"{USED}input_tokens": 100, f"{USED}output_tokens": 50, key: 40}
    (run,) = assemble([span(1, 0, attributes={"gen_ai.operation.name": "chat"} | counts)], [])
    used = run.row["usage"]
    assert (used["input_tokens"], used["cache_read_tokens"]) == (100, 40)


@pytest.mark.parametrize(
    ("operation", "kind"),
    [
        ("invoke_workflow", "agent"),
        ("fetch_response", "model"),
        ("search_memory", "retriever"),
        ("upsert_memory", "other"),
        ("delete_memory_store", "other"),
        ("plan", "other"),
    ],
)
def test_operations(operation: str, kind: str) -> None:
    named = {"gen_ai.operation.name": operation, "gen_ai.request.model": "m"}
    assert read(span(1, 0, attributes=named), []).kind == kind


@pytest.mark.parametrize("key", ["gen_ai.workflow.name", "gen_ai.agent.name"])
def test_a_workflow_names_the_work_and_not_the_agent(key: str) -> None:
    workflow = span(
        1, 0, seconds=5, attributes={"gen_ai.operation.name": "invoke_workflow", key: "refunds"}
    )
    named = {"gen_ai.agent.name": "clerk", "gen_ai.agent.version": "7"}
    spans = [
        workflow,
        agent(2, 1, 3, parent=1, extra=named),
        model(3, 2, [user("Hi")], [bot("Ho")], parent=2),
    ]
    (run,) = assemble(spans, [])
    assert run.row["workload"] == "refunds"
    assert run.row["agent"] == {"name": "clerk", "version": "7"}


def test_a_call_names_the_response_before_it() -> None:
    first = {"gen_ai.response.id": "resp_one"}
    second = {"gen_ai.request.previous_response.id": "resp_one"}
    spans = [
        model(1, 0, [user("Hi")], [bot("Ho")], trace=1, extra=first),
        model(2, 2, [user("More")], [bot("Enough")], trace=2, extra=second),
    ]
    (run,) = assemble(spans, [])
    assert texts(run.row) == ["Hi", "Ho", "More", "Enough"]


def test_an_answer_that_was_fetched_later_is_no_call_of_its_own() -> None:
    asked = {"gen_ai.response.id": "resp_one", "gen_ai.response.status": "queued"}
    fetched = {"gen_ai.operation.name": "fetch_response", "gen_ai.response.id": "resp_one"}
    for trace in (1, 2):  # in the same trace, and in one of its own
        spans = [
            model(1, 0, [user("Hi")], [], extra=asked),
            model(2, 9, [], [bot("Ho")], trace=trace, extra=fetched | {f"{USED}input_tokens": ""}),
        ]
        (run,) = assemble(spans, [])
        assert texts(run.row) == ["Hi", "Ho"] and len(run.row["usage"]["calls"]) == 1


@pytest.mark.parametrize(
    ("said", "status", "tags"),
    [
        ({"gen_ai.response.status": "failed"}, "failure", []),
        ({"gen_ai.response.status": "cancelled"}, "unknown", ["cancelled"]),
        ({"gen_ai.response.finish_reasons": ["error"]}, "failure", []),
        ({"gen_ai.response.finish_reasons": ["stop"]}, "unknown", ["missing-answer"]),
        ({"gen_ai.response.status": "incomplete"}, "unknown", ["missing-answer"]),
    ],
)
def test_how_a_response_ended(said: dict, status: str, tags: list) -> None:
    (run,) = assemble([model(1, 0, [user("Hi")], [], extra=said)], [])
    assert (run.row["outcome"]["status"], run.row["tags"]) == (status, tags)


@pytest.mark.parametrize(
    "said",
    [
        {"gen_ai.response.finish_reasons": ["length"]},
        {"gen_ai.response.finish_reasons": '["length"]'},
        {"llm.finish_reason": "length"},
    ],
)
def test_the_finish_reason_of_the_last_call_is_the_runs(said: dict) -> None:
    stop = {"gen_ai.response.finish_reasons": ["stop"]}
    spans = [
        model(1, 0, [user("Hi")], [bot("Ho")], extra=stop),
        model(2, 9, [user("Hi"), bot("Ho"), user("Tell me.")], [bot("It is")], extra=said),
    ]
    (run,) = assemble(spans, [])
    assert run.row["metadata"]["finish_reason"] == "length"
    found = classify({"messages": run.row["messages"], "metadata": run.row["metadata"]})
    assert found and found.evidence[0].rule == "turn_limit" and found.blamed_message == 3


def log_of(one: Span, name: str, span_id: str, **attributes: Any) -> LogRecord:
    named = {key.replace("__", "."): value for key, value in attributes.items()}
    return LogRecord(one.trace_id, span_id, NOON + SECOND, name, attributes=named)


def test_exceptions_are_log_events() -> None:
    failed = model(1, 0, [user("Hi")], [], status_code=2)
    thrown = log_of(
        failed,
        "gen_ai.client.operation.exception",
        failed.span_id,
        exception__type="acme.RateLimitError",
        exception__message="Too many requests.",
    )
    (run,) = assemble([failed], [thrown])
    assert run.row["outcome"]["reason"] == "RateLimitError: Too many requests."


def test_an_evaluation_names_its_span_or_its_answer() -> None:
    answered = model(1, 0, [user("Hi")], [bot("Ho")], extra={"gen_ai.response.id": "resp_one"})
    said = {"gen_ai__evaluation__name": "tone", "gen_ai__evaluation__score__value": 0.5}
    for span_id, more in (
        (answered.span_id, {}),
        ("", {"gen_ai__response__id": "resp_one"}),
    ):
        result = log_of(answered, "gen_ai.evaluation.result", span_id, **said, **more)
        (run,) = assemble([answered], [result])
        assert run.row["metadata"]["evaluations"] == [
            {"name": "tone", "score.value": 0.5, "span_id": answered.span_id}
        ]
    stranger = log_of(
        answered, "gen_ai.evaluation.result", "", **said, gen_ai__response__id="other"
    )
    assert "evaluations" not in assemble([answered], [stranger])[0].row["metadata"]


def test_a_request_that_sums_up_what_was_said_goes_on_with_it() -> None:
    talk = [user("Hi"), wants("c1"), replied("c1", "ok")]
    summed_up = [user("So far: greeted."), user("More")]
    spans = [
        agent(1, 0, 20),
        model(2, 1, talk[:1], talk[1:2], parent=1),
        model(3, 3, talk, [bot("Done.")], parent=1),
        model(
            4,
            5,
            summed_up,
            [bot("Enough.")],
            parent=1,
            extra={"gen_ai.conversation.compacted": True},
        ),
    ]
    (run,) = assemble(spans, [])
    assert texts(run.row) == ["Hi", None, "ok", "Done.", "So far: greeted.", "More", "Enough."]


def test_tools_of_the_providers_own_keep_their_arguments_and_results() -> None:
    called = {"type": "server_tool_call", "id": "s1", "name": "code"}
    said = {"type": "server_tool_call_response", "id": "s1"}
    parts = [
        called | {"server_tool_call": {"type": "code", "code": "1+1"}},
        said | {"server_tool_call_response": {"type": "code", "output": "2"}},
        {"type": "text", "content": "Two."},
    ]
    call, reply, answer = messages_of([{"role": "assistant", "parts": parts}], "assistant")
    assert call["tool_calls"][0]["function"]["arguments"] == {"type": "code", "code": "1+1"}
    assert '"2"' in reply["content"] and answer["content"] == "Two."


def test_a_span_that_records_several_calls_counts_each_of_them() -> None:
    one = model(1, 0, [user("Hi")], [bot("Ho")], extra={f"{USED}input_tokens": 30})
    used = [{"gen_ai__usage__input_tokens": 20}, {"gen_ai__usage__input_tokens": 30}]
    name = "gen_ai.client.inference.operation.details"
    logs = [log_of(one, name, one.span_id, **counts, acme=str(counts)) for counts in used]
    (run,) = assemble([one], logs)
    assert run.row["usage"]["input_tokens"] == 50
    same = [
        log_of(one, name, one.span_id, **used[1], gen_ai__response__id="r", n=n) for n in (1, 2)
    ]
    assert assemble([one], same)[0].row["usage"]["input_tokens"] == 30
    both = Span(
        **{field: getattr(one, field) for field in one.__struct_fields__}
        | {"events": [Event(name, attributes={"gen_ai.usage.input_tokens": 30})]}
    )
    assert assemble([both], [])[0].row["usage"]["input_tokens"] == 30
