"""What one place leaves out is taken from where it is said: a second record of a call in a trace of
its own, the raw request and response, a provider's usage object, the id in a reply.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from apps.trajectories.dialects import messages_of, tool_definitions
from apps.trajectories.otlp import Event, Scope, Span, assemble
from apps.trajectories.otlp.conventions import Reading, read
from tests.trajectories.test_otlp_assemble import (
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
from workers.lib.prices import list_price

TOOL = {"name": "look", "description": "Looks.", "parameters": {"properties": {"q": {}}}}
ASKED = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m"}


def bare(number: int, at: float, trace: int, scope: str = "the SDK", **more: Any) -> Span:
    """A model call of which only the counts and the answer's id are recorded."""
    counts = {"gen_ai.usage.input_tokens": 10, "gen_ai.usage.output_tokens": 1}
    attributes = ASKED | counts | more.pop("extra", {})
    return span(number, at, 0, trace, attributes=attributes, scope=Scope(scope), **more)


def test_an_sdks_own_record_of_a_call_in_another_trace_counts_once() -> None:
    first = {"gen_ai.response.id": "r1", "gen_ai.request.model": "m"}
    second = {"gen_ai.response.id": "r2", "gen_ai.request.model": "m"}
    talk = [user("Hi"), wants("c1"), replied("c1", "ok")]
    spans = [
        model(1, 0, talk[:1], talk[1:2], trace=1, extra=first, scope=Scope("wrapper")),
        bare(2, 0.1, 2, seconds=0.8, extra={"gen_ai.response.id": "r1"}),
        model(3, 5, talk, [bot("Done.")], trace=3, extra=second, scope=Scope("wrapper")),
        bare(4, 5.1, 4, seconds=0.8, extra={"gen_ai.response.id": "r2"}),
    ]
    for order in (spans, spans[::-1]):
        (run,) = assemble(order, [])
        assert texts(run.row) == ["Hi", None, "ok", "Done."]
        assert run.row["usage"]["input_tokens"] == 20 and len(run.trace_ids) == 4
    apart = [spans[0], bare(2, 0.1, 2, seconds=0.8, extra={"gen_ai.response.id": "r9"})]
    assert len(assemble(apart, [])) == 2
    has, wants_ = (
        {
            link
            for run in assemble([one], [])
            for found in run.links.values()
            for link in side(found)
        }
        for one, side in (
            (spans[0], lambda found: found.has),
            (spans[1], lambda found: found.wants),
        )
    )
    assert has & wants_  # they find each other where they come apart


def test_a_call_that_failed_is_recorded_twice_without_an_answers_id() -> None:
    failed = {"status_code": 2, "status_message": "it broke"}
    asked = {"gen_ai.request.model": "m", "gen_ai.output.messages": ""}
    whole = model(1, 0, [user("Hi")], [], extra=asked, scope=Scope("wrapper"), **failed)
    twin = span(2, 0.1, 0, 2, seconds=0.8, attributes=ASKED, scope=Scope("the SDK"), **failed)
    (run,) = assemble([whole, twin], [])
    assert texts(run.row) == ["Hi"] and run.row["outcome"]["reason"] == "it broke"
    well = span(2, 0.1, 0, 2, seconds=0.8, attributes=ASKED, scope=Scope("the SDK"))
    assert len(assemble([whole, well], [])) == 2


def streamed(at: float, trace: int, given: list, said: list, **more: Any) -> list[Span]:
    """A call whose span ends before its stream, and a span without length at the stream's end."""
    asked = ASKED | {"gen_ai.input.messages": json.dumps(given)}
    used = {"gen_ai.usage.input_tokens": 10, "gen_ai.usage.output_tokens": 1}
    ended = asked | used | {"gen_ai.output.messages": json.dumps(said)}
    return [
        span(trace, at, 0, trace, seconds=0.1, attributes=asked, **more),
        span(trace + 50, at + 0.9, 0, trace + 50, seconds=0, attributes=ended, **more),
    ]


