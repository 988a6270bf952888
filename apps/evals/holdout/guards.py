"""Functions that `apps.py` passes to lower layers, which do not know about hold-outs themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db.models import QuerySet

from apps.core.models import Project
from apps.evals.holdout import leaks
from apps.evals.holdout.groups import held_out_runs
from apps.evals.holdout.view_log import IN_PRODUCTION, record_seen
from apps.evals.models import Task
from apps.trajectories.models import Trajectory
from apps.trajectories.shown import Runs


def untrainable(project: Project, runs: Sequence[Trajectory], lines: Sequence[dict]) -> set[int]:
    """For `exports.GUARDS`: runs of a held-out group, and lines that teach a held-out task or nearly one."""
    held = held_out_runs(project, runs)
    return {index for index, run in enumerate(runs) if run.pk in held} | leaks.forbidden(project, lines)


def record_runs_shown(project: Project, runs: Runs, to: Any, where: str) -> None:
    """For `shown.WATCHERS`: the runs that held-out tasks were made from reveal what is held out, wherever they are shown."""
    tasks = Task.objects.holdout().filter(project=project)
    if isinstance(runs, QuerySet):  # few runs are held out, while the file may contain all of them
        made_from = list(tasks.exclude(trajectory=None).values_list("trajectory", flat=True))
        runs = list(runs.filter(pk__in=made_from).values_list("pk", flat=True)) if made_from else []
    if runs:
        record_seen(project, tasks.filter(trajectory__in=runs), by=to, detail=f"{IN_PRODUCTION}: {where}")
