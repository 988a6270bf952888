"""Gold episodes: those of the built-in environments succeed, and what does not succeed is none."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from workers.lib.environments import load
from workers.lib.environments.customer_service.tasks import make_tasks
from workers.lib.environments.workplace_assistant import own_tasks
from workers.lib.gold import gold_answers, gold_turns
from workers.lib.verifiers import Score

SERVICE = load({"kind": "builtin", "name": "customer_service"})
ASSISTANT = load({"kind": "builtin", "name": "workplace_assistant"})


def test_every_task_of_our_own_has_one() -> None:
    for environment, tasks in ((SERVICE, make_tasks()), (ASSISTANT, own_tasks())):
        for task in tasks:
            turns = gold_turns(environment, task)
            assert turns[-1]["role"] == "assistant", task["id"]
            answers = [turn for turn in turns if turn["role"] == "assistant"]
            assert [(turn["content"], len(turn.get("tool_calls", []))) for turn in answers] == [
                (turn["content"], len(turn.get("tool_calls", [])))
                for turn in gold_answers(task)[: len(answers)]
            ]
            results = [turn for turn in turns if turn["role"] != "assistant"]
            assert results and all(turn["content"] for turn in results)


@pytest.mark.parametrize(
    "changes",
    [
        {"metadata": {"gold": [{"say": "I do nothing."}]}},
        {"metadata": {"gold": [{"call": "no_such_tool", "args": {}}, {"say": "Done."}]}},
        {"metadata": {"gold": []}},
        {"metadata": None, "expected": {}},
        {"metadata": None, "expected": {"calls": [{"tool": 3}]}},
        {"messages": None},
    ],
)
def test_what_does_not_succeed_is_no_gold(changes: dict) -> None:
    assert gold_turns(SERVICE, make_tasks()[0] | changes) == []


def test_expected_calls_and_a_last_word_where_the_task_says_no_more() -> None:
    task = {"expected": {"calls": [{"tool": "a", "args": {"x": 1}}, {"tool": "b", "args": {}}]}}
    first, second, last = gold_answers(task)
    assert json.loads(first["tool_calls"][0]["function"]["arguments"]) == {"x": 1}
    assert second["tool_calls"][0]["function"]["name"] == "b" and last == {
        "role": "assistant",
        "content": "Done.",
    }
    assert [first["tool_calls"][0]["id"], second["tool_calls"][0]["id"]] == ["call_1", "call_2"]


@pytest.mark.parametrize(
    "task",
    [
        {"expected": {"calls": []}},
        {"expected": {"calls": [{"tool": "a", "args": {}}]}, "metadata": {"gold": []}},
        {"expected": {"calls": [3]}},
        {"expected": {"calls": 3}},
        {"ground_truth": [{"name": "a", "arguments": "{"}]},
        {},
    ],
)
def test_no_answers_where_nothing_says_what_is_right_or_the_task_says_none(task: dict) -> None:
    assert gold_answers(task) == []
    assert (
        gold_turns(ASSISTANT, {"id": "1", "messages": [{"role": "user", "content": "Hi."}]} | task)
        == []
    )


def test_what_is_said_is_text() -> None:
    assert gold_answers({"metadata": {"gold": [{"say": 3}]}}) == [
        {"role": "assistant", "content": "3"}
    ]


def test_a_masked_success_is_no_gold(monkeypatch: pytest.MonkeyPatch) -> None:
    class Unsure:
        def score(self, rollout: Any) -> Score:
            return Score(1.0, {}, success=True, masked=masks, mask_reason="unsure")

    monkeypatch.setattr(ASSISTANT, "verifier", Unsure())
    masks = False
    assert gold_turns(ASSISTANT, own_tasks()[0])
    masks = True
    assert gold_turns(ASSISTANT, own_tasks()[0]) == []


def test_it_can_be_asked_where_an_event_loop_runs() -> None:
    async def ask() -> list[dict]:
        return gold_turns(ASSISTANT, own_tasks()[0])

    assert asyncio.run(ask()) == gold_turns(ASSISTANT, own_tasks()[0]) != []