def test_the_end_of_a_stream_is_recorded_in_a_trace_of_its_own() -> None:
    talk = [user("Hi"), wants("c1"), replied("c1", "ok")]
    spans = [*streamed(0, 1, talk[:1], talk[1:2]), *streamed(5, 2, talk, [bot("Done.")])]
    (run,) = assemble(spans, [])
    assert texts(run.row) == ["Hi", None, "ok", "Done."]
    assert run.row["usage"]["input_tokens"] == 20 and len(run.row["usage"]["calls"]) == 2
    other = streamed(0, 1, [user("Hi")], [bot("Hello")])[:1]
    other += streamed(0, 2, [user("Ho")], [bot("Hello")])[1:]
    assert len(assemble(other, [])) == 2


def test_a_server_of_tools_beside_its_client_is_no_run_of_its_own() -> None:
    client = [agent(1, 0, 9), tool(2, 1, "c1", parent=1, result="ok")]
    names = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "look"}
    server = span(3, 1.2, 0, 2, seconds=0.5, attributes=names, scope=Scope("mcp"))
    (run,) = assemble([*client, server], [])
    assert len(run.trace_ids) == 2
    assert sum(len(message.get("tool_calls", ())) for message in run.row["messages"]) == 1
    later = span(3, 30, 0, 2, seconds=0.5, attributes=names, scope=Scope("mcp"))
    assert len(assemble([*client, later], [])) == 2


def test_a_clock_of_milliseconds_parts_no_talk() -> None:
    first = model(1, 1, [user("Hi")], [bot("Hello")], trace=1)
    given = [user("Hi"), bot("Hello"), user("More")]
    assert len(assemble([first, model(2, 1.9995, given, [bot("No.")], trace=2)], [])) == 1
    assert len(assemble([first, model(2, 0.9, given, [bot("No.")], trace=2)], [])) == 2


def flattened(**more: Any) -> Reading:
    """A call in attributes that have no ids of calls, beside the raw request and response."""
    called = {"function": {"name": "look", "arguments": "{}"}, "id": "c1", "type": "function"}
    request = {
        "model": "m",
        "messages": [
            user("Hi"),
            {"role": "assistant", "tool_calls": [called]},
            replied("c1", "ok"),
        ],
        "tools": [{"type": "function", "function": TOOL}],
        "system": "Be brief.",
    }
    response = {
        "object": "chat.completion",
        "model": "m-2026",
        "choices": [{"message": bot("Done.")}],
        "usage": {
            "prompt_tokens": 10,
            "completion_tokens": 1,
            "prompt_tokens_details": {"cached_tokens": 4},
        },
    }
    name = "llm.input_messages.1.message.tool_calls.0.tool_call.function"
    attributes = {
        "openinference.span.kind": "LLM",
        "llm.input_messages.0.message.role": "user",
        "llm.input_messages.0.message.content": "Hi",
        "llm.input_messages.1.message.role": "assistant",
        f"{name}.name": "look",
        f"{name}.arguments": "{}",
        "llm.input_messages.2.message.role": "tool",
        "llm.input_messages.2.message.content": "ok",
        "llm.output_messages.0.message.role": "assistant",
        "llm.output_messages.0.message.content": "Done.",
        "llm.token_count.prompt": 10,
        "llm.token_count.completion": 1,
        "input.value": json.dumps(request),
        "output.value": json.dumps(response),
    }
    return read(Span("t" * 32, "s" * 16, attributes=attributes | more), [])


def test_the_raw_request_and_response_complete_flattened_messages() -> None:
    found = flattened()
    assert found.input[0] == {"role": "system", "content": "Be brief."}
    assert found.input[2]["tool_calls"][0]["id"] == found.input[3]["tool_call_id"] == "c1"
    assert found.model == "m-2026" and found.usage.cache_read_tokens == 4
    assert tool_definitions(found.tools[0])[0]["function"]["name"] == "look"
    renamed = flattened(**{"llm.model_name": "another"})  # which is no alias of what answered
    assert renamed.model == "another"
    silent = flattened(**{"llm.input_messages.0.message.content": ""})  # some leave blocks out
    assert silent.input[1] == user("Hi")
    other = {"messages": [user("Hi"), bot("What else?")]}  # another talk than the attributes'
    assert "id" not in flattened(**{"input.value": json.dumps(other)}).input[1]["tool_calls"][0]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("gen_ai.usage.raw", '{"output_tokens_details": {"reasoning_tokens": 3}}'),
        ("metadata.usage_object", "{'completion_tokens_details': {'reasoning_tokens': 3}}"),
        ("usage", {"output_tokens_details": {"reasoning_tokens": 3}}),
    ],
)
def test_counts_that_only_the_providers_usage_object_says(name: str, value: Any) -> None:
    counts = {"gen_ai.usage.input_tokens": 10, "gen_ai.usage.output_tokens": 5}
    found = read(Span("t" * 32, "s" * 16, attributes=ASKED | counts | {name: value}), [])
    assert found.usage.counts == {"input_tokens": 10, "output_tokens": 5, "reasoning_tokens": 3}


