"""What the floors below ask of a hold-out: they know of none themselves, and are given these functions by `apps.py`."""

from __future__ import annotations

from collections.abc import Sequence

from apps.core.models import Project
from apps.evals.holdout import leaks
from apps.evals.holdout.groups import held_out_runs
from apps.trajectories.models import Trajectory


def untrainable(project: Project, runs: Sequence[Trajectory], lines: Sequence[dict]) -> set[int]:
    """For `exports.GUARDS`: the runs of a held-out group, and the lines that teach a held-out task or nearly one."""
    held = held_out_runs(project, runs)
    return {index for index, run in enumerate(runs) if run.pk in held} | leaks.forbidden(project, lines)
