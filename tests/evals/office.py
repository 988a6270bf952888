"""An environment with a state, tasks of it whose right calls are known, and agents that run their
own loop and know them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from apps.core.models import Project
from apps.environments.actions import save_environment, save_verifier
from apps.environments.models import Environment
from apps.evals import actions as evals
from apps.evals.models import EvalSet, Split
from tests.factories import admin_of, freeze_set, unsearched
from workers.lib.environments.workplace_assistant import own_tasks

DELETE = "email_delete_email"
Use = Callable[[str, dict], Any]  # calls a tool


def make_office(project: Project) -> Environment:
    by = admin_of(project)
    verifier = save_verifier(project=project, name="office", spec={"kind": "tables"}, by=by)
    return save_environment(
        project=project,
        slug="office",
        builtin="workplace_assistant",
        harness={"max_turns": 6},
        verifier=verifier,
        by=by,
    )


def make_office_set(project: Project, n: int, split: Split = Split.REGRESSION) -> EvalSet:
    """The first `n` built-in tasks that change something."""
    chosen = [task for task in own_tasks() if task["expected"].get("calls")][:n]
    return _make_set(project, [task | {"split": split} for task in chosen])


def make_deletions(project: Project, n: int) -> EvalSet:
    """`n` regression tasks and as many that are held out, which name all that their agent has to
    know.
    """
    splits = [Split.REGRESSION] * n + [Split.HOLDOUT] * n
    numbers = [f"{number:08}" for number in range(1, 2 * n + 1)]
    asked = "Throw away the mail with the id {}."
    tasks = [
        {
            "id": f"mail-{number}",
            "messages": [{"role": "user", "content": asked.format(number)}],
            "expected": {"calls": [{"tool": DELETE, "args": {"email_id": number}}]},
            "split": split,
        }
        for number, split in zip(numbers, splits, strict=True)
    ]
    return _make_set(project, tasks)


def _make_set(project: Project, chosen: list[dict]) -> EvalSet:
    by = admin_of(project)
    eval_set = evals.create_eval_set(project=project, slug="office", by=by)
    tasks = []
    for task in chosen:
        made = evals.written_task(
            eval_set,
            key=task["id"],
            request=task["messages"][-1]["content"],
            split=task["split"],
            by=by,
            expected=task["expected"],
        )
        made.messages = task["messages"]
        tasks.append(made)
    with unsearched():
        evals.store_tasks(eval_set=eval_set, tasks=tasks, by=by, what="made")
        return freeze_set(eval_set, by)


@cache
def _gold() -> dict[str, list[dict]]:
    """{request: the right calls}"""
    return {task["messages"][-1]["content"]: task["expected"]["calls"] for task in own_tasks()}


def right_calls(messages: list[dict]) -> list[dict]:
    return _gold()[messages[-1]["content"]]


def right(messages: list[dict], use: Use) -> str:
    """An agent that does by itself what is asked."""
    for call in right_calls(messages):
        use(call["tool"], call["args"])
    return "Done."


def wrong(messages: list[dict], use: Use) -> str:
    """Looks, and does nothing."""
    use("email_search_emails", {"query": "Pavel"})
    return "Done."
