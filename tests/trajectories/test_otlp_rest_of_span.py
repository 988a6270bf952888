"""What a convention leaves empty on a span that it knows is taken from the rest of the same span
and its events, by its shape; what it says stays, and what was read by shape is said on the run.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from apps.trajectories.dialects import messages_of
from apps.trajectories.otlp import Event, Run, Scope, Span, assemble
from tests.trajectories.test_otlp_assemble import (
    FAILED,
    agent,
    bot,
    model,
    replied,
    span,
    texts,
    tool,
    user,
    wants,
)

KNEAD = {
    "name": "knead",
    "description": "Kneads dough.",
    "parameters": {"type": "object", "properties": {"loaves": {"type": "integer"}}},
}
ASKED = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m"}


def run_of(*spans: Span) -> Run:
    (run,) = assemble(spans, [])
    return run


def call(extra: dict, **more: Any) -> Span:
    return model(1, 0, [user("Bake")], [bot("Baked.")], extra=extra, **more)


# Tool definitions

OPENAI = [{"type": "function", "function": KNEAD}]
DECLARED = {"config": {"tools": [{"functionDeclarations": [KNEAD]}]}}
DEFINED = {
    "an attribute": {"oven.tools": json.dumps(OPENAI)},
    "an attribute of another word": {"oven.available_functions": [json.dumps(KNEAD)]},
    "a name for each member": {
        "oven.request.functions.0.name": "knead",
        "oven.request.functions.0.description": "Kneads dough.",
        "oven.request.functions.0.parameters": json.dumps(KNEAD["parameters"]),
    },
    "the request": {"oven.raw_request": json.dumps({"m": 1, "contents": [], **DECLARED})},
    "parameters of the call": {"oven.params": json.dumps({"tools": [KNEAD]})},
    "behind a word for any value": {"oven.tools_json": json.dumps([KNEAD])},
    "the state of the agent": {"oven.stateSnapshot": json.dumps({"tools": [KNEAD]})},
}


@pytest.mark.parametrize("name", DEFINED)
@pytest.mark.parametrize("kind", ["model", "agent"])
def test_tool_definitions_of_a_known_span(name: str, kind: str) -> None:
    given = DEFINED[name]
    above = agent(2, 0, 9, extra=given if kind == "agent" else {})
    run = run_of(above, call(given if kind == "model" else {}, parent=2))
    (tool,) = run.row["tools"]
    assert tool["function"]["name"] == "knead" and tool["function"]["parameters"]
    assert run.row["tags"] == ["by-shape"]
    (read,) = run.row["metadata"]["read_by_shape"]
    assert read.removesuffix("*") in next(iter(given))


def test_definitions_of_a_convention_stay_and_names_alone_are_none() -> None:
    known = {"gen_ai.tool.definitions": json.dumps([{"name": "look", "description": "x"}])}
    run = run_of(call(known | {"oven.tools": json.dumps([KNEAD])}))
    assert [tool["function"]["name"] for tool in run.row["tools"]] == ["look"]
    assert run.row["tags"] == []
    names = {"oven.tools": '["knead"]', "oven.functions": '[{"name": "knead"}]'}
    assert run_of(call(names)).row["tools"] == []


def test_a_definition_on_the_tools_own_span() -> None:
    defined = {
        "oven.tool.definition.name": "look",
        "oven.tool.definition.description": "Looks.",
        "oven.tool.definition.schema": json.dumps(KNEAD["parameters"]),
    }
    used = tool(2, 1, "c1", result="ok")
    used.attributes |= defined
    run = run_of(agent(3, 0, 9), model(1, 0, [user("Bake")], [wants("c1")], parent=3), used)
    (found,) = run.row["tools"]
    assert found["function"] == KNEAD | {"name": "look", "description": "Looks."}


# Sessions and users

PEOPLE = {
    "oven.conversation.id": "night-1",
    "oven.association.properties.session_id": "night-1",
    "oven.metadata": json.dumps({"threadId": "night-1"}),
}


@pytest.mark.parametrize("name", PEOPLE)
@pytest.mark.parametrize("place", ["call", "agent", "frame"])
def test_a_session_beside_or_above_a_known_call(name: str, place: str) -> None:
    said = {name: PEOPLE[name], "oven.user_id": "Ida"}
    said |= {"http.route": "/bake"} if place == "frame" else {}
    frame = span(3, 0, seconds=9, attributes=said if place == "frame" else {})
    above = agent(2, 0, 8, parent=3, extra=said if place == "agent" else {})
    run = run_of(frame, above, call(said if place == "call" else {}, parent=2))
    assert (run.row["session_id"], run.row["user_id"]) == ("night-1", "Ida")
    assert "by-shape" in run.row["tags"]


def test_what_a_convention_says_of_the_session_wins_wherever_it_is() -> None:
    said = {"oven.conversation.id": "night-1", "oven.user.id": "Ida"}
    run = run_of(agent(2, -1, 9, extra=said), call({"session.id": "s1"}, parent=2))
    assert (run.row["session_id"], run.row["user_id"]) == ("s1", "Ida")


def test_ids_of_other_spans_are_no_sessions() -> None:
    said = {
        "thread.id": 17,
        "messaging.message.conversation_id": "queue-4",
        "http.request.header.session_id": "cookie",
    }
    beside = span(4, 1, 2, attributes={"shop.session.id": "cart-1"})
    run = run_of(agent(2, 0, 9, extra=said), call(said, parent=2), beside)
    assert run.row["session_id"] == "" and run.row["tags"] == []


# Tokens and models

RAW = {"promptTokenCount": 16, "candidatesTokenCount": 7, "thoughtsTokenCount": 4}
RAW |= {"cachedContentTokenCount": 6, "totalTokenCount": 27}
CHAT = {
    "prompt_tokens": 16,
    "completion_tokens": 11,
    "completion_tokens_details": {"reasoning_tokens": 4},
    "prompt_tokens_details": {"cached_tokens": 6},
}
METRICS = {"start": 1.5, "prompt_tokens": 16, "output_tokens": 11, "reasoning_tokens": 4}
COUNTED = {
    "the raw response": {"oven.llm_response": json.dumps({"usageMetadata": RAW})},
    "a usage object": {"oven.token_usage": json.dumps(CHAT)},
    "metrics": {"oven.metrics": json.dumps(METRICS | {"cached_tokens": 6})},
}


@pytest.mark.parametrize("name", COUNTED)
@pytest.mark.parametrize(("sent", "made"), [(16, 11), (10, 7), (16, 7)])
def test_parts_that_the_counts_leave_out(name: str, sent: int, made: int) -> None:
    """With cached tokens and reasoning in the counts of the convention, or without."""
    counts = {"gen_ai.usage.input_tokens": sent, "gen_ai.usage.output_tokens": made}
    used = run_of(call(COUNTED[name] | counts)).row["usage"]
    assert (used["input_tokens"], used["output_tokens"]) == (16, 11)
    assert (used["cache_read_tokens"], used["reasoning_tokens"]) == (6, 4)


def test_a_count_of_something_else_changes_nothing() -> None:
    other = {"oven.metrics": json.dumps({"input_tokens": 900, "output_tokens": 70, "cached": 9})}
    run = run_of(call(other))
    assert (run.row["usage"]["input_tokens"], run.row["usage"]["output_tokens"]) == (10, 1)
    assert "cache_read_tokens" not in run.row["usage"] and run.row["tags"] == []


def test_parts_that_are_named_otherwise_than_the_sides() -> None:
    counts = {"oven.llm.tokens.prompt": 16, "oven.llm.tokens.completion": 11}
    parts = {"oven.llm.tokens.cached": 6, "oven.llm.tokens.reasoning": 4}
    used = run_of(span(1, 0, attributes=ASKED | counts | parts)).row["usage"]
    assert (used["input_tokens"], used["output_tokens"]) == (16, 11)
    assert (used["cache_read_tokens"], used["reasoning_tokens"]) == (6, 4)


@pytest.mark.parametrize("name", ["oven.thinking.budget_tokens", "oven.request.reasoning_tokens"])
def test_what_a_request_allows_is_no_count(name: str) -> None:
    assert "reasoning_tokens" not in run_of(call({name: 1024})).row["usage"]


def test_counts_in_an_event_of_the_call() -> None:
    counts = {"gen_ai.usage.input_tokens": 30, "gen_ai.usage.output_tokens": 4}
    events = [Event("gen_ai.usage", attributes=counts)]
    used = run_of(span(1, 0, attributes=ASKED, events=events)).row["usage"]
    assert (used["input_tokens"], used["output_tokens"]) == (30, 4)


@pytest.mark.parametrize(
    ("asked", "beside", "model"),
    [
        ("m-mini", {"oven.response.model": "m-mini-2026-07-18"}, "m-mini-2026-07-18"),
        ("m-mini-2026-07-18", {"oven.param.model": "m-mini"}, "m-mini-2026-07-18"),
        ("m-mini", {"oven.param.model": "m"}, "m-mini"),  # another model
        ("m-mini", {"oven.output": json.dumps({"modelVersion": "m-mini-002"})}, "m-mini-002"),
        ("m-mini", {"oven.output": json.dumps({"model": "Corolla"})}, "m-mini"),
    ],
)
def test_the_model_that_answered(asked: str, beside: dict, model: str) -> None:
    row = run_of(call({"gen_ai.request.model": asked} | beside)).row
    assert (row["model"], row["metadata"]["request_model"]) == (model, "m-mini")


# Messages


def test_a_request_and_an_answer_that_the_convention_leaves_empty() -> None:
    said = {
        "oven.llm_request": json.dumps({"contents": [user("Bake")], "config": {"system": "Be."}}),
        "oven.llm_response": json.dumps({"content": {"role": "model", "parts": [{"text": "B."}]}}),
    }
    assert texts(run_of(span(1, 0, attributes=ASKED | said)).row) == ["Be.", "Bake", "B."]
    known = {"gen_ai.input.messages": json.dumps([user("Bake!")])}
    row = run_of(span(1, 0, attributes=ASKED | said | known)).row
    assert texts(row) == ["Bake!", "B."]
    for answer in ('{"status": "ok"}', "[1, 2]"):  # no message, no text
        said["oven.llm_response"] = answer
        assert texts(run_of(span(1, 0, attributes=ASKED | said | known)).row) == ["Bake!"]
    said["oven.llm_response"] = "HTTP 500"
    row = run_of(span(1, 0, attributes=ASKED | said | known, **FAILED)).row
    assert texts(row) == ["Bake!"]


@pytest.mark.parametrize("name", ["oven.output_messages", "oven.completion.message"])
def test_an_answer_in_a_name_of_messages(name: str) -> None:
    given = {"gen_ai.input.messages": json.dumps([user("Bake")])}
    said = {name: json.dumps([bot("Baked.")])}
    assert texts(run_of(span(1, 0, attributes=ASKED | given | said)).row) == ["Bake", "Baked."]
    shaped = {"oven.span.type": "llm", "oven.input_messages": json.dumps([user("Bake")])}
    assert texts(run_of(span(1, 0, attributes=shaped | said)).row) == ["Bake", "Baked."]


@pytest.mark.parametrize("name", ["oven.dialogue", "oven.turns.so_far"])
def test_a_request_under_a_name_that_says_nothing(name: str) -> None:
    said = {name: json.dumps({"m": 1, "messages": [user("Bake")]})}
    assert texts(run_of(span(1, 0, attributes=ASKED | said)).row) == ["Bake"]
    assert run_of(call(said)).row["tags"] == []
    unsure = {"oven.type": "llm", "oven.tokens.prompt": 9, "oven.tokens.completion": 1}
    assert assemble([span(1, 0, attributes=unsure | said)], []) == []


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"type": "talk", "value": [bot("Baked.")]}, ["Baked."]),
        ({"format": "v2", "payload": {"role": "assistant", "content": "Baked."}}, ["Baked."]),
        ({"type": "text", "value": "Baked."}, ["Baked."]),
        ({"type": "json", "value": {"answer": "Baked."}}, ["Baked."]),
        ({"type": "car", "value": "Corolla"}, ['{"type":"car","value":"Corolla"}']),
        ({"finish_reason": "tool_calls"}, []),
        ({"usageMetadata": {"n": 1}, "finishReason": "STOP", "partial": False}, []),
        ({"id": 3, "index": 0}, ['{"id":3,"index":0}']),
        ({"usage": {"n": 1}, "dough": "ready"}, ['{"usage":{"n":1},"dough":"ready"}']),
    ],
)
def test_envelopes_and_objects_that_only_say_how_an_answer_ended(value: Any, words: list) -> None:
    assert [message["content"] for message in messages_of(value, "assistant")] == words


# Tools


def test_arguments_and_result_under_any_name() -> None:
    said = {
        "oven.llm_request": "{}",
        "oven.llm_response": "{}",
        "oven.tool_call_args": '{"loaves": 2}',
        "oven.tool_response": '{"weight": 900}',
    }
    used = tool(3, 2, "c1", parent=1)
    used.attributes |= said
    run = run_of(agent(1, 0, 9), model(2, 1, [user("Bake")], [wants("c1")], parent=1), used)
    assert texts(run.row) == ["Bake", None, '{"weight": 900}']
    run = run_of(agent(1, 0, 9), used)  # no message has the call
    (made,) = run.row["messages"][-2]["tool_calls"]
    assert made["function"]["arguments"] == {"loaves": 2}
    for name in ("oven.tool_call_args", "oven.tool_response"):
        del used.attributes[name]
    run = run_of(agent(1, 0, 9), used)  # what is a model's by its name is no tool's
    assert run.row["messages"][-1]["content"] is None


def test_a_setting_whose_name_ends_like_a_result_is_none() -> None:
    used = tool(3, 2, "c1", parent=1)
    used.attributes["oven.result_as_answer"] = False
    run = run_of(agent(1, 0, 9), model(2, 1, [user("Bake")], [wants("c1")], parent=1), used)
    assert texts(run.row) == ["Bake", None, None]


def test_a_call_without_an_id_is_answered_by_its_tool_that_has_one() -> None:
    asked = {
        "role": "assistant",
        "tool_calls": [{"function": {"name": "look", "arguments": '{"q": 1}'}}],
    }
    used = tool(3, 2, "c1", parent=1, result="ok")
    used.attributes["gen_ai.tool.call.arguments"] = '{"q": 1}'
    spans = [agent(1, 0, 9), model(2, 1, [user("Bake")], [asked], parent=1), used]
    messages = run_of(*spans).row["messages"]
    assert [message["content"] for message in messages] == ["Bake", None, "ok"]
    assert messages[1]["tool_calls"][0]["id"] == messages[2]["tool_call_id"] == "c1"
    used.attributes["gen_ai.tool.call.arguments"] = '{"q": 2}'  # of another call
    assert texts(run_of(*spans).row) == ["Bake", None]


def silent_call(number: int, at: float, *events: Event) -> Span:
    return span(number, at, 1, attributes=ASKED, events=list(events))


def test_a_run_without_content_keeps_its_calls_by_name_and_id() -> None:
    oven = {"tool.name": "knead", "function.id": "call_knead_1"}
    spans = [
        agent(1, 0, 9),
        silent_call(2, 1, Event("gen_ai.system.message"), Event("gen_ai.user.message")),
        span(3, 2, 1, attributes=oven, name="Tool: knead"),
        silent_call(
            4,
            4,
            Event("gen_ai.system.message"),
            Event("gen_ai.tool.message", attributes={"id": "call_knead_1"}),
            Event("gen_ai.user.message"),
            Event("gen_ai.choice", attributes={"finish_reason": "stop", "index": 0}),
        ),
    ]
    row = run_of(*spans).row
    assert [message["role"] for message in row["messages"]] == ["user", "assistant", "tool"]
    assert texts(row) == [None, None, None]
    (made,) = row["messages"][1]["tool_calls"]
    assert (made["id"], made["function"]["name"]) == ("call_knead_1", "knead")
    assert row["metadata"]["content_captured"] is False and "threads" not in row["metadata"]
    spans[3].events[2].attributes["content"] = "Bake"
    assert run_of(*spans).row["metadata"]["content_captured"] is True


def test_calls_by_name_and_id_alone_are_no_content() -> None:
    named = {"role": "assistant", "tool_calls": [{"id": "c1", "function": {"name": "look"}}]}
    run = run_of(model(1, 0, [], [named]))
    assert run.row["messages"][-1]["tool_calls"][0]["id"] == "c1"
    assert run.row["metadata"]["content_captured"] is False


def test_an_agents_name_beside_its_kind() -> None:
    said = {"oven.span.kind": "agent", "operation.name": "baker"}
    frame = span(2, 0, seconds=9, attributes=said, name="baker.agent")
    assert run_of(frame, call({}, parent=2)).row["agent"]["name"] == "baker"
    frame.name = "operation"
    assert run_of(frame, call({}, parent=2)).row["agent"]["name"] == ""


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ({"oven.error.message": "no flour"}, "no flour"),
        ({"oven.error": json.dumps({"code": 4, "message": "no flour"})}, "no flour"),
        ({"oven.error": "none"}, None),
        ({"oven.error": False, "oven.error_code": "E7"}, None),
    ],
)
def test_an_error_beside_an_empty_answer(said: dict, reason: str | None) -> None:
    given = {"gen_ai.input.messages": json.dumps([user("Bake")])}
    run = run_of(span(1, 0, attributes=ASKED | given | said))
    assert run.row["outcome"].get("reason") == reason
    assert run_of(call(said)).row["outcome"]["status"] == "unknown"  # it has an answer


# Two records of one call

LOSSY, EXACT = Scope("the framework"), Scope("the client")
TALK = [user("Bake"), wants("call_knead_1"), replied("call_knead_1", "kneaded")]


def recorded_twice(number: int, at: float, given: list, said: list, seen: list) -> list[Span]:
    """A call as an outer span records it, that writes all as texts, and as an inner one does."""
    outer = {"gen_ai.request.model": "m", "gen_ai.response.model": "m"}
    inner = {"gen_ai.request.model": "m", "gen_ai.response.model": "m-2026-07-18"}
    name = {"gen_ai.response.id": f"r{number}"}
    return [
        model(number, at, seen, [bot("")], trace=number, extra=outer | name, scope=LOSSY),
        model(
            *(number + 1, at + 0.1, given, said),
            parent=number,
            trace=number,
            seconds=0.8,
            extra=inner | name,
            scope=EXACT,
        ),
    ]


def test_of_two_records_the_exact_one_wins_for_later_calls_too() -> None:
    seen = [user("Bake"), bot(""), user("kneaded")]
    spans = [
        *recorded_twice(1, 0, TALK[:1], TALK[1:2], TALK[:1]),
        *recorded_twice(3, 5, TALK, [bot("Baked.")], seen),
    ]
    for order in (spans, spans[::-1]):
        run = run_of(*order)
        assert texts(run.row) == ["Bake", None, "kneaded", "Baked."]
        assert run.row["model"] == "m-2026-07-18"
        assert run.row["usage"]["input_tokens"] == 20


def test_a_call_that_stands_for_several_says_what_these_say() -> None:
    spans = [
        model(1, 0, TALK[:1], [bot("Baked.")], seconds=9, scope=LOSSY),
        model(2, 1, TALK[:1], TALK[1:2], parent=1, scope=EXACT),
        model(3, 4, TALK, [bot("Baked.")], parent=1, scope=EXACT),
    ]
    assert texts(run_of(*spans).row) == ["Bake", None, "kneaded", "Baked."]