def test_a_reply_names_the_call_by_its_other_id() -> None:
    """OpenAI's responses have an id of the item and one of the call."""
    talk = [user("Hi"), wants("fc_1"), replied("call_1", "ok")]
    spans = [model(1, 0, talk[:1], talk[1:2]), model(2, 5, talk, [bot("Done.")], trace=2)]
    (run,) = assemble(spans, [])
    called = run.row["messages"][1]["tool_calls"][0]["id"]
    assert called == run.row["messages"][2]["tool_call_id"] == "call_1"
    lonely = [user("Hi"), wants("c1"), user("Well?"), replied("c2", "ok")]
    (run,) = assemble([model(1, 0, lonely, [bot("Done.")])], [])
    assert run.row["messages"][1]["tool_calls"][0]["id"] == "c1"


def test_messages_inside_win_where_those_outside_lack_a_reply() -> None:
    outer = [user("Hi"), wants("c1"), {"role": "tool", "tool_call_id": "c1", "content": ""}]
    inner = [user("Hi"), wants("c1"), replied("c1", "ok")]
    spans = [
        model(1, 0, outer, [bot("Done.")], seconds=5, scope=Scope("framework")),
        model(2, 1, inner, [bot("Done.")], parent=1, scope=Scope("client")),
    ]
    (run,) = assemble(spans, [])
    assert texts(run.row) == ["Hi", None, "ok", "Done."]


def test_items_and_blocks_as_some_send_them() -> None:
    thought = {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [{"type": "summary_text", "text": "Hm"}],
    }
    assert messages_of([thought], "user")[0]["role"] == "assistant"
    block = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
    beside = {"name": "look", "args": {}, "id": "c1", "type": "tool_call"}
    (twice,) = messages_of(
        {"role": "assistant", "content": [block], "tool_calls": [beside]}, "user"
    )
    assert [call["id"] for call in twice["tool_calls"]] == ["c1"]
    written = [{"type": "text", "content": json.dumps(item)} for item in (thought, block)]
    (read_,) = messages_of({"role": "assistant", "parts": written}, "user")
    assert read_["content"] == [{"type": "reasoning", "text": "Hm"}]
    assert [call["id"] for call in read_["tool_calls"]] == ["c1"]
    assert messages_of({"role": "user", "parts": written}, "user")[0]["role"] == "user"
    defined = {"role": "tool", "content": {"type": "function", "function": TOOL}}
    assert messages_of([user("Hi"), defined], "user") == [user("Hi")]
    reply = {"role": "user", "tool_call_id": "c1", "content": "ok"}
    assert messages_of([reply], "user") == [replied("c1", "ok")]
    spec = {"toolSpec": {"name": "look", "inputSchema": {"json": TOOL["parameters"]}}}
    (found,) = tool_definitions([{"tool": {"json_schema": json.dumps(spec)}}])
    assert found["function"] == {"name": "look", "parameters": TOOL["parameters"]}


def test_a_request_in_parts_is_read_from_langfuses_metadata() -> None:
    attributes = {
        "langfuse.observation.type": "generation",
        "langfuse.observation.input": json.dumps([user("Hi")]),
        "langfuse.observation.metadata.instructions": "Be brief.",
        "langfuse.observation.metadata.tools": json.dumps([TOOL]),
    }
    found = read(Span("t" * 32, "s" * 16, attributes=attributes), [])
    assert found.input == [{"role": "system", "content": "Be brief."}, user("Hi")]
    assert tool_definitions(found.tools[0])[0]["function"]["name"] == "look"


