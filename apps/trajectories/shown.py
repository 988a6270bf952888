"""Every page and answer that shows what runs said calls `runs_shown`; layers above may want to know
who has seen which.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any
from uuid import UUID

from django.db.models import QuerySet

from apps.core.bus import Event, publish
from apps.core.models import Project
from apps.trajectories.models import Trajectory

Runs = Collection[UUID] | QuerySet[Trajectory]


class RunsShown(Event):
    """`runs`: ids, or a query where the answer is a file of all of it; `to`: a user or an API key.

    `previews`: of each run only how it begins is shown, as in a list.
    """

    project: Project
    runs: Runs
    to: Any
    where: str
    previews: bool


def runs_shown(
    project: Project, runs: Runs, *, to: Any, where: str, previews: bool = False
) -> None:
    publish(RunsShown(project, runs, to, where, previews))
