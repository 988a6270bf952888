"""Traces without a model call: what the steps of a framework were given and gave back shows where
the model answered.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from apps.trajectories.dialects import messages_of, reply_text
from apps.trajectories.otlp import Span, assemble
from apps.trajectories.otlp.unrecorded import merged
from tests.trajectories.test_otlp_assemble import FAILED, bot, replied, span, texts, user, wants

PROMPT = {"role": "system", "content": "Be brief."}
ASKED = [PROMPT, user("Wann?")]
CALLED = wants("call_seven")
RECORD = {
    "tool_name": "look",
    "tool_id": "call_seven",
    "tool_kwargs": {"q": 1},
    "tool_output": {"blocks": [{"block_type": "text", "text": "Um acht."}], "raw_output": 8},
}
# How conventions say that a span is a step of no particular kind, with the names of its values.
STEPS = [
    ("openinference.span.kind", "CHAIN", "input.value", "output.value"),
    ("traceloop.span.kind", "task", "traceloop.entity.input", "traceloop.entity.output"),
    (
        "langfuse.observation.type",
        "span",
        "langfuse.observation.input",
        "langfuse.observation.output",
    ),
]


def step(
    number: int, gave: Any = None, was_given: Any = None, way: tuple = STEPS[0], **more: Any
) -> Span:
    kind, name, given, answer = way
    values = {given: was_given, answer: gave}
    said = {key: json.dumps(value) for key, value in values.items() if value is not None}
    more = {"parent": 1} | more
    return span(number, number, attributes={kind: name} | said, **more)


def agent(way: tuple = STEPS[0], **more: Any) -> Span:
    kind = {"traceloop.span.kind": "workflow"}.get(way[0], "AGENT")
    return span(1, 0, seconds=30, attributes={way[0]: kind} | more.pop("extra", {}), **more)


@pytest.mark.parametrize("way", STEPS, ids=[way[0] for way in STEPS])
def test_steps_that_answer_are_the_model_calls(way: tuple) -> None:
    spans = [
        agent(way),
        step(2, {"input": ASKED[1:]}, way=way),
        step(3, {"input": ASKED}, way=way),
        step(4, {"response": CALLED, "tool_calls": [], "retries": 0}, way=way),
        step(5, RECORD, way=way),
        step(6, {"input": ASKED}, way=way),
        step(7, {"response": bot("Um acht."), "tool_calls": []}, way=way),
        step(8, {"result": {"response": bot("Um acht."), "tool_calls": []}}, way=way),
    ]
    (run,) = assemble(spans, [])
    assert texts(run.row) == ["Be brief.", "Wann?", None, "Um acht.", "Um acht."]
    assert run.row["messages"][3]["tool_call_id"] == "call_seven"
    metadata = run.row["metadata"]
    kinds = [step["kind"] for step in metadata["steps"]]
    assert kinds == ["agent", "other", "other", "model", "tool", "other", "model", "other"]
    assert metadata["uncounted_calls"] == 2 and run.row["tags"] == ["by-shape"]
    places = [step.get("message_index") for step in metadata["steps"]]
    assert places == [None, None, None, 2, 3, None, 4, None]


def test_a_call_that_only_the_record_of_its_tool_shows() -> None:
    said = {"result": {"answer": bot("Um acht.")}}
    (run,) = assemble([agent(), step(2, {"input": ASKED}), step(3, RECORD), step(4, said)], [])
    assert texts(run.row) == ["Be brief.", "Wann?", None, "Um acht.", "Um acht."]
    assert run.row["messages"][2]["tool_calls"][0]["id"] == "call_seven"


def test_a_record_of_a_tool_that_failed() -> None:
    record = RECORD | {"tool_output": {"content": "broken", "is_error": True}}
    spans = [agent(), step(2, {"input": ASKED}), step(3, record), step(4, bot("Hm."))]
    (run,) = assemble(spans, [])
    tool = next(step for step in run.row["metadata"]["steps"] if step["kind"] == "tool")
    assert "broken" in tool["error"] and run.row["outcome"]["status"] == "unknown"


def test_what_an_agent_inside_a_tool_was_asked_is_not_asked_of_the_outer_one() -> None:
    inner = [
        step(4, {"input": [user("Look it up.")]}, parent=3, seconds=0.1),
        step(5, bot("Eight."), parent=3, seconds=0.1),
    ]
    outer = [step(2, {"input": ASKED}), step(3, RECORD, seconds=3), step(8, bot("Um acht."))]
    (run,) = assemble([agent(), *outer, *inner], [])
    assert texts(run.row) == ["Be brief.", "Wann?", None, "Um acht.", "Um acht."]


@pytest.mark.parametrize("lacking", ["tool_name", "tool_id", "tool_output"])
def test_what_lacks_a_part_is_no_record_of_a_tool(lacking: str) -> None:
    record = {name: value for name, value in RECORD.items() if name != lacking}
    (run,) = assemble([agent(), step(2, {"input": ASKED}), step(3, record)], [])
    assert "tool" not in [step["kind"] for step in run.row["metadata"]["steps"]]


def test_an_agent_that_says_itself_what_was_said_is_believed() -> None:
    said = {"input.value": json.dumps([user("Wann?")]), "output.value": json.dumps(bot("Um acht."))}
    spans = [agent(extra=said), step(2, {"input": [user("Other")]}), step(3, bot("Another"))]
    (run,) = assemble(spans, [])
    assert texts(run.row) == ["Wann?", "Um acht."]
    assert [step["kind"] for step in run.row["metadata"]["steps"]] == ["agent", "other", "other"]


def test_an_agent_that_failed_before_any_answer() -> None:
    (run,) = assemble([agent(**FAILED), step(2, {"input": ASKED})], [])
    assert texts(run.row) == ["Be brief.", "Wann?"] and run.row["outcome"]["status"] == "failure"


def test_a_trace_that_breaks_off_before_any_answer() -> None:
    (run,) = assemble([step(2, {"input": ASKED[1:]}), step(3, {"input": ASKED})], [])
    assert texts(run.row) == ["Be brief.", "Wann?"]
    root = span(1, 0, seconds=30)
    assert assemble([root, step(2, {"input": ASKED})], []) == []


@pytest.mark.parametrize(
    "spans",
    [
        [step(2, "Um acht."), step(3, {"answer": "Um acht."})],
        [step(2, bot("Welcome.")), step(3, {"rows": [1, 2]})],
        [step(2, [{"id": 1, "name": "Ann"}], {"query": "all"})],
    ],
)
def test_steps_without_a_question_are_no_run(spans: list[Span]) -> None:
    assert assemble([span(1, 0, seconds=30), *spans], []) == []


SAME = [user("a"), bot("b")]


@pytest.mark.parametrize(
    ("talk", "said", "expected"),
    [
        ([], SAME, SAME),
        ([user("a")], [PROMPT, user("a")], [PROMPT, user("a")]),
        (SAME, [user("a")], SAME),
        (SAME, [bot("b")], SAME),
        ([*SAME, user("c")], [bot("b")], [*SAME, user("c"), bot("b")]),
        ([user("c")], [*SAME, user("c")], [*SAME, user("c")]),
        (SAME, [user("a"), user("c")], [*SAME, user("c")]),
        ([*SAME, user("c")], [user("a"), PROMPT, user("c")], [*SAME, PROMPT, user("c")]),
        (
            [user("a"), CALLED, replied("call_seven", "8")],
            [CALLED],
            [user("a"), CALLED, replied("call_seven", "8")],
        ),
    ],
)
def test_accounts_of_one_talk_are_merged(talk: list, said: list, expected: list) -> None:
    assert merged(talk, said) == expected


def test_the_message_in_an_object_that_repeats_its_calls() -> None:
    call = {"tool_name": "look", "tool_id": "c1", "tool_kwargs": {}}
    assert messages_of({"said": bot("Ho"), "tool_calls": [call]}, "assistant") == [bot("Ho")]
    (message,) = messages_of({"content": "Ho", "said": bot("x"), "tool_calls": [call]}, "assistant")
    assert message["content"] == "Ho" and message["tool_calls"][0]["id"] == "c1"


def test_blocks_whose_type_is_named_as_theirs() -> None:
    blocks = [{"block_type": "text", "text": "Um"}, {"block_type": "text", "text": "acht."}]
    assert reply_text({"blocks": blocks, "raw": 8}) == "Um\nacht."
    block = {
        "block_type": "tool_call",
        "tool_call_id": "c1",
        "tool_name": "look",
        "tool_kwargs": "{}",
    }
    (message,) = messages_of([{"role": "assistant", "blocks": [block]}], "user")
    assert message["tool_calls"][0]["id"] == "c1" and message["content"] is None
