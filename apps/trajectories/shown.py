"""Every page and answer that shows what runs said calls `runs_shown`; layers above may want to know
who has seen which.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any
from uuid import UUID

from django.db.models import QuerySet

from apps.core.bus import Event, publish
from apps.core.models import Project
from apps.trajectories.models import Trajectory

Runs = Collection[UUID] | QuerySet[Trajectory]
# Filters and groups that say something of single runs. Figures without one of them are aggregates.
DISCLOSING = frozenset({"q", "arguments", "error", "run", "session", "step", "score_is"})
NEWEST = 20_000  # runs behind a figure that are looked through


class RunsShown(Event):
    """`runs` gives ids, or a query where the answer is a file of all of it: to find them may take
    as long as the answer did, so only who needs them asks. `to`: a user or an API key.

    `previews`: of each run only how it begins is shown, as in a list.
    """

    project: Project
    runs: Callable[[], Runs]
    to: Any
    where: str
    previews: bool


def runs_shown(
    project: Project, runs: Runs, *, to: Any, where: str, previews: bool = False
) -> None:
    publish(RunsShown(project, lambda: runs, to, where, previews))


def figures_shown(
    project: Project,
    ids: Callable[[], QuerySet],
    given: Mapping[str, str],
    *,
    to: Any,
    where: str,
) -> None:
    """Figures of the runs with these `ids`, newest first, show what is in these runs if they are
    found or grouped by what was said, or are of one run.
    """
    if given.get("by") in DISCLOSING or any(map(given.get, DISCLOSING)):
        publish(
            RunsShown(
                project,
                lambda: project.trajectories.filter(pk__in=ids()[:NEWEST]),
                to,
                where,
                previews=True,
            )
        )
