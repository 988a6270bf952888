"""What SFT learns from: one row of a task."""

from __future__ import annotations

from apps.evals.models import Task
from workers.lib.environments import Environment
from workers.lib.gold import gold_turns


def sft_row(task: Task, environment: Environment) -> dict:
    """The conversation and the tools as an agent is given them, and the answer it should give; in an environment of several
    turns, where the task says how, all of an episode that succeeds. {} where nothing shows what is right."""
    episode = environment.open(task.as_spec())
    row = {"messages": episode.messages, "tools": episode.offered}
    if environment.multi_turn and (turns := gold_turns(environment, task.as_spec())):
        return row | {"turns": turns}
    return row | {"completion": task.demonstration} if task.demonstration else {}
