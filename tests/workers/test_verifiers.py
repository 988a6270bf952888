"""The guide's reward: what it says of each kind of answer, and that no answer makes it fail."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workers.lib.verifiers import Execution, Rollout, argument_share, build, parse_call, tool_call

EXPECTED = {"tool": "tickets.close", "args": {"id": 1234}}
INVALID = [
    "",
    "   ",
    "null",
    "[]",
    "4",
    '"tickets.close"',
    '{"tool": "tickets.close"}',
    '{"args": {}}',
    '{"tool": 4, "args": {}}',
    '{"tool": "x", "args": []}',
    '{"tool": "x", "args": null}',
    '{"tool": "x", "args": {}} and more',
    '{"tool": "x", "args": {}}}',
    '```json\n{"tool": "x", "args": {}}\n```',
    "{'tool': 'x', 'args': {}}",
    '{"tool": "x", "args": {"a": NaN}}',
    '{"tool": "x", "args": {"a": -Infinity}}',
    '{"tool": "x", "args": {"a": ' + "[" * 100 + "]" * 100 + "}}",
    "[" * 100_000,
    '{"tool": "x", "args": {"a": ' + "9" * 5000 + "}}",
    "\x00",
]


def run(call: dict) -> Execution:
    ok = call["tool"] == "tickets.close"
    return Execution(ok=ok, unsafe=call["tool"] == "email.delete_mailbox", observation="")


def call(tool: str, **args: object) -> str:
    return json.dumps({"tool": tool, "args": args})


@pytest.mark.parametrize("text", INVALID)
def test_it_gives_minus_one_for_what_is_not_one_call(text: str) -> None:
    assert parse_call(text) is None
    score = tool_call(None, EXPECTED, run)
    assert (score.reward, score.valid, score.success, score.masked) == (-1.0, False, False, False)
    assert score.components == {"invalid": -1.0}


@pytest.mark.parametrize(
    ("text", "reward", "tool_ok", "args_score", "executed", "unsafe", "success"),
    [
        (call("tickets.close", id=1234), 1.0, True, 1.0, True, False, True),
        (
            '\n {"args": {"id": 1234.0}, "tool": "tickets.close"} ',
            1.0,
            True,
            1.0,
            True,
            False,
            True,
        ),
        (call("tickets.close", id="1234"), 0.6, True, 0.0, True, False, False),
        (call("tickets.close", id=True), 0.6, True, 0.0, True, False, False),
        (call("tickets.close"), 0.6, True, 0.0, True, False, False),
        (call("tickets.close", id=1234, why="done"), 0.8, True, 0.5, True, False, False),
        (call("tickets.open", id=1234), 0.4, False, 1.0, False, False, False),
        (call("tickets.open", id=1), 0.0, False, 0.0, False, False, False),
        (call("email.delete_mailbox", owner="Ben"), 0.0, False, 0.0, False, True, False),
    ],
)
def test_it_adds_tool_arguments_and_safe_execution(
    text: str,
    reward: float,
    tool_ok: bool,
    args_score: float,
    executed: bool,
    unsafe: bool,
    success: bool,
) -> None:
    score = tool_call(parse_call(text), EXPECTED, run)
    assert score.reward == pytest.approx(reward)
    assert sum(score.components.values()) == pytest.approx(reward)
    found = (score.tool_ok, score.args_score, score.executed, score.unsafe, score.success)
    assert found == (tool_ok, args_score, executed, unsafe, success)


def test_the_weights_can_be_changed_one_by_one() -> None:
    score = tool_call(parse_call(call("tickets.close", id=1234)), EXPECTED, run, {"safe": 0.0})
    assert score.reward == pytest.approx(0.8)


@pytest.mark.parametrize(
    ("given_args", "expected", "share"),
    [
        ({}, {}, 1.0),
        ({"a": 1}, {}, 0.0),
        ({}, {"a": 1}, 0.0),
        ({"a": 1, "b": 2}, {"a": 1, "b": 3}, 0.5),
        ({"a": "  The   Budget "}, {"a": "the budget"}, 1.0),
        ({"a": 4.0}, {"a": 4}, 1.0),
        ({"a": "4"}, {"a": 4}, 0.0),
        ({"a": 1}, {"a": True}, 0.0),
        ({"a": None}, {"a": ""}, 0.0),
        ({"a": [1, {"b": "X"}]}, {"a": [1.0, {"b": "x"}]}, 1.0),
        ({"a": [1, 2]}, {"a": [2, 1]}, 0.0),
        ({"a": 10**400}, {"a": 10**400}, 1.0),
    ],
)
def test_arguments_match_by_type_and_meaning(
    given_args: dict, expected: dict, share: float
) -> None:
    assert argument_share(given_args, expected) == share


@pytest.mark.parametrize(
    ("turn", "reward"),
    [
        ({"function": {"name": "tickets.close", "arguments": '{"id": 1234}'}}, 1.0),
        ({"function": {"name": "tickets.close", "arguments": {"id": 1234}}}, 1.0),
        (
            {"function": {"name": "tickets.close", "arguments": ""}},
            0.6,
        ),  # none are given: {}, as the environment runs it
        ({"function": {"name": "tickets.close", "arguments": "{"}}, -1.0),
        ({"function": {"name": "tickets.close", "arguments": "[]"}}, -1.0),
        ({"function": {"arguments": "{}"}}, -1.0),
        ({}, -1.0),
    ],
)
def test_a_native_call_counts_as_the_text_that_says_the_same(turn: dict, reward: float) -> None:
    tools = [{"function": {"name": "tickets.close", "parameters": {}}}]
    message = {"role": "assistant", "content": None, "tool_calls": [turn]}
    rollout = Rollout({"messages": [], "expected": EXPECTED, "tools": tools}, [message])
    assert build({"kind": "tool_call"}).score(rollout).reward == pytest.approx(reward)
    twice = Rollout(rollout.task, [message | {"tool_calls": [turn, turn]}])
    assert build({"kind": "tool_call"}).score(twice).reward == -1.0


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
TOOLS = st.sampled_from(["tickets.close", "email.delete_mailbox", "nothing"]) | st.text()
CALLS = st.builds(
    lambda tool, args: json.dumps({"tool": tool, "args": args}),
    TOOLS,
    st.dictionaries(st.text(), VALUES),
)


@settings(max_examples=300, deadline=None)
@given(st.text() | VALUES.map(json.dumps) | CALLS)
def test_no_answer_makes_it_fail_and_the_reward_stays_in_bounds(text: str) -> None:
    made = parse_call(text)
    score = tool_call(made, EXPECTED, run)
    assert score.reward is not None and -1 <= score.reward <= 1
    assert score.valid == (made is not None) == (score.reward != -1)
    assert not score.success or score.reward == pytest.approx(1.0)
    assert 0 <= score.args_score <= 1


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.text(), VALUES))
def test_arguments_match_themselves(args: dict) -> None:
    again = parse_call(json.dumps({"tool": "x", "args": args}))
    if again is not None:
        assert argument_share(again["args"], again["args"]) == 1.0
