"""What an evaluation's rates say about calls: measured from the conversation, and nothing where
nothing can be known.
"""

from __future__ import annotations

from typing import Any

import pytest

from apps.evals.stats import SampleRow, summarise
from workers.lib.verifiers import Execution, Rollout, Score, build
from workers.lib.verifiers.call_facts import add_call_facts

NUMBER = {"type": "object", "properties": {"order": {"type": "integer"}}, "required": ["order"]}
TOOLS = [{"type": "function", "function": {"name": "orders.find", "parameters": NUMBER}}]
WORKED, REFUSED = Execution(True, False, "ok"), Execution(False, False, "Error: not found")


def call(arguments: Any, name: str = "orders.find") -> dict:
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "1", "function": {"name": name, "arguments": arguments}}],
    }


def said(text: str) -> dict:
    return {"role": "assistant", "content": text}


@pytest.mark.parametrize(
    ("messages", "calls", "tools", "valid", "executed"),
    [
        ([call('{"order": 7}'), said("Sent.")], [WORKED], TOOLS, True, True),
        (
            [call('{"order": 7}')],
            [REFUSED],
            TOOLS,
            True,
            False,
        ),  # well formed, whatever the tool answered
        ([call('{"order": 7}'), call('{"order": 8}')], [REFUSED, WORKED], TOOLS, True, False),
        ([call('{"order": "seven"}')], [REFUSED], TOOLS, False, False),
        ([call("{order: 7")], [REFUSED], TOOLS, False, False),
        ([call('{"order": 7}', "orders.lookup")], [REFUSED], TOOLS, False, False),
        ([said("I cannot do that.")], [], TOOLS, None, None),  # no call is neither right nor wrong
        ([said("One moment."), said('{"status": "sent"}')], [], TOOLS, None, None),
        ([said('<tool_call>{"name": "orders.find"')], [], TOOLS, False, None),
        ([said("42")], [], [], None, None),
        ([], [], TOOLS, None, None),  # a crash before the first word
    ],
)
def test_facts_of_a_conversation(
    messages: list, calls: list, tools: list, valid: bool | None, executed: bool | None
) -> None:
    score = Score(reward=0.0)
    add_call_facts(score, Rollout(task={}, messages=messages, calls=calls, tools=tools))
    assert (score.valid, score.executed, score.tool_ok, score.args_score) == (
        valid,
        executed,
        None,
        None,
    )


def test_what_a_verifier_knows_stays_but_for_an_agent_that_said_nothing() -> None:
    rollout = Rollout(task={}, messages=[call('{"order": 7}')], calls=[REFUSED], tools=TOOLS)
    score = Score(reward=0.0, valid=False, tool_ok=True, args_score=0.5, executed=True)
    add_call_facts(score, rollout)
    assert (score.valid, score.tool_ok, score.args_score, score.executed) == (
        False,
        True,
        0.5,
        True,
    )
    add_call_facts(score, Rollout(task={}, tools=TOOLS))
    assert (score.valid, score.tool_ok, score.args_score, score.executed) == (
        None,
        None,
        None,
        None,
    )


PYTHON = {"kind": "python", "source": "def grade(sample, item):\n    return 1.0"}
HASHES = {"kind": "number", "answer_in": "hashes"}
CONSTRAINTS = {"kind": "constraints", "constraints": [{"type": "no_comma"}]}


@pytest.mark.parametrize(
    ("spec", "expected", "message", "valid"),
    [
        ({"kind": "no_call"}, {}, said("I cannot do that."), None),
        ({"kind": "calls"}, {"calls": []}, said("I cannot do that."), None),
        ({"kind": "calls"}, {"calls": []}, call('{"order": 7}'), True),
        ({"kind": "no_call"}, {}, call('{"order": "seven"}'), False),
        ({"kind": "calls"}, {"any_call": True}, call('{"order": "seven"}'), False),
        ({"kind": "calls"}, {"any_call": True}, said("I cannot do that."), False),
        ({"kind": "human"}, {}, said("I cannot do that."), None),
        (PYTHON, {}, said("I cannot do that."), None),
        (CONSTRAINTS, {}, said("I cannot do that."), None),
        ({"kind": "number"}, {"answer": 42}, said("It is 42."), None),
        (HASHES, {"answer": 42}, said("#### 42"), True),
        (HASHES, {"answer": 42}, said("No idea."), False),
    ],
)
def test_a_form_that_a_verifier_does_not_look_at_is_not_said_to_be_right(
    spec: dict, expected: dict, message: dict, valid: bool | None
) -> None:
    rollout = Rollout(task={"expected": expected}, messages=[message], tools=TOOLS)
    score = build(spec, clients={"labels": lambda key: 1.0}).score(rollout)
    assert not score.masked, score.mask_reason
    add_call_facts(score, rollout)
    assert score.valid is valid


@pytest.mark.parametrize(
    ("answer", "ran", "executed"),
    [
        (said("Closed."), [], None),
        (said('{"tool": "orders.find", "args": {'), [], None),
        (call('{"order": 7}'), [WORKED], True),
        (call('{"order": 7}'), [REFUSED], False),
    ],
)
def test_a_call_that_was_not_made_did_not_fail(
    answer: dict, ran: list, executed: bool | None
) -> None:
    task = {"expected": {"tool": "orders.find", "args": {"order": 7}}}
    rollout = Rollout(task=task, messages=[answer], calls=ran, tools=TOOLS)
    score = build({"kind": "tool_call"}).score(rollout)
    add_call_facts(score, rollout)
    assert score.executed is executed


def test_what_is_unknown_counts_in_no_rate() -> None:
    rows = [
        SampleRow("a", 1.0, True, valid=True, executed=True),
        SampleRow("a", 0.0, valid=None, executed=None),
        SampleRow("b", 0.0, valid=False, executed=None),
    ]
    metrics = summarise(rows)
    assert (metrics["valid_json"]["mean"], metrics["valid_json"]["n"]) == (0.5, 2)
    assert (metrics["execution_success"]["mean"], metrics["execution_success"]["n"]) == (1.0, 1)
    assert metrics["correct_tool"] == {"mean": None, "low": None, "high": None, "n": 0}
