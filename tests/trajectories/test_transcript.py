"""What the pages are made of, without a database: turns, arguments, timing, alignment."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apps.trajectories.arguments import Checker
from apps.trajectories.filters import active, normal
from apps.trajectories.pages.comparison import align, argument_changes
from apps.trajectories.pages.transcript import FOLD_ABOVE, SHOWN, Medium, turns_of
from apps.trajectories.pages.waterfall import waterfall


def tool(name: str = "close", **schema: Any) -> dict:
    return {
        "type": "function",
        "function": {"name": name, "parameters": {"type": "object", **schema}},
    }


def call(name: str = "close", arguments: Any = None, id: str = "c1") -> dict:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments or {}}}


TICKET = tool(
    properties={"id": {"type": "integer"}, "note": {"type": "string"}},
    required=["id"],
    additionalProperties=False,
)


def test_a_call_and_its_reply_are_one_turn() -> None:
    found = turns_of(
        [
            {"role": "user", "content": "Close both."},
            {"role": "assistant", "content": None, "tool_calls": [call(id="a"), call(id="b")]},
            {"role": "tool", "tool_call_id": "b", "content": "second"},
            {"role": "tool", "tool_call_id": "a", "content": "first"},
            {"role": "assistant", "content": "Done."},
        ]
    )
    assert [turn.index for turn in found] == [0, 1, 4]
    assert [item.reply.text.head for item in found[1].calls] == ["first", "second"]
    assert found[1].indices == {1, 2, 3} and not found[1].unanswered


def test_a_reply_without_a_call_stands_alone_and_a_call_without_reply_is_marked() -> None:
    found = turns_of(
        [
            {"role": "tool", "tool_call_id": "x", "content": "?"},
            {"role": "assistant", "tool_calls": [call(id="a")]},
            {"role": "tool", "tool_call_id": "other", "content": "!"},
            {"role": "user", "content": "hm"},
        ]
    )
    assert [turn.role for turn in found] == ["tool", "assistant", "tool", "user"]
    assert found[1].unanswered and found[2].reply_to == "other"


def test_a_value_turns_none_of_the_json_around_it_round() -> None:
    wanted = {"file": "bill_\u202efdp.exe", "note": "\u05e9\u05dc"}
    (turn,) = turns_of([{"role": "assistant", "tool_calls": [call(arguments=wanted)]}])
    shown = turn.calls[0].arguments.head
    assert "bill_\\u202efdp.exe" in shown and "\u05e9\u05dc" in shown
    assert json.loads(shown) == wanted


def test_a_late_reply_a_flat_call_and_reasoning_are_where_they_belong() -> None:
    flat = {"id": "a", "name": "close", "arguments": '{"id": 4}'}
    thought = {"type": "thinking", "thinking": "Which one?"}
    found = turns_of(
        [
            {
                "role": "assistant",
                "content": [thought, {"type": "text", "text": "Closing"}],
                "tool_calls": [flat],
            },
            {"role": "user", "content": "Wait"},
            {"role": "tool", "tool_call_id": "a", "content": "closed"},
        ]
    )
    assert [turn.role for turn in found] == ["assistant", "user"]
    [made] = found[0].calls
    assert (made.name, made.given, made.reply.text.head) == ("close", {"id": 4}, "closed")
    assert (found[0].text.head, found[0].thought.head) == ("Closing", "Which one?")


def test_interventions_and_blame_reach_the_turn_of_a_reply() -> None:
    turns = [
        {"role": "assistant", "tool_calls": [call()]},
        {"role": "tool", "tool_call_id": "c1", "content": "x"},
    ]
    (turn,) = turns_of(
        turns, first=10, blamed=11, interventions=[{"kind": "edit", "message_index": 11}]
    )
    assert turn.blamed and turn.interventions[0]["kind"] == "edit"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"id": 5}, ""),
        ('{"id": 5}', ""),
        ({"id": "5"}, 'id: "5" is not of type'),
        ({}, '"id" is a required property'),
        ({"id": 5, "x": 1}, "Additional properties"),
        ('{"id":', "not JSON"),
        ("[]", "is not of type"),
    ],
)
def test_arguments_are_held_against_the_schema(arguments: Any, problem: str) -> None:
    found = Checker([TICKET]).problems("close", arguments)
    assert (problem in found[0]) if problem else not found


def test_a_tool_that_was_not_offered() -> None:
    assert Checker([TICKET]).problems("open", {}) == ["This tool was not offered."]
    assert Checker([]).problems("open", {}) == []


@pytest.mark.more(rows=2)
@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"id": {"$ref": "http://169.254.169.254/x"}}},
        {"properties": {"id": {"$ref": "file:///etc/passwd"}}},
        {"properties": {"id": {"pattern": "^(a+)+$"}}},
        {"patternProperties": {"(a+)+$": {}}, "additionalProperties": False},
        {"allOf": [{"$ref": "#"}]},
        {
            "$defs": {str(n): {"allOf": [{"$ref": f"#/$defs/{n + 1}"}] * 4} for n in range(30)}
            | {"30": {}},
            "$ref": "#/$defs/0",
        },
        {"items": 7, "minimum": "x", "properties": {"id": 3}},
    ],
)
def test_a_hostile_schema_neither_loads_nor_hangs(schema: dict) -> None:
    started = time.process_time()  # a busy machine takes none of it
    Checker([{"function": {"name": "close", "parameters": schema}}]).problems(
        "close", {"id": "a" * 40 + "!", "a" * 40 + "!": 1}
    )
    assert time.process_time() - started < 2


def test_long_texts_are_folded_and_giant_ones_cut() -> None:
    (turn,) = turns_of([{"role": "user", "content": "x" * (FOLD_ABOVE + 1)}])
    assert turn.text.rest and not turn.text.cut
    (turn,) = turns_of([{"role": "user", "content": "x" * (SHOWN + 5)}])
    assert turn.text.cut == 5 and len(turn.text.head + turn.text.rest) == SHOWN


@pytest.mark.parametrize(
    ("part", "note"),
    [
        (
            {"type": "image_url", "image_url": {"url": "https://x.test/a.png"}},
            Medium("image", address="https://x.test/a.png"),
        ),
        (
            {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 4000}},
            "image/png, 3 KB",
        ),
        (
            {"type": "input_audio", "input_audio": {"data": "A" * 40, "format": "wav"}},
            "wav, 30 bytes",
        ),
        (
            {
                "type": "image",
                "source": {"type": "base64", "media_type": "image/gif", "data": "AAAA"},
            },
            "image/gif, 3 bytes",
        ),
        ({"type": "file"}, "file, empty"),
    ],
)
def test_images_are_named_and_not_shown(part: dict, note: str | Medium) -> None:
    (turn,) = turns_of([{"role": "user", "content": [{"type": "text", "text": "see"}, part]}])
    assert turn.text.head == "see" and turn.media == [
        note if isinstance(note, Medium) else Medium(note)
    ]


def test_the_waterfall_puts_children_under_their_parent() -> None:
    found = waterfall(
        {
            "steps": [
                {
                    "span_id": "b",
                    "parent_id": "a",
                    "name": "tool",
                    "start_ms": 50,
                    "duration_ms": 50,
                    "message_index": 3,
                },
                {"span_id": "a", "name": "run", "start_ms": 0, "duration_ms": 200, "error": "boom"},
                {
                    "span_id": "c",
                    "parent_id": "a",
                    "name": "chat",
                    "start_ms": 10,
                    "duration_ms": 10,
                },
                {"name": "broken"},
                7,
            ]
        }
    )
    assert [(bar.name, bar.depth, bar.left, bar.width) for bar in found.bars] == [
        ("run", 0, "0.000", "100.000"),
        ("chat", 1, "5.000", "5.000"),
        ("tool", 1, "25.000", "25.000"),
    ]
    assert found.bars[0].error == "boom" and found.bars[2].message_index == 3


def test_a_circle_of_steps_is_shown() -> None:
    steps = [
        {"span_id": a, "parent_id": b, "start_ms": 0, "duration_ms": 1}
        for a, b in ("ab", "ba", "cc")
    ]
    assert len(waterfall({"steps": steps}).bars) == 3


def test_runs_are_aligned_by_turn() -> None:
    asked, done = {"role": "user", "content": "Close 1."}, {"role": "assistant", "content": "Done."}
    a = turns_of([asked, {"role": "assistant", "tool_calls": [call(arguments={"id": 1})]}, done])
    b = turns_of(
        [
            asked,
            {"role": "assistant", "tool_calls": [call("look")]},
            {"role": "assistant", "tool_calls": [call(arguments='{"id": 2}')]},
            done,
        ]
    )
    pairs = align(a, b)
    assert [(pair.a and pair.a.index, pair.b and pair.b.index) for pair in pairs] == [
        (0, 0),
        (None, 1),
        (1, 2),
        (2, 3),
    ]
    assert [pair.differences for pair in pairs] == [[], ["only in B"], ["close id: 1 → 2"], []]


def test_argument_changes() -> None:
    assert argument_changes({"a": 1, "b": 2}, {"a": 1, "c": 3}) == ["b: 2 → –", "c: – → 3"]
    assert argument_changes("x", {"a": 1}) == ['arguments: "x" → {"a": 1}']


def test_queries_that_say_the_same_are_the_same() -> None:
    assert normal("b=2&a=1&q=&cursor=x") == normal("a=1&b=2") == "a=1&b=2"


def test_only_filters_that_narrow_are_shown() -> None:
    given_ = {
        "since": "no",
        "cost_min": "nan",
        "latency_max": "2",
        "tag": "x",
        "zzz": "1",
        "from": "yesterday",
    }
    assert [chip.text for chip in active(given_)] == ["Tag: x", "Latency in s ≤ 2"]


json_values = (
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=5), inner, max_size=5)
        ),
        max_leaves=25,
    )
    if (
        KEYS := [
            "role",
            "content",
            "tool_calls",
            "function",
            "name",
            "arguments",
            "id",
            "type",
            "text",
            "image_url",
            "url",
            "steps",
            "start_ms",
            "duration_ms",
            "span_id",
            "parent_id",
            "parameters",
            "properties",
            "$ref",
            "items",
            "message_index",
        ]
    )
    else None
)


@pytest.mark.proof
@settings(max_examples=150, deadline=None)
@given(st.lists(json_values, max_size=5), json_values)
def test_any_json_is_turns(messages: list, tools: Any) -> None:
    found = turns_of(messages, [tools, tool()])
    assert align(found, found) is not None
    assert sorted(index for turn in found for index in turn.indices) == list(range(len(messages)))


@pytest.mark.proof
@settings(max_examples=150, deadline=None)
@given(
    json_values,
    st.lists(
        st.fixed_dictionaries({"start_ms": json_values, "duration_ms": st.floats() | st.integers()})
    ),
)
def test_any_json_has_a_waterfall_or_none(metadata: Any, steps: list) -> None:
    waterfall(metadata)
    waterfall({"steps": steps})