def test_a_call_that_threw_and_answered_nothing_failed_whatever_its_status() -> None:
    said = "Boom('it broke')Traceback (most recent call last):\n  File 'x', line 1\n  ^"
    thrown = [Event("exception", attributes={"exception.message": said})]
    failed = Span("t" * 32, "s" * 16, attributes=ASKED, events=thrown, status_code=1)
    error = read(failed, []).error
    assert error is not None and error.text == "Boom('it broke')"
    answered = ASKED | {"gen_ai.output.messages": json.dumps([bot("Hello")])}
    well = Span("t" * 32, "s" * 16, attributes=answered, events=thrown, status_code=1)
    assert read(well, []).error is None


def test_the_raw_request_has_replies_that_flattened_messages_lost() -> None:
    def turn(*ids: str) -> dict:
        calls = [{"id": i, "function": {"name": "look", "arguments": "{}"}} for i in ids]
        return {"role": "assistant", "tool_calls": calls}

    talk = [user("Hi"), turn("c1", "c2"), replied("c1", "A"), replied("c2", "B")]
    name = "llm.input_messages.1.message.tool_calls"
    attributes = {
        "openinference.span.kind": "LLM",
        "llm.input_messages.0.message.role": "user",
        "llm.input_messages.0.message.content": "Hi",
        "llm.input_messages.1.message.role": "assistant",
        f"{name}.0.tool_call.id": "c1",
        f"{name}.0.tool_call.function.name": "look",
        f"{name}.1.tool_call.id": "c2",
        f"{name}.1.tool_call.function.name": "look",
        "llm.input_messages.2.message.role": "user",
        "llm.input_messages.2.message.tool_call_id": "c2",
        "llm.input_messages.2.message.content": "B",
        "input.value": json.dumps({"model": "m", "messages": talk}),
    }
    found = read(Span("t" * 32, "s" * 16, attributes=attributes), [])
    assert [message["content"] for message in found.input[2:]] == ["A", "B"]


def test_a_framework_is_no_provider_with_prices_of_its_own() -> None:
    price = list_price("gpt-5-mini")
    assert price is not None and list_price("gpt-5-mini", provider="strands-agents") == price
    assert list_price("gpt-5-mini", provider="a-gateway-of-ours") is None


def test_a_response_repeats_the_tools_of_its_request() -> None:
    response = {"object": "response", "id": "r1", "model": "m", "tools": [TOOL]}
    said = ASKED | {"response": json.dumps(response)}
    found = read(Span("t" * 32, "s" * 16, attributes=said), [])
    assert tool_definitions(found.tools[0])[0]["function"]["name"] == "look"
    assert found.response_id == "r1"


def test_an_answer_in_the_pieces_of_its_stream_is_one_message() -> None:
    def piece(text: str, reason: str) -> dict:
        parts = [{"type": "text", "content": text}]
        return {"role": "assistant", "parts": parts, "finish_reason": reason}

    def answer(*pieces: dict) -> list[dict]:
        said = ASKED | {"gen_ai.output.messages": json.dumps(pieces)}
        return read(Span("t" * 32, "s" * 16, attributes=said), []).output

    assert answer(piece("It ra", ""), piece("ins.", "stop")) == [bot("It rains.")]
    assert len(answer(piece("It rains.", "stop"), piece("It snows.", "stop"))) == 2


def test_the_error_that_an_agent_gives_as_its_output_is_no_answer() -> None:
    raw = {
        "openinference.span.kind": "AGENT",
        "input.value": "Hi",
        "output.value": "it broke",
    }
    failed = {"status_code": 2, "status_message": "it broke"}
    asked = model(2, 1, [user("Hi")], [], parent=1, **failed)
    outer = span(1, 0, seconds=9, attributes=raw, **failed)
    (run,) = assemble([outer, asked], [])
    assert texts(run.row) == ["Hi"] and run.row["outcome"]["status"] == "failure"


def test_bare_input_and_output_are_messages_of_a_model_call() -> None:
    attributes = {
        "gen_ai.request.model": "m",
        "input": json.dumps([user("Hi")]),
        "output": json.dumps([bot("Hello")]),
    }
    found = read(Span("t" * 32, "s" * 16, attributes=attributes), [])
    assert (found.input, found.output) == ([user("Hi")], [bot("Hello")])
    assert not read(Span("t" * 32, "s" * 16, attributes=attributes | {"output": "null"}), []).output


