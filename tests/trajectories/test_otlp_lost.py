"""What instrumentations leave out, write in the place of something else or write as something else:
it is found elsewhere, or the run says that it is missing.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from apps.trajectories.dialects import Lost, messages_of, out_of_message
from apps.trajectories.otlp import Event, Run, Span, assemble
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

SAID = [{"role": "system", "content": "Be brief."}, user("Wann?"), bot("Um acht.")]
BY_SPEAKER = [{"system": "Be brief."}, {"human": "Wann?"}, {"ai": "Um acht."}]


# Who speaks


@pytest.mark.parametrize(
    "value",
    [
        BY_SPEAKER,
        json.dumps(BY_SPEAKER),
        [json.dumps(one) for one in BY_SPEAKER],
        [str(one) for one in BY_SPEAKER],
        str([str(one) for one in BY_SPEAKER]),
        {"system": "Be brief.", "user": "Wann?", "assistant": "Um acht."},
    ],
)
def test_members_that_are_named_by_who_speaks(value: Any) -> None:
    assert messages_of(value, "user") == SAID


@pytest.mark.parametrize(
    "value",
    [[{"user": {"id": 5}}], [{"model": "m-1"}], [{"user": "Ann", "city": "Ulm"}], {"user": "Ann"}],
)
def test_members_that_only_have_such_a_name(value: Any) -> None:
    (message,) = messages_of(value, "user")
    assert json.loads(message["content"]) == (value[0] if isinstance(value, list) else value)


def test_objects_without_a_speaker_are_no_messages() -> None:
    given = json.dumps([user("Hi"), {"invoice": 7}, {"invoice": 8}])
    lost = Lost()
    assert messages_of(given, "user", lost=lost) == [user("Hi")] and lost.is_unread
    (run,) = assemble([model(1, 0, [], [bot("Ho")], extra={"gen_ai.input.messages": given})], [])
    assert texts(run.row) == ["Hi", "Ho"] and run.row["tags"] == ["unread-messages"]
    assert run.row["metadata"]["attributes"]["gen_ai.input.messages"] == given
    (run,) = assemble([model(1, 0, [user("Hi")], [bot("Ho")])], [])
    assert run.row["tags"] == [] and "gen_ai.input.messages" not in str(run.row["metadata"])


# What is no answer


@pytest.mark.parametrize(
    "words",
    [
        "<acme.Stream object at 0x7f3a1c0b5d90>",
        "<generator object ask.<locals>.words at 0x10a2b3c4d>",
        "[object Object]",
        "[object AsyncGenerator]",
    ],
)
def test_a_printed_object_is_no_answer(words: str) -> None:
    for answer in (json.dumps([bot(words)]), words):
        spans = [model(1, 0, [user("Hi")], [], extra={"gen_ai.output.messages": answer})]
        (run,) = assemble(spans, [])
        assert texts(run.row) == ["Hi"] and run.row["tags"] == ["missing-answer"]


@pytest.mark.parametrize(
    "words",
    [
        "<b>at 0x10</b>",
        "[object lost]",
        "I saw <x at 0x12345> here",
        "<x at 0x12345> was here",
        "[object Object] is what I saw",
    ],
)
def test_words_that_look_like_one_are_an_answer(words: str) -> None:
    (run,) = assemble([model(1, 0, [user("Hi")], [bot(words)])], [])
    assert texts(run.row) == ["Hi", words]


def test_the_text_of_the_error_is_no_answer() -> None:
    for words in ("it broke", "Error: it broke"):
        (run,) = assemble([model(1, 0, [user("Hi")], [bot(words)], **FAILED)], [])
        assert texts(run.row) == ["Hi"] and run.row["outcome"]["status"] == "failure"
    (run,) = assemble([model(1, 0, [user("Hi")], [bot("Half of it")], **FAILED)], [])
    assert texts(run.row) == ["Hi", "Half of it"]


# Loops


def test_a_span_that_sums_up_calls_is_an_agent() -> None:
    summed = {"gen_ai.usage.input_tokens": 20, "gen_ai.usage.output_tokens": 2}
    talk = [user("Hi"), wants("c1"), replied("c1", "ok")]
    spans = [
        model(1, 0, talk[:1], [bot("Done.")], seconds=9, extra=summed),
        model(2, 1, talk[:1], talk[1:2], parent=1),
        tool(3, 3, "c1", parent=1, result="ok"),
        model(4, 5, talk, [bot("Done.")], parent=1),
    ]
    (run,) = assemble(spans, [])
    assert texts(run.row) == ["Hi", None, "ok", "Done."]
    assert run.row["usage"]["input_tokens"] == 20 and len(run.row["usage"]["calls"]) == 2
    assert [step["kind"] for step in run.row["metadata"]["steps"]] == [
        *("agent", "model", "tool", "model")
    ]


def test_two_records_of_one_call_inside_another_are_that_call() -> None:
    same = {"gen_ai.response.id": "answer_one"}
    spans = [
        model(number, number / 10, [user("Hi")], [bot("Ho")], parent=parent, extra=same)
        for number, parent in ((1, 0), (2, 1), (3, 1))
    ]
    (run,) = assemble(spans, [])
    assert len(run.row["usage"]["calls"]) == 1 and texts(run.row) == ["Hi", "Ho"]


def test_a_tool_that_fails_in_a_call_that_answers_is_no_failure() -> None:
    def outcome(answer: list) -> str:
        spans = [
            model(1, 0, [user("Hi")], answer, seconds=9),
            tool(2, 1, parent=1, **FAILED),
        ]
        (run,) = assemble(spans, [])
        return run.row["outcome"]["status"]

    assert outcome([bot("It could not be looked up.")]) == "unknown"
    assert outcome([]) == outcome([wants("c1")]) == "failure"


# Tools


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([{"role": "assistant", "content": '{"q": 1}'}], {"q": 1}),
        ([{"role": "user", "parts": [{"type": "text", "content": "sunny"}]}], "sunny"),
        ([{"role": "tool", "tool_call_id": "c1", "content": "sunny"}], "sunny"),
        ([wants("c1")], "{}"),
        ([user("one"), user("two")], [user("one"), user("two")]),
        ([{"type": "text", "text": "block"}], [{"type": "text", "text": "block"}]),
        ({"role": "user", "content": "a row"}, {"role": "user", "content": "a row"}),
        ("sunny", "sunny"),
    ],
)
def test_values_of_tools_that_are_written_as_a_message(value: Any, expected: Any) -> None:
    assert out_of_message(value, "tool") == expected
    if isinstance(value, list):
        assert out_of_message(json.dumps(value), "tool") in (expected, json.dumps(value))


def test_a_tool_whose_values_are_messages() -> None:
    given = json.dumps([{"role": "user", "parts": [{"type": "text", "content": '{"q": 1}'}]}])
    answer = json.dumps([{"role": "tool", "parts": [{"type": "text", "content": "sunny"}]}])
    values = {"gen_ai.input.messages": given, "gen_ai.output.messages": answer}
    look = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "look"}
    spans = [
        agent(1, 0, 9),
        model(2, 1, [user("Hi")], [], parent=1),
        span(3, 3, 1, attributes=look | values),
    ]
    (run,) = assemble(spans, [])
    (call,) = [call for message in run.row["messages"] for call in message.get("tool_calls") or ()]
    (reply,) = [message for message in run.row["messages"] if message["role"] == "tool"]
    assert call["function"]["arguments"] == {"q": 1} and reply["content"] == "sunny"


# Answers that were left out


def asked_again(at: float = 2, trace: int = 2, word: str = "Hi", **more: Any) -> Span:
    talk = [user(word), wants("c1"), replied("c1", "ok")]
    return model(trace, at, talk, [bot("Done.")], trace=trace, **more)


def unanswered(trace: int = 1, at: float = 0, **more: Any) -> Span:
    return model(trace, at, [user("Hi")], [], trace=trace, **more)


def runs(*spans: Span) -> list[Run]:
    return assemble(spans, [])


def test_the_answer_is_taken_from_the_next_request() -> None:
    (run,) = runs(unanswered(), asked_again())
    assert texts(run.row) == ["Hi", None, "ok", "Done."] and run.row["tags"] == []
    assert [step["message_index"] for step in run.row["metadata"]["steps"]] == [1, 3]
    apart = [runs(one)[0].links[one.trace_id] for one in (unanswered(), asked_again())]
    assert apart[0].has & apart[1].wants and apart[1].has & apart[0].wants


NO_TOKENS = {"gen_ai.usage.output_tokens": 0}
APART = {
    "two wait for it": (unanswered(), unanswered(3, 0.5), asked_again()),
    "too late": (unanswered(), asked_again(700)),
    "before it": (unanswered(at=5), asked_again(2)),
    "before it ends": (unanswered(seconds=9), asked_again(2)),
    "another request": (unanswered(), asked_again(word="Ho")),
    "no tokens": (unanswered(extra=NO_TOKENS), asked_again()),
    "an error": (unanswered(**FAILED), asked_again()),
    "another user": (
        unanswered(extra={"user.id": "ann"}),
        asked_again(extra={"user.id": "bob"}),
    ),
    "without calls": (
        unanswered(),
        model(2, 2, [user("Hi"), bot("Ho"), user("More")], [bot("Done.")], trace=2),
    ),
}


@pytest.mark.parametrize("spans", APART.values(), ids=APART)
def test_runs_stay_apart(spans: tuple[Span, ...]) -> None:
    assert len(runs(*spans)) == len(spans)


def test_a_call_whose_answer_is_known_already_waits_for_no_other() -> None:
    def goes_on(trace: int, at: float, call: str, said: list) -> Span:
        return model(trace, at, [user("Hi"), wants(call), replied(call, call)], said, trace=trace)

    first, other = runs(unanswered(), goes_on(2, 2, "c1", []), goes_on(3, 4, "c2", [bot("Ho")]))
    assert len(first.trace_ids) == 2 and texts(other.row) == ["Hi", None, "c2", "Ho"]


def test_an_answer_that_nothing_says_is_missing() -> None:
    (run,) = runs(unanswered())
    assert run.row["tags"] == ["missing-answer"]
    (run,) = runs(unanswered(extra={"gen_ai.input.messages": "[]"}))
    assert run.row["tags"] == []
    said = {"gen_ai.output.messages": json.dumps([bot("Ho")])}
    (run,) = runs(agent(1, 0, 9, extra=said), model(2, 1, [user("Hi")], [], parent=1))
    assert texts(run.row) == ["Hi", "Ho"] and run.row["tags"] == []


# As some write them


def test_a_body_that_is_the_text_of_one_attribute() -> None:
    def event(name: str, said: dict) -> Event:
        return Event(f"gen_ai.{name}", 1, {"gen_ai.event.content": json.dumps(said)})

    call = wants("c1")["tool_calls"]
    asked = {"role": "user", "content": "Hi"}
    spans = [
        model(
            number,
            number * 2,
            [],
            [],
            trace=number,
            extra={"gen_ai.input.messages": "", "gen_ai.output.messages": ""},
            events=events,
        )
        for number, events in (
            (
                1,
                [
                    event("user.message", asked),
                    event("choice", {"index": 0, "message": {"content": None, "tool_calls": call}}),
                ],
            ),
            (
                2,
                [
                    event("user.message", asked),
                    event("assistant.message", wants("c1")),
                    event("tool.message", replied("c1", "ok")),
                    event("choice", {"message": {"content": "Done."}, "finish_reason": "stop"}),
                ],
            ),
        )
    ]
    (run,) = assemble(spans, [])
    assert texts(run.row) == ["Hi", None, "ok", "Done."]
    assert run.row["messages"][2]["tool_call_id"] == "c1"


def test_messages_with_a_name_for_each_member() -> None:
    given, answer = "gen_ai.input.messages", "gen_ai.output.messages"
    called = f"{answer}.0.message.tool_calls.0.tool_call"
    flat = {
        "gen_ai.operation.name": "chat",
        f"{given}.0.message.role": "system",
        f"{given}.0.message.content": "Be brief.",
        f"{given}.1.message.role": "user",
        f"{given}.1.message.content": "Hi",
        f"{answer}.0.message.role": "assistant",
        f"{called}.id": "c1",
        f"{called}.function.name": "look",
        f"{called}.function.arguments": '{"q": 1}',
        "input.value": "Be brief.",
        "output.value": "Function: look",
    }
    (run,) = assemble([span(1, 0, attributes=flat)], [])
    assert texts(run.row) == ["Be brief.", "Hi", None]
    assert run.row["messages"][2]["tool_calls"][0]["id"] == "c1"


def test_calls_as_content_and_what_is_left_of_them() -> None:
    call = wants("c1")["tool_calls"][0] | {"type": "function"}
    (message,) = messages_of([{"role": "assistant", "content": [call]}], "user")
    assert message["content"] is None and message["tool_calls"][0]["id"] == "c1"
    lost = Lost()
    given = [user("Hi"), [{"id": "", "type": ""}], replied("c1", "ok")]
    assert messages_of(given, "user", lost=lost) == [given[0], given[2]] and not lost.is_unread


def test_a_speaker_who_is_the_tool_that_was_called() -> None:
    answer = {"role": "look", "content": "ok"}
    spans = [model(1, 0, [user("Hi"), wants("c1"), answer], [bot("Done.")])]
    (run,) = assemble(spans, [])
    assert run.row["messages"][2] == {
        **{"role": "tool", "name": "look", "content": "ok", "tool_call_id": "c1"}
    }
    spans = [model(1, 0, [user("Hi"), wants("c1"), answer | {"role": "critic"}], [bot("Done.")])]
    (run,) = assemble(spans, [])
    said = next(message for message in run.row["messages"] if message.get("name") == "critic")
    assert said["role"] == "user"


def test_blocks_in_pythons_notation_are_words() -> None:
    said = str({"annotations": [], "text": "It's ready.", "type": "output_text"})
    parts = [{"type": "text", "content": said}]
    (message,) = messages_of([{"role": "assistant", "parts": parts}], "user")
    assert message["content"] == "It's ready."


@pytest.mark.parametrize(
    ("words", "is_kept"),
    [
        ("FunctionCall(arguments='{\"q\": 1}', call_id='c1', name='look')", False),
        ("StopEvent(result=Output(text=<Role.ASSISTANT: 'a'>), current='agent')", False),
        ("Point(x, y) is what you want.", True),
        ("Use Point(x=1)", True),
        ("Use Point(x=1, y=2)", True),
        ("Point(x=1)", True),
    ],
)
def test_an_object_in_pythons_notation_is_no_answer(words: str, is_kept: bool) -> None:
    (run,) = assemble([model(1, 0, [user("Hi")], [bot(words)])], [])
    assert texts(run.row) == (["Hi", words] if is_kept else ["Hi"])


@pytest.mark.parametrize("kind", [{"gen_ai.operation.name": "chat"}, {"acme.span.kind": "llm"}])
def test_a_number_is_nobodys_answer(kind: dict) -> None:
    attributes = kind | {
        "acme.request.messages": json.dumps([user("Hi")]),
        "acme.config.max_output": -1,
        "acme.end.choices": json.dumps([{"message": bot("Ho")}]),
    }
    (run,) = assemble([span(1, 0, attributes=attributes)], [])
    assert texts(run.row) == ["Hi", "Ho"]


def test_a_tools_error_that_was_copied_to_what_went_on_is_the_tools() -> None:
    def outcome(**last: Any) -> str:
        broken = Event("exception", 1, {"exception.message": "it broke"})
        spans = [
            agent(1, 0, 9, extra={"gen_ai.output.messages": json.dumps([bot("Ho")])}, **FAILED),
            model(2, 1, [user("Hi")], [wants("c1")], parent=1),
            tool(3, 3, "c1", parent=1, events=[broken], **FAILED),
            model(4, 5, [user("Hi"), wants("c1"), replied("c1", "?")], [bot("Ho")], 1, **last),
        ]
        (run,) = assemble(spans, [])
        return run.row["outcome"]["status"]

    assert outcome(**FAILED) == "unknown"
    thrown = Event("exception", 1, {"exception.message": "it broke"})
    assert outcome(**FAILED, events=[thrown]) == "failure"


def test_counts_by_provider() -> None:
    said = {"acme": {"reasoningTokens": 3, "cachedPromptTokens": 4}, "other": "x"}
    extra = {"ai.response.providerMetadata": json.dumps(said)}
    (run,) = assemble([model(1, 0, [user("Hi")], [bot("Ho")], extra=extra)], [])
    used = run.row["usage"]["calls"][0]["usage"]
    assert (used["cache_read_tokens"], used["reasoning_tokens"], used["input_tokens"]) == (4, 3, 10)


PRINTED = "ToolCall(arguments='{\"q\": 1}', call_id='call_one', name='look', "
PRINTED += "type='function_call', id='item_one', status=<Status.DONE: 'done'>, caller=None)"


@pytest.mark.parametrize(
    "answer",
    [bot(PRINTED), {"role": "assistant", "parts": [{"type": "text", "content": PRINTED}]}],
)
def test_a_call_as_a_language_prints_it(answer: dict) -> None:
    """The first call answers with it, the second repeats the request without it."""
    look = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "look"}
    values = {"gen_ai.tool.call.arguments": '{"q": 1}', "gen_ai.tool.call.result": "ok"}
    spans = [
        agent(1, 0, 9),
        model(2, 1, [user("Hi")], [answer], parent=1),
        span(3, 3, 1, attributes=look | values),
        model(4, 5, [user("Hi")], [bot("Done.")], parent=1),
    ]
    (run,) = assemble(spans, [])
    assert texts(run.row) == ["Hi", None, "ok", "Done."]
    (call,) = run.row["messages"][1]["tool_calls"]
    assert call["id"] == run.row["messages"][2]["tool_call_id"] == "call_one"
    assert call["function"] == {"name": "look", "arguments": '{"q": 1}'}


@pytest.mark.parametrize(
    "words",
    [
        "look(q=1, call_id='c')",
        "In short: ToolCall(call_id='c', name='look', type='function_call')",
        '{"type": "function_call", "call_id": "c"}',
        '{"type": "function_call", "call_id": "", "name": "look"}',
    ],
)
def test_words_that_name_a_call_are_words(words: str) -> None:
    assert messages_of([bot(words)], "user") == [bot(words)]


@pytest.mark.parametrize(
    "words",
    [
        "ToolCall(arguments='{}', call_id=broken(, name='look', type='function_call')",
        "ToolCall(call_id='call_one', type='function_call', status='done')",
    ],
)
def test_objects_that_name_no_tool_are_no_call(words: str) -> None:
    assert messages_of([bot(words)], "user") == []


def test_a_request_that_is_repeated_without_a_tool_in_between_stands_alone() -> None:
    def read(*tools: Span) -> list:
        spans = [
            agent(1, 0, 9),
            model(2, 1, [user("Hi")], [wants("c1")], parent=1),
            *tools,
            model(4, 5, [user("Hi")], [bot("Done.")], parent=1),
        ]
        (run,) = assemble(spans, [])
        return run.row["messages"]

    _, called, reply, done = read(tool(3, 3, parent=1, result="ok"))
    assert called["tool_calls"][0]["id"] == reply["tool_call_id"] == "c1"
    assert [reply["content"], done["content"]] == ["ok", "Done."]
    assert read() == [user("Hi"), bot("Done.")]


# Streams


def streamed(words: str, whole: str) -> list:
    said = {"gen_ai.output.messages": json.dumps([bot(whole)])}
    spans = [agent(1, 0, 9, extra=said), model(2, 1, [user("Hi")], [bot(words)], parent=1)]
    (run,) = assemble(spans, [])
    return texts(run.row)


@pytest.mark.parametrize("words", ["ns in Ulm today.", " in Ulm today.", "in Ulm today."])
def test_the_last_piece_of_a_stream_is_completed_by_the_agents_answer(words: str) -> None:
    whole = "It rains in Ulm today."
    expected = words if words == "in Ulm today." else whole
    assert streamed(words, whole) == ["Hi", expected]


@pytest.mark.parametrize(
    ("words", "whole"),
    [("42", "Answer: 42"), ("It rains.", "Note. It rains."), ("rain", "It rains"), ("x", "x")],
)
def test_words_that_an_agent_says_more_about_stay(words: str, whole: str) -> None:
    assert streamed(words, whole)[:2] == ["Hi", words]


def defined(name: str, *properties: str, required: tuple = ()) -> dict:
    members = {"properties": {key: {"type": "string"} for key in properties}, "required": required}
    return {"type": "function", "function": {"name": name, "parameters": members}}


LOOK = defined("look", "city", "day", required=("city",))


def added_up(words: str, reply: dict, *tools: dict, later: str = "Hi") -> list:
    """The messages of two calls, the first of which answers with words."""
    said = {"gen_ai.tool.definitions": json.dumps(tools)}
    spans = [
        model(1, 0, [user("Hi")], [bot(words)], extra=said),
        model(2, 2, [user(later), reply], [bot("Done.")]),
    ]
    return [message for run in assemble(spans, []) for message in run.row["messages"]]


def test_arguments_that_were_added_up_as_words_are_a_call() -> None:
    tools = (LOOK, defined("ask", "question"))
    _, called, reply, done = added_up('{"city": "Ulm"}', replied("call_one", "ok"), *tools)
    (call,) = called["tool_calls"]
    assert call["id"] == reply["tool_call_id"] == "call_one" and done["content"] == "Done."
    assert call["function"] == {"name": "look", "arguments": '{"city": "Ulm"}'}


@pytest.mark.parametrize(
    ("words", "reply", "tools", "later"),
    [
        ('{"city": "Ulm"}', replied("call_one", "ok"), [LOOK, defined("see", "city")], "Hi"),
        ('{"day": "1"}', replied("call_one", "ok"), [LOOK], "Hi"),
        ('{"city": "Ulm", "x": 1}', replied("call_one", "ok"), [LOOK], "Hi"),
        ("{city}", replied("call_one", "ok"), [LOOK], "Hi"),
        ('{"city": "Ulm"}', user("ok"), [LOOK], "Hi"),
        ('{"city": "Ulm"}', replied("call_one", "ok"), [LOOK], "Ho"),
        ('{"city": "Ulm"}', replied("call_one", "ok"), [], "Hi"),
    ],
)
def test_other_words_are_no_call(words: str, reply: dict, tools: list, later: str) -> None:
    messages = added_up(words, reply, *tools, later=later)
    assert not any(message.get("tool_calls") for message in messages)


# What events say


def test_what_of_an_event_is_not_read_is_said() -> None:
    empty = {"gen_ai.input.messages": "", "gen_ai.output.messages": ""}

    def read(*given: Any) -> Run:
        events = [
            Event("gen_ai.content.prompt", 1, {"gen_ai.prompt": json.dumps(given)}),
            Event("gen_ai.content.completion", 2, {"gen_ai.completion": json.dumps([bot("Ho")])}),
        ]
        (run,) = assemble([model(1, 0, [], [], extra=empty, events=events)], [])
        return run

    run = read(user("Hi"), {"invoice": 7})
    assert texts(run.row) == ["Hi", "Ho"] and run.row["tags"] == ["unread-messages"]
    run = read(user("Hi"), [{"id": "", "type": "", "members": []}])
    assert texts(run.row) == ["Hi", "Ho"] and run.row["tags"] == []


def test_a_zero_says_something() -> None:
    assert messages_of([{"id": "", "count": 0}], "assistant")
    assert not messages_of([{"id": "", "count": None}], "assistant")


def test_a_call_of_no_convention_that_failed() -> None:
    def read(**more: Any) -> list[Run]:
        given = {"x.messages": json.dumps([user("Hi")]), "x.config.model_name": "gpt-4o-mini"}
        return assemble([span(1, 0, attributes=given, **more)], [])

    (run,) = read(**FAILED)
    assert texts(run.row) == ["Hi"] and run.row["outcome"]["status"] == "failure"
    assert read() == []


@pytest.mark.parametrize("name", ["acme.provider_metadata", "x.responseMetadata"])
def test_what_providers_say_of_an_answer_is_known_by_the_end_of_its_name(name: str) -> None:
    said = {"acme": {"reasoningTokens": 3}, "gateway": {"cost": "0.5"}, "note": "x"}
    (run,) = assemble([model(1, 0, [user("Hi")], [bot("Ho")], extra={name: json.dumps(said)})], [])
    used = run.row["usage"]["calls"][0]["usage"]
    assert (used["reasoning_tokens"], used["cost_usd"]) == (3, 0.5)
    extra = {f"{name}.limits": json.dumps(said)}
    (run,) = assemble([model(1, 0, [user("Hi")], [bot("Ho")], extra=extra)], [])
    assert "cost_usd" not in run.row["usage"]["calls"][0]["usage"]


@pytest.mark.parametrize("name", ["gen_ai.event.content", "body", "acme.payload"])
def test_the_body_of_an_event_is_known_by_its_members(name: str) -> None:
    empty = {"gen_ai.input.messages": "", "gen_ai.output.messages": ""}
    choice = {"index": 0, "message": {"content": None, "tool_calls": wants("c1")["tool_calls"]}}
    events = [
        Event("gen_ai.user.message", 1, {name: json.dumps({"content": "Hi"})}),
        Event("gen_ai.choice", 2, {name: json.dumps(choice), "x": '{"index": 3}'}),
    ]
    (run,) = assemble([model(1, 0, [], [], extra=empty, events=events)], [])
    assert texts(run.row) == ["Hi", None]
    assert run.row["messages"][1]["tool_calls"][0]["id"] == "c1"


# Spans with one id


@pytest.mark.parametrize("order", [1, -1])
def test_different_spans_with_one_id_are_both_kept(order: int) -> None:
    spans = [
        model(2, 1, [user("Wann?")], [wants("c1")], parent=1),
        tool(2, 3, "c1", parent=1, result="8"),
    ]
    (run,) = assemble([agent(1, 0, 9), *spans[::order]], [])
    steps = [(step["kind"], step["span_id"][-3:]) for step in run.row["metadata"]["steps"]]
    assert steps[1:] == [("model", "002"), ("tool", "2:2")]
    assert [message["role"] for message in run.row["messages"]] == ["user", "assistant", "tool"]


def test_a_span_that_was_sent_before_it_ended_is_one() -> None:
    begun = model(2, 1, [user("Wann?")], [], parent=1, name="chat (running)")
    begun.end_ns = 0
    ended = model(2, 1, [user("Wann?")], [bot("Um acht.")], parent=1, name="chat")
    for spans in ([begun, ended], [ended, begun]):
        (run,) = assemble([agent(1, 0, 9), *spans], [])
        assert texts(run.row) == ["Wann?", "Um acht."]
        assert [step["kind"] for step in run.row["metadata"]["steps"]] == ["agent", "model"]
