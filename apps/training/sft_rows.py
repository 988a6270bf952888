"""The rows that a job learns from: SFT's tasks, and examples."""

from __future__ import annotations

from collections.abc import Sequence

from apps.environments.clients import load_for
from apps.evals.models import Task
from apps.training.models import Example, Method, TrainingRun
from workers.lib.environments import Environment
from workers.lib.gold import gold_turns


def sft_row(task: Task, environment: Environment) -> dict:
    """The conversation and tools as an agent sees them, and the answer it should give; in a
    multi-turn environment, all messages of a successful episode if the task contains one. {} if the
    task does not say what is right.
    """
    episode = environment.open(task.as_spec())
    row = {"messages": episode.messages, "tools": episode.offered}
    if environment.multi_turn and (turns := gold_turns(environment, task.as_spec())):
        return row | {"turns": turns}
    return row | {"completion": task.demonstration} if task.demonstration else {}


def example_rows(run: TrainingRun, examples: Sequence[Example]) -> list[tuple[str, dict]]:
    """(name, row) of each example: the conversation and tools as an agent sees them, and the judged
    answers. For a reward model, without the harness's part, which all answers share.
    """
    environment = load_for(run.environment)
    rows = []
    for example in examples:
        data, task = example.data, example.task
        asked = (
            task.as_spec()
            if task
            else {
                "id": str(example.trajectory_id),
                "messages": data["messages"],
                "tools": data["tools"],
                "expected": {},
                "metadata": {},
            }
        )
        episode = environment.open(asked)
        said = {name: data[name] for name in ("chosen", "rejected", "good") if name in data}
        if "answer" in data:
            said["completion"] = data["answer"]
        given = {"messages": episode.messages, "tools": episode.offered}
        if run.method == Method.REWARD:
            given = {"messages": asked["messages"], "tools": episode.tools}
        rows.append((f"{example.source} {example.position + 1}", given | said))
    return rows


def as_leak_row(row: dict) -> dict:
    """A row of a job in the format in which pairs are compared with the hold-outs."""
    return {("prompt" if name == "messages" else name): value for name, value in row.items()}


def whole_conversation(row: dict) -> dict:
    """An SFT row in the format in which it is compared with the hold-outs, including its later
    turns.
    """
    return row | {"messages": row["messages"] + row.get("turns", [])}