def test_calls_named_by_their_items_get_the_ids_of_the_calls() -> None:
    called = {"id": "fc_1", "call_id": "call_1", "function": {"name": "look", "arguments": "{}"}}
    first = "llm.output_messages.0.message."
    spans = []
    for number, kind in enumerate(("output", "input"), 1):
        attributes = {
            "openinference.span.kind": "LLM",
            f"{kind}.value": json.dumps([{"role": "assistant", "tool_calls": [called]}]),
            f"{first}role": "assistant",
        }
        if kind == "output":
            attributes |= {
                f"{first}tool_calls.0.tool_call.id": "fc_1",
                f"{first}tool_calls.0.tool_call.function.name": "look",
            }
        else:
            given = "llm.input_messages."
            attributes |= {
                f"{given}0.message.role": "assistant",
                f"{given}0.message.tool_calls.0.tool_call.id": "fc_1",
                f"{given}0.message.tool_calls.0.tool_call.function.name": "look",
                f"{given}1.message.role": "tool",
                f"{given}1.message.tool_call_id": "fc_1",
                f"{given}1.message.content": "ok",
                f"{first}content": "Done.",
            }
        spans.append(span(number, number, 9, attributes=attributes))
    (run,) = assemble([agent(9, 0, 9), *spans], [])
    call, reply, _ = run.row["messages"]
    assert call["tool_calls"][0]["id"] == reply["tool_call_id"] == "call_1"


def test_of_definitions_of_one_tool_the_one_with_parameters_is_kept() -> None:
    bare_tool = json.dumps([{"name": "look", "parameters": None}])
    attributes = {
        "openinference.span.kind": "LLM",
        "gen_ai.tool.definitions": bare_tool,
        "llm.tools.0.tool.json_schema": json.dumps(TOOL),
    }
    (run,) = assemble([span(1, 0, attributes=attributes)], [])
    (kept,) = run.row["tools"]
    assert kept["function"]["parameters"] == TOOL["parameters"]


def test_a_call_that_the_request_already_answers_is_no_part_of_the_answer() -> None:
    talk = [user("Hi"), wants("call_one"), replied("call_one", "ok")]
    (run,) = assemble([model(1, 0, talk, [wants("call_one") | {"content": "Done."}])], [])
    assert texts(run.row) == ["Hi", None, "ok", "Done."]
    assert "tool_calls" not in run.row["messages"][-1]
    again = [model(1, 0, talk, [wants("call_one")])]  # a model that repeats itself
    assert "tool_calls" in assemble(again, [])[0].row["messages"][-1]
    talk = [user("Hi"), wants("c1"), replied("c1", "ok")]  # a server that counts its calls
    (run,) = assemble([model(1, 0, talk, [wants("c1") | {"content": "Again."}])], [])
    assert "tool_calls" in run.row["messages"][-1]


def test_the_inner_one_of_two_records_knows_what_was_written() -> None:
    answered = {"gen_ai.response.id": "r1", "gen_ai.usage.output_tokens": 31}
    whole = model(1, 0, [user("Hi")], [bot("Ho")], extra=answered, scope=Scope("wrapper"))
    inner = {"gen_ai.response.id": "r1", "gen_ai.usage.output_tokens": 30}
    (run,) = assemble([whole, bare(2, 0.1, 2, seconds=0.8, extra=inner)], [])
    assert run.row["usage"]["output_tokens"] == 30
    other = inner | {"gen_ai.usage.input_tokens": 7}  # it counts something else
    (run,) = assemble([whole, bare(2, 0.1, 2, seconds=0.8, extra=other)], [])
    assert run.row["usage"]["output_tokens"] == 31


def test_a_tool_that_no_message_names_is_a_call_of_its_turn() -> None:
    before = [user("Hi"), wants("call_one"), replied("call_one", "ok"), bot("Done."), user("More")]
    outer = agent(1, 0, 9)
    asked = model(2, 3, before, [bot("Enough.")], parent=1)
    for at, expected in (
        (1, ["More", None, "new", "Enough."]),
        (5, ["More", "Enough.", None, "new"]),
    ):
        called = tool(3, at, "call_two", parent=1, result="new")
        (run,) = assemble([outer, asked, called], [])
        assert texts(run.row)[4:] == expected
    known = tool(3, 1, "call_one", parent=1, result="ok")
    nameless = tool(4, 1, "", parent=1, result="?")
    inside = tool(5, 1, "call_four", parent=3, result="?")
    (run,) = assemble([outer, asked, known, nameless, inside], [])
    assert texts(run.row)[4:] == ["More", "Enough."]


