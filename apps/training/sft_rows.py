"""The rows that a job learns from: SFT's tasks, and examples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from apps.environments.clients import load_for
from apps.evals.models import Task
from apps.training.models import Example, Method, TrainingRun
from workers.lib.environments import Environment
from workers.lib.gold import gold_turns
from workers.lib.specs.kto import Labelled
from workers.lib.specs.rows import Pair
from workers.lib.specs.sft import SftRow
from workers.lib.typed import plain

LearnedRow = SftRow | Pair | Labelled


def sft_row(task: Task, environment: Environment) -> SftRow | None:
    """The conversation and tools as an agent sees them, and the answer it should give; in a
    multi-turn environment, all messages of a successful episode if the task contains one. None if
    the task does not say what is right.
    """
    episode = environment.open(task.as_spec())
    messages, tools = episode.messages, episode.offered
    if environment.multi_turn and (turns := gold_turns(environment, task.as_spec())):
        return SftRow(messages=messages, tools=tools, turns=turns)
    if not task.demonstration:
        return None
    return SftRow(messages=messages, tools=tools, completion=task.demonstration)


def example_rows(run: TrainingRun, examples: Sequence[Example]) -> list[tuple[str, LearnedRow]]:
    """(name, row) of each example: the conversation and tools as an agent sees them, and the judged
    answers. For a reward model, without the harness's part, which all answers share.
    """
    environment = load_for(run.environment)
    rows = []
    for example in examples:
        task = example.task.as_spec() if example.task else _task_of_run(example)
        episode = environment.open(task)
        if run.method == Method.REWARD:
            row = _judged(example.data, task["messages"], episode.tools)
        else:
            row = _judged(example.data, episode.messages, episode.offered)
        rows.append((f"{example.source} {example.position + 1}", row))
    return rows


def _task_of_run(example: Example) -> dict[str, Any]:
    return {
        "id": str(example.trajectory_id),
        "messages": example.data["messages"],
        "tools": example.data["tools"],
        "expected": {},
        "metadata": {},
    }


def _judged(data: dict[str, Any], messages: list[dict], tools: list[dict]) -> LearnedRow:
    if "chosen" in data:
        return Pair(
            messages=messages, tools=tools, chosen=data["chosen"], rejected=data["rejected"]
        )
    if "good" in data:
        return Labelled(
            messages=messages, tools=tools, completion=data["answer"], good=data["good"]
        )
    return SftRow(messages=messages, tools=tools, completion=data["answer"])


def as_leak_row(row: LearnedRow) -> dict:
    """An example in the format in which it is compared with the hold-outs."""
    fields = plain(row)
    return {"prompt": fields.pop("messages")} | fields


def whole_conversation(row: SftRow) -> dict:
    """An SFT row in the format in which it is compared with the hold-outs, including its later
    turns.
    """
    return {"messages": row.messages + row.turns, "tools": row.tools, "completion": row.completion}
