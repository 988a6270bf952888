"""Comment targets of this and lower layers: a hold-out decides who may read comments on it."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from apps.core.models import ApiKey, Project, Role
from apps.evals.holdout.groups import held_out_runs
from apps.evals.holdout.view_log import (
    has_opened,
    has_opened_task,
    record_output_view,
    record_task_view,
)
from apps.evals.models import EvalRun, Sample, Split, Task
from apps.failures.models import Failure
from apps.teamwork.targets import Kind, register
from apps.trajectories.models import Trajectory, TrajectoryKey
from apps.trajectories.shown import runs_shown


def role_of(row: EvalRun | Sample | Task) -> Role:
    split = row.run.split if isinstance(row, Sample) else row.split
    return Role.ENGINEER if split == Split.HOLDOUT else Role.VIEWER


def _is_quotable(row: EvalRun | Sample) -> bool:
    return role_of(row) == Role.VIEWER


def outputs_opened(run: EvalRun, by: Any) -> bool:
    """A person has opened them on a page before; a key that may see hold-outs opens them by
    reading.
    """
    if isinstance(by, ApiKey) and run.split == Split.HOLDOUT:
        return by.sees_holdout and record_output_view(run, by=by)
    return has_opened(run, by=by)


def _task_opened(task: Task, by: Any) -> bool:
    if isinstance(by, ApiKey) and task.split == Split.HOLDOUT:
        if by.sees_holdout:
            record_task_view(task, by=by)
        return by.sees_holdout
    return has_opened_task(task, by=by)


def _record_run(run: Trajectory, by: Any) -> None:
    runs_shown(run.project, [run.pk], to=by, where="comments")


def _was_held_out(run: Trajectory) -> bool:
    return bool(held_out_runs(run.project, [run]))


def _title_of_run(run: Trajectory) -> str:
    """Its id may be the key of a held-out task."""
    return "a trajectory" if _was_held_out(run) else f"the trajectory {run.external_id}"


def _run_key(project: Project, external_id: str) -> UUID | None:
    keys = TrajectoryKey.objects.filter(project=project, external_id=external_id)
    return keys.values_list("trajectory_id", flat=True).first()


def _failure_key(project: Project, external_id: str) -> int | None:
    """No other route of the API knows a failure: it is that of a run."""
    failures = Failure.objects.filter(project=project, trajectory=_run_key(project, external_id))
    return failures.values_list("pk", flat=True).first()


register(
    Kind(
        name="trajectory",
        noun="a trajectory",
        model=Trajectory,
        related=("project",),
        title=_title_of_run,
        may_be_quoted=lambda run: not _was_held_out(run),
        record_view=_record_run,
        key_of=_run_key,
        api_id=lambda run: run.external_id,
    )
)
register(
    Kind(
        name="failure",
        noun="a failure",
        model=Failure,
        related=("project", "trajectory__project", "mode", "assigned_to"),
        title=lambda failure: f"a failure ({failure.mode}) in {_title_of_run(failure.trajectory)}",
        may_be_quoted=lambda failure: not _was_held_out(failure.trajectory),
        owners=lambda failure: [failure.assigned_to],
        record_view=lambda failure, by: _record_run(failure.trajectory, by),
        key_of=_failure_key,
        api_id=lambda failure: failure.trajectory.external_id,
    )
)
register(
    Kind(  # a task of a draft may be held out later, so what is said of it is in no notification
        name="task",
        noun="a task",
        model=Task,
        related=("project", "eval_set"),
        title=lambda task: f"a task of {task.eval_set}",
        role=role_of,
        is_open=_task_opened,
        may_be_quoted=lambda task: False,
    )
)
register(
    Kind(
        name="evaluation",
        noun="an evaluation",
        model=EvalRun,
        related=("project", "created_by"),
        title=lambda run: f"the evaluation “{run.name}”",
        role=role_of,
        is_open=outputs_opened,
        may_be_quoted=_is_quotable,
        owners=lambda run: [run.created_by],
    )
)
register(
    Kind(
        name="sample",
        noun="a sample",
        model=Sample,
        project="run__project",
        related=("run__project", "run__created_by"),
        role=role_of,
        title=lambda sample: f"sample {sample.pk} of “{sample.run.name}”",
        may_be_quoted=_is_quotable,
        is_open=lambda sample, by: outputs_opened(sample.run, by),
        owners=lambda sample: [sample.run.created_by],
    )
)
