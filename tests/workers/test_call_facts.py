"""What an evaluation's rates say about calls: measured from the conversation, and nothing where
nothing can be known.
"""

from __future__ import annotations

from typing import Any

import pytest

from apps.evals.stats import SampleRow, summarise
from workers.lib.verifiers import Execution, Rollout, Score
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
        ([said("I cannot do that.")], [], TOOLS, True, None),
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
