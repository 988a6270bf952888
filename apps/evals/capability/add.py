"""The built-in general capability tasks as tasks of a set."""

from __future__ import annotations

from typing import Any

from apps.evals import actions
from apps.evals.canonical import canonical_hash
from apps.evals.capability.generate import general_tasks
from apps.evals.models import EvalSet, Origin, Split, Task


def add_general(*, eval_set: EvalSet, by: Any, viewer: Any = None) -> actions.TasksMade:
    """Adds the tasks of the built-in set that a draft does not have yet. Raises EvalSetError for a
    frozen set.
    """
    tasks = [
        Task(
            project=eval_set.project,
            eval_set=eval_set,
            key=row.key,
            split=Split.GENERAL,
            group=row.group,
            canonical_hash=canonical_hash(row.messages),
            messages=row.messages,
            expected=row.expected,
            tools=row.tools,
            demonstration=row.demonstration,
            origin=Origin.MANUAL,
            metadata=row.metadata,
        )
        for row in general_tasks()
    ]
    return actions.store_tasks(
        eval_set=eval_set, tasks=tasks, by=by, what="built-in general set", viewer=viewer
    )