def test_a_functions_span_answers_the_call_that_nothing_answers() -> None:
    asked = model(2, 1, [user("Hi")], [wants("call_one")], parent=1)
    function = span(3, 2, 1, attributes={"input": "{}", "output": "ok"}, name="look")
    (run,) = assemble([agent(1, 0, 9), asked, function], [])
    assert texts(run.row) == ["Hi", None, "ok"]
    assert run.row["metadata"]["steps"][2]["kind"] == "tool"
    other = span(3, 2, 1, attributes={"input": '{"q": 1}', "output": "ok"}, name="look")
    (run,) = assemble([agent(1, 0, 9), asked, other], [])
    assert texts(run.row) == ["Hi", None]


def test_what_a_failed_agent_said_last_is_its_error_where_no_call_is_recorded() -> None:
    failed = {"status_code": 2, "status_message": "Result error"}
    said = {
        "gen_ai.input.messages": json.dumps([user("Hi")]),
        "gen_ai.output.messages": json.dumps([bot("API error 500: overloaded")]),
    }
    (run,) = assemble([agent(1, 0, 9, extra=said, **failed)], [])
    assert texts(run.row) == ["Hi"]
    assert run.row["outcome"]["reason"] == "Result error: API error 500: overloaded"
    answered = model(2, 1, [user("Hi")], [bot("API error 500: overloaded")], parent=1)
    (run,) = assemble([agent(1, 0, 9, extra=said, **failed), answered], [])
    assert texts(run.row) == ["Hi", "API error 500: overloaded"]


def test_an_error_in_a_roots_raw_output_is_no_answer_and_a_message_in_its_input_is_one() -> None:
    raw = {
        "openinference.span.kind": "CHAIN",
        "input.value": json.dumps({"id": "x", "new_message": {"role": "user", "parts": ["Hi"]}}),
        "output.value": json.dumps({"error_message": "it broke", "author": "a"}),
    }
    failed = {"status_code": 2, "status_message": "it broke"}
    spans = [span(1, 0, seconds=9, attributes=raw), agent(2, 1, 5, parent=1, **failed)]
    assert texts(assemble(spans, [])[0].row) == ["Hi"]


def test_agents_inside_other_spans_of_a_framework_are_one_team() -> None:
    kind = "openinference.span.kind"
    framework, runtime = Scope("the framework"), Scope("its runtime")
    spans = [span(1, 0, seconds=20, attributes={kind: "CHAIN"}, scope=framework)]
    for number, name in ((10, "host"), (20, "guide")):
        at = number / 2
        spans += [
            agent(number, at, 4, parent=1, scope=runtime),
            span(
                number + 1,
                at,
                number,
                seconds=4,
                attributes={kind: "AGENT"},
                scope=framework,
                name=name,
            ),
            model(number + 2, at, [user("Hi"), user(name)], [bot("Ho")], parent=number + 1),
        ]
    assert len(assemble(spans, [])) == 1
    spans[5].name = "host"  # a batch that runs one agent twice
    assert len(assemble(spans, [])) == 2


def test_a_function_response_of_geminis_is_what_the_tool_answered() -> None:
    said = {"id": "call_one", "name": "look", "response": {"result": "ok"}}
    found = read(tool(1, 0, "call_one", result=json.dumps(said)), [])
    assert found.tool_result == '{"result":"ok"}'


def test_a_type_that_all_errors_have_says_nothing() -> None:
    thrown = Event("exception", 0, {"exception.type": "Error", "exception.message": "no such city"})
    found = read(tool(1, 0, "c1", status_code=2, events=[thrown]), [])
    assert found.error is not None and found.error.text == "no such city"


def test_an_answer_among_the_events_of_a_call_is_its_answer() -> None:
    events = [
        {"event.name": "gen_ai.user.message", "role": "user", "content": "Hi"},
        {"event.name": "gen_ai.assistant.message", "role": "assistant", "content": "Ho"},
    ]
    found = read(span(1, 0, attributes=ASKED | {"events": json.dumps(events)}), [])
    assert (found.input, found.output) == ([user("Hi")], [bot("Ho")])


# JSON inside JSON, envelopes, control values


def constructed(kind: str, **said: Any) -> dict:
    return {"lc": 1, "type": "constructor", "id": ["core", "messages", kind], "kwargs": said}


