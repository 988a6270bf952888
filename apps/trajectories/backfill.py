"""Steps and scores of runs that were stored before there were any: they are digested again, some at
a time, so that what arrives meanwhile does not wait behind all of them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from uuid import UUID

from django.db.models import Exists, OuterRef

from apps.core.models import Project
from apps.trajectories import digest
from apps.trajectories.models import Arrival, Step, Trajectory
from apps.trajectories.rollups import Counts

AT_ONCE = 400
POLL_S = 0.2


def backfill(project: Project) -> Iterator[int]:
    """Digests the runs that have no steps; yields how many were done so far."""
    done, after = 0, UUID(int=0)
    steps = Step.objects.filter(project=project, trajectory_id=OuterRef("pk"))
    while some := list(
        Trajectory.objects.filter(~Exists(steps), project=project, pk__gt=after)
        .order_by("pk")
        .values_list("pk", flat=True)[:AT_ONCE]
    ):
        note = Arrival.objects.create(project=project, trajectories=some, counts=Counts().as_json())
        while Arrival.objects.waiting().filter(pk=note.pk).exists():
            if not digest.step():  # another process is at it
                time.sleep(POLL_S)
        done, after = done + len(some), some[-1]
        yield done
