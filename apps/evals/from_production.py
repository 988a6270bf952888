"""Which production runs can become tasks."""

from __future__ import annotations

from collections.abc import Iterator

from django.db.models import QuerySet

from apps.core.models import Project
from apps.failures.models import FailureState
from apps.trajectories.models import Outcome, Trajectory, in_chunks

MOST = 5_000  # runs at once


def candidates(project: Project) -> QuerySet[Trajectory]:
    """Trajectories that can become tasks: successes, and failures that nobody has dismissed."""
    rows = project.trajectories.filter(outcome_status__in=[Outcome.FAILURE, Outcome.SUCCESS])
    return rows.exclude(failure__state=FailureState.DISMISSED)


def newest(rows: QuerySet[Trajectory]) -> Iterator[Trajectory]:
    """The newest MOST of these with their content, oldest first."""
    found = Trajectory.objects.filter(pk__in=rows.order_by("-pk").values("pk")[:MOST]).order_by(
        "pk"
    )
    return (row for chunk in in_chunks(found) for row in chunk)
