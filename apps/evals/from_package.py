"""The tasks of an environment package as tasks of a draft."""

from __future__ import annotations

from typing import Any

from django.db import transaction

from apps.core.models import ApiKey
from apps.environments.models import Environment
from apps.environments.packages import tasks_in
from apps.evals.actions import EvalSetError, TasksMade, create_eval_set, store_tasks
from apps.evals.canonical import canonical_hash
from apps.evals.drafts import new_version
from apps.evals.formats.rows import Bad, TaskRow, check_storable, checked_expected, checked_messages
from apps.evals.importing import Choice, task_of
from apps.evals.models import EvalSet, EvalSetState, Origin, Split
from workers.lib.environments.packages.files import PackageProblem


def rows_of(environment: Environment) -> list[TaskRow]:
    """Raises EvalSetError for a package that has no tasks, or one that cannot be stored."""
    try:
        return [_row(task) for task in tasks_in(environment)]
    except PackageProblem as problem:
        raise EvalSetError(f"{environment}: {problem.text} {problem.do}") from problem


def _row(task: dict) -> TaskRow:
    """Raises EvalSetError."""
    try:
        messages = checked_messages(task["messages"])
        if task["expected"]:  # a package's verifier may get the expected answer from elsewhere
            checked_expected(task["expected"])
        check_storable(task, "it")
    except Bad as error:
        raise EvalSetError(f"Task {task['id']}: {error}") from error
    return TaskRow(
        key=task["id"],
        messages=messages,
        expected=task["expected"],
        demonstration=task["demonstration"],
        group=task["group"] or canonical_hash(messages),
        split=task["split"],
        metadata=task["metadata"],
    )


def add_package_tasks(
    *,
    eval_set: EvalSet,
    environment: Environment,
    by: Any,
    split: Split = Split.TRAIN,
    viewer: ApiKey | None = None,
) -> TasksMade:
    """All tasks of the package that the draft does not have yet; those without a split go to
    `split`. Raises EvalSetError.
    """
    name = str(environment)
    tasks = [
        task_of(row, eval_set, name, Choice("flywheel", split)) for row in rows_of(environment)
    ]
    for task in tasks:
        task.metadata = {**task.metadata, "imported": {"environment": name}}
        if task.split == Split.HOLDOUT and task.origin == Origin.SYNTHETIC:
            raise EvalSetError(
                f"Task {task.key} is synthetic and can never be held out. Choose another split."
            )
    return store_tasks(
        eval_set=eval_set, tasks=tasks, by=by, what=f"environment {name}", viewer=viewer
    )


@transaction.atomic
def set_of_package(*, environment: Environment, by: Any) -> tuple[EvalSet, TasksMade]:
    """A draft named after the environment: the existing one, the next version of a frozen one, or a
    new one. Raises EvalSetError.
    """
    rows = EvalSet.objects.filter(project=environment.project, slug=environment.slug).order_by(
        "-version"
    )
    newest = rows.first()
    if newest is None:
        draft = create_eval_set(
            project=environment.project,
            slug=environment.slug,
            by=by,
            description=f"Tasks of {environment}",
        )
    elif newest.state == EvalSetState.DRAFT:
        draft = newest
    else:
        draft = new_version(eval_set=newest, by=by)
    return draft, add_package_tasks(eval_set=draft, environment=environment, by=by)
