"""Answers made of anything: every row of a batch is kept, known already, or rejected with a reason;
and what was kept is scored.
"""

from __future__ import annotations

import json
import random
import threading
from pathlib import Path
from typing import Any

import pytest
from django.db import connections

from apps.core.models import JobState
from apps.evals.latency import LatencyError, submit_measurement
from apps.evals.models import Answer
from tests.amounts import amount
from tests.evals.test_answers import Agent, work
from tests.factories import make_environment, make_eval_set, make_project

pytestmark = pytest.mark.django_db
TEXTS = [
    "",
    "x",
    "\x00",
    "\ud800",
    "\udfff\ud800",
    "é" * 300,
    "{",
    '{"tool": "tickets.close", "args": {"id": 1}}',
    "<tool_call>",
    '<tool_call>{"name": 7}</tool_call>',
    "[[[[",
    "NaN",
    "\u202e",
    "9" * 400,
    "null",
    "assistant",
    "tickets.close",
]
NUMBERS = [0, 1, -1, 2**31, 2**63, 10**40, 0.5, -0.0, 1e308, True, False]
FIELDS = [
    "task",
    "index",
    "output",
    "tool_calls",
    "messages",
    "error",
    "latency_ms",
    "input_tokens",
    "output_tokens",
    "x",
]
INSIDE = [
    "role",
    "content",
    "tool_calls",
    "function",
    "name",
    "arguments",
    "type",
    "text",
    "id",
    "refusal",
    "tool_call_id",
    "function_call",
]


def anything(dice: random.Random, depth: int = 0) -> Any:
    kind = dice.randrange(4 if depth > 4 else 7)
    if kind == 4:
        return [anything(dice, depth + 1) for _ in range(dice.randrange(3))]
    if kind > 4:
        return {dice.choice(INSIDE): anything(dice, depth + 1) for _ in range(dice.randrange(5))}
    return dice.choice(
        [dice.choice(TEXTS), dice.choice(TEXTS), dice.choice(NUMBERS), None][kind : kind + 1]
    )


def messages(dice: random.Random) -> Any:
    """Mostly of the form, with anything for contents and calls."""
    made = [
        {
            "role": dice.choice(["assistant", "assistant", "user", "tool", "system", "x"]),
            "content": anything(dice),
        }
        | ({"tool_calls": anything(dice)} if dice.random() < 0.4 else {})
        | ({"name": anything(dice)} if dice.random() < 0.2 else {})
        for _ in range(dice.randrange(4))
    ]
    return made if dice.random() < 0.9 else anything(dice)


def row(dice: random.Random, tasks: list[str]) -> Any:
    if dice.random() < 0.05:
        return anything(dice)
    made: dict[str, Any] = {"task": dice.choice(tasks), "index": dice.randrange(3)}
    answer = dice.choice(["output", "tool_calls", "messages", "error"])
    made[answer] = {
        "output": lambda: dice.choice(TEXTS),
        "tool_calls": lambda: [
            anything(dice, 4) if dice.random() < 0.5 else {"function": anything(dice)}
        ],
        "messages": lambda: messages(dice),
        "error": lambda: dice.choice(TEXTS),
    }[answer]()
    if dice.random() < 0.3:
        made[dice.choice(FIELDS)] = anything(dice)
    return made


@pytest.mark.more
@pytest.mark.parametrize("seed", amount([1], [1, 20261122]))
def test_every_row_is_accounted_for_and_what_was_kept_is_scored(data_dir: Path, seed: int) -> None:
    dice, project = random.Random(seed), make_project()
    agent = Agent(
        project, make_eval_set(project, train=60), make_environment(project), split="train"
    )
    tasks = [task["id"] for task in agent.tasks()]
    accepted = 0
    for lines in (True, True, False):
        rows = [row(dice, tasks) for _ in range(120)]
        answer = agent.send(rows if lines else json.dumps(rows).encode(), lines=lines)
        told = answer.json()
        assert answer.status_code == 200, told
        assert told["accepted"] + told["duplicates"] + len(told["rejected"]) == len(rows)
        assert all(item["error"] for item in told["rejected"])
        again = agent.send(rows if lines else json.dumps(rows).encode(), lines=lines).json()
        assert (
            again["accepted"] == 0 and again["duplicates"] == told["accepted"] + told["duplicates"]
        )
        accepted += told["accepted"]
    assert accepted == Answer.objects.count() > 50
    agent.post("evals_api:run_finish", agent.run.pk)
    run = work(agent.run)
    assert run.error.startswith(f"Incomplete: {accepted} of 120") or (
        accepted == 120 and run.state == JobState.SUCCEEDED
    )
    assert run.samples.count() == accepted and not run.samples.filter(masked=True).exists()


@pytest.mark.django_db(transaction=True)
def test_of_a_run_that_is_cancelled_while_answers_come_all_that_was_acknowledged_is_kept(
    data_dir: Path,
) -> None:
    project = make_project()
    agent = Agent(
        project, make_eval_set(project, train=30), make_environment(project), split="train"
    )
    rows, told = agent.rows(), list[int]()
    half = threading.Event()

    def send() -> None:
        for number, one in enumerate(rows):
            answer = agent.send([one])
            told.append(
                answer.json()["accepted"] if answer.status_code == 200 else -answer.status_code
            )
            if number == len(rows) // 4:
                half.set()
        connections.close_all()

    thread = threading.Thread(target=send)
    thread.start()
    half.wait()
    assert agent.post("evals_api:run_cancel", agent.run.pk).status_code == 200
    thread.join()
    kept = told.count(1)
    assert (
        told == [1] * kept + [-409] * (len(rows) - kept)
        and len(rows) > kept == Answer.objects.count()
    )


@pytest.mark.proof
def test_what_answers_elsewhere_is_not_timed_here(data_dir: Path) -> None:
    project = make_project()
    eval_set, environment = make_eval_set(project), make_environment(project)
    runs = [Agent(project, eval_set, environment, version=version) for version in "ab"]
    for agent in runs:
        agent.send(agent.rows())
        work(agent.run)
    with pytest.raises(LatencyError, match="runs elsewhere"):
        submit_measurement(runs=[agent.run for agent in runs], by=None)
