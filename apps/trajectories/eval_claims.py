"""Runs that claim to be a sample of an evaluation. Stored with the run, and settled by the evals
app.
"""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from apps.core.models import Project
from apps.trajectories.models import EvalClaim
from apps.trajectories.schema import EvalSample


def add(project: Project, named: Iterable[tuple[UUID, EvalSample]]) -> None:
    """Notes what runs say, in the transaction that stores them; a run that has changed is settled
    again.
    """
    rows = [
        EvalClaim(
            trajectory_id=pk, project=project, run=said.run, task=said.task, sample=said.sample
        )
        for pk, said in named
    ]
    if rows:
        EvalClaim.objects.bulk_create(
            rows,
            update_conflicts=True,
            unique_fields=["trajectory"],
            update_fields=["run", "task", "sample", "state", "note"],
        )