def test_blocks_and_arguments_that_are_json_inside_json() -> None:
    call = {"type": "tool_use", "id": "call_one", "name": "look", "input": {"q": 1}}
    thought = {"type": "thinking", "thinking": "Hm."}
    blocks = [thought, {"type": "text", "text": json.dumps([call])}]
    (turn,) = messages_of(
        [{"role": "assistant", "parts": [{"type": "text", "content": json.dumps(blocks)}]}], "user"
    )
    assert turn["tool_calls"][0]["id"] == "call_one"
    assert turn["content"] == [{"type": "reasoning", "text": "Hm."}]
    list_of_items = '[{"type": "table", "rows": 3}]'  # what is no block stays as it was said
    (said,) = messages_of([{"role": "user", "content": [{"text": list_of_items}]}], "user")
    assert said["content"] == list_of_items
    quoted = {"name": "look", "arguments": json.dumps('{"q": 1}')}
    (turn,) = messages_of([{"role": "assistant", "tool_calls": [{"function": quoted}]}], "user")
    assert turn["tool_calls"][0]["function"]["arguments"] == '{"q": 1}'


@pytest.mark.parametrize(
    "result",
    [
        '{"type": "text", "value": "ok"}',
        '{"type":"text","text":"ok"}',
        {"type": "error-text", "value": "ok"},
        '[{"type": "text", "text": "ok"}]',
    ],
)
def test_a_result_in_an_envelope(result: Any) -> None:
    given = [user("Hi"), wants("c1"), replied("c1", result)]
    (run,) = assemble([model(1, 0, given, [bot("Done.")])], [])
    assert texts(run.row) == ["Hi", None, "ok", "Done."]
    (run,) = assemble([model(1, 0, [user("Hi")], [wants("c1")]), tool(2, 1, "c1", 1, result)], [])
    assert texts(run.row) == ["Hi", None, "ok"]


def test_a_result_that_only_looks_like_an_envelope_stays() -> None:
    for result in ('{"type": "text", "text": "a", "at": 3}', '{"type": "car", "value": "b"}'):
        (run,) = assemble(
            [model(1, 0, [user("Hi")], [wants("c1")]), tool(2, 1, "c1", 1, result)], []
        )
        assert texts(run.row)[-1] == result


def test_a_serialised_message_as_a_tools_result_answers_its_call() -> None:
    message = constructed("ToolMessage", content="ok", tool_call_id="c1", name="look")
    given = [user("Hi"), wants("c1"), replied("c1", "ok")]
    called = {"gen_ai.tool.name": "StructuredTool", "gen_ai.operation.name": "execute_tool"}
    spans = [
        agent(1, 0, 9),
        model(2, 1, given[:1], given[1:2], 1),
        span(3, 3, 1, attributes=called | {"output.value": json.dumps(message)}),
        model(4, 5, given, [bot("Done.")], 1),
    ]
    (run,) = assemble(spans, [])
    assert texts(run.row) == ["Hi", None, "ok", "Done."]
    (step,) = [step for step in run.row["metadata"]["steps"] if step["kind"] == "tool"]
    assert (step["tool"], step["message_index"]) == ("look", 2)


@pytest.mark.parametrize(
    ("control", "words"),
    [
        ("__end__", []),
        ({"output": "__end__"}, []),
        ({"output": [{"lg_name": "Send", "node": "tools", "args": {"messages": []}}]}, []),
        ({"update": {"messages": [bot("Done.")]}, "goto": []}, ["Done."]),
    ],
)
def test_what_steers_a_graph_is_no_answer(control: Any, words: list[str]) -> None:
    found = messages_of(control, "assistant")
    assert [message["content"] for message in found] == words


def test_a_history_in_another_notation_is_no_second_thread() -> None:
    first = [user("Hi"), wants("c1"), replied("c1", "row 1")]
    again = [user("Hi"), wants("c1"), replied("c1", "row: 1")]
    spans = [
        agent(1, 0, 9),
        model(2, 1, first[:2], [], 1),
        model(3, 3, [*again], [bot("Done.")], 1),
    ]
    spans[1].attributes["gen_ai.input.messages"] = json.dumps(first)
    (run,) = assemble(spans, [])
    assert "threads" not in run.row["metadata"] and texts(run.row)[-1] == "Done."
    spans[1].attributes["gen_ai.input.messages"] = json.dumps([user("Other"), bot("words")])
    (run,) = assemble(spans, [])
    assert len(run.row["metadata"]["threads"]) == 1


