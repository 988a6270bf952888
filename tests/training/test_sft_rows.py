"""What SFT is given: an answer, or all of an episode that went as it should."""

from __future__ import annotations

from typing import Any

import pytest

from apps.evals.models import Task
from apps.evals.near_duplicates.search import Row
from apps.training.sft_rows import sft_row, whole_conversation
from workers.lib.environments import load
from workers.lib.environments.customer_service.tasks import make_tasks
from workers.lib.specs.sft import SftRow

SERVICE = load({"kind": "builtin", "name": "customer_service"})
PLAIN = load({"kind": "single_turn", "harness": {}, "verifier": {"kind": "exact"}})


def task(**changes: Any) -> Task:
    given = make_tasks()[0]
    fields = {name: given[name] for name in ("messages", "expected", "metadata")} | changes
    return Task(key=given["id"], **fields)


def test_an_episode_of_several_turns_is_the_gold_one_with_the_tools_own_results() -> None:
    row = sft_row(task(demonstration="never used"), SERVICE)
    assert row.completion == "" and row.tools and row.messages[0]["role"] == "system"
    assert [turn["role"] for turn in row.turns[:3]] == ["assistant", "user", "assistant"]
    assert row.turns[-1]["role"] == "assistant" and any(
        turn["role"] == "tool" for turn in row.turns
    )


def test_without_a_gold_episode_it_is_the_demonstration() -> None:
    broken = task(metadata={"gold": [{"say": "No."}]}, demonstration="Sorry.")
    row = sft_row(broken, SERVICE)
    assert row.completion == "Sorry." and not row.turns
    assert sft_row(task(metadata={"gold": []}, expected={}), SERVICE) is None


@pytest.mark.parametrize("demonstration", ["A.", ""])
def test_one_answer_where_there_is_one_turn(demonstration: str) -> None:
    row = sft_row(task(demonstration=demonstration), PLAIN)
    wanted = SftRow(messages=make_tasks()[0]["messages"], tools=[], completion="A.")
    assert row == (wanted if demonstration else None)


def test_later_turns_are_compared_with_the_hold_outs() -> None:
    row = sft_row(task(), SERVICE)
    said = next(turn["content"] for turn in row.turns if turn["role"] == "user")
    read = Row.of(whole_conversation(row))
    assert ("user", said) in read.passages and len(read.units) > 1
    assert ("user", said) not in Row.of({"messages": row.messages, "tools": []}).passages
