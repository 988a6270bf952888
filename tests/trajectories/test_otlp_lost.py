"""What instrumentations leave out, write in the place of something else or write as something else:
it is found elsewhere, or the run says that it is missing.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from apps.trajectories.dialects import Lost, messages_of, out_of_message
from apps.trajectories.otlp import Run, Span, assemble
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


@pytest.mark.parametrize("words", ["<b>at 0x10</b>", "[object lost]", "I saw <x at 0x12345> here"])
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


def test_an_answer_that_nothing_says_is_missing() -> None:
    (run,) = runs(unanswered())
    assert run.row["tags"] == ["missing-answer"]
    (run,) = runs(unanswered(extra={"gen_ai.input.messages": "[]"}))
    assert run.row["tags"] == []
    said = {"gen_ai.output.messages": json.dumps([bot("Ho")])}
    (run,) = runs(agent(1, 0, 9, extra=said), model(2, 1, [user("Hi")], [], parent=1))
    assert texts(run.row) == ["Hi", "Ho"] and run.row["tags"] == []