def test_a_thread_has_the_name_of_its_agent() -> None:
    talk = [user("Hi"), wants("c1"), replied("c1", "ok")]
    spans = [
        agent(1, 0, 9),
        model(2, 1, talk[:1], talk[1:2], 1),
        tool(3, 2, "c1", 1, "ok", seconds=3),
        agent(4, 3, 1, 3, extra={"gen_ai.agent.name": "helper"}),
        model(5, 3.1, [user("Do it")], [bot("ok")], 4, seconds=0.5),
        model(6, 6, talk, [bot("Done.")], 1),
    ]
    (run,) = assemble(spans, [])
    (thread,) = run.row["metadata"]["threads"]
    assert thread["agent"] == "helper"


def test_cached_tokens_that_only_the_answer_of_the_same_id_counts() -> None:
    head = {"id": "r1", "model": "m"}
    counts = {"input_tokens": 40, "output_tokens": 1, "input_token_details": {"cache_read": 30}}
    answer = constructed("AIMessage", content="Ho", response_metadata=head, usage_metadata=counts)
    outside = {"openinference.span.kind": "CHAIN", "output.value": json.dumps([answer])}
    named = {"gen_ai.response.id": "r1"}
    spans = [
        agent(1, 0, 9),
        model(2, 1, [user("Hi")], [bot("Ho")], 1, extra=named),
        span(3, 3, 1, attributes=outside),
    ]
    (run,) = assemble(spans, [])
    used = run.row["usage"]
    assert (used["input_tokens"], used["cache_read_tokens"]) == (40, 30)
    spans[1] = model(2, 1, [user("Hi")], [bot("Ho")], 1, extra={"gen_ai.response.id": "r2"})
    (run,) = assemble(spans, [])
    assert run.row["usage"]["input_tokens"] == 10


@pytest.mark.parametrize(
    ("said", "is_believed"),
    [
        ({"gen_ai.request.model": "gpt-4.1-mini"}, False),
        ({"gen_ai.request.model": "nobody-knows-1"}, True),
        ({"gen_ai.request.model": "gpt-4.1-mini", "gen_ai.provider.name": "my-own"}, True),
        ({"gen_ai.request.model": "gpt-4.1-mini", "gateway.cache_hit": True}, True),
        ({"gen_ai.request.model": "gpt-4.1-mini", "gen_ai.usage.input_tokens": 0}, False),
    ],
)
def test_a_cost_of_nothing_for_tokens_that_have_a_price(said: dict, is_believed: bool) -> None:
    extra = {"gen_ai.usage.cost": 0} | said
    (run,) = assemble([model(1, 0, [user("Hi")], [bot("Ho")], extra=extra)], [])
    assert ("cost_usd" in run.row["usage"]) is is_believed
    assert run.row["metadata"].get("costs_not_believed", 0) == (not is_believed)


def test_a_sub_agents_call_below_the_tool_of_a_call_is_no_second_record_of_it() -> None:
    talk = [user("Will it rain?"), wants("c1"), replied("c1", "No.")]
    asked = [user("Rain at the pans?")]
    spans = [
        agent(1, 0, 20, extra={"gen_ai.agent.name": "salter"}),
        model(2, 1, talk[:1], talk[1:2], parent=1, seconds=6),
        tool(3, 2, "c1", parent=2, result="No.", seconds=4),
        agent(4, 3, 2, parent=3, extra={"gen_ai.agent.name": "forecaster"}),
        model(5, 3.5, asked, [bot("No rain.")], parent=4),
        model(6, 8, talk, [bot("It stays dry.")], parent=1),
    ]
    (run,) = assemble(spans, [])
    assert texts(run.row) == ["Will it rain?", None, "No.", "It stays dry."]
    assert run.row["usage"]["input_tokens"] == 30 and len(run.row["usage"]["calls"]) == 3
    (thread,) = run.row["metadata"]["threads"]
    assert [message["content"] for message in thread["messages"]] == [
        "Rain at the pans?",
        "No rain.",
    ]
    assert thread["agent"] == "forecaster"
