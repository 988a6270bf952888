"""How long trajectories are kept, per project. Eval tasks made from them have their own copy and
stay.
"""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from typing import Any

from django.db import connection, transaction
from django.utils import timezone

from apps.core.actions import audit
from apps.core.models import Project
from apps.trajectories.actions.deletions import purge
from apps.trajectories.actions.feedback import forget_unclaimed
from apps.trajectories.ids import floor_of
from apps.trajectories.models import Retention, Trajectory

log = logging.getLogger(__name__)
AT_ONCE = 500
LONGEST = 36_500
EXPIRED = """
    SELECT project FROM unnest(%s::bigint[], %s::timestamptz[], %s::uuid[])
        AS kept(project, before, floor)
    WHERE EXISTS (
        SELECT FROM trajectories_trajectory WHERE project_id = project AND id < floor
    ) OR EXISTS (
        SELECT FROM trajectories_feedback WHERE project_id = project AND given_at < before
    ) OR EXISTS (
        SELECT FROM trajectories_score
        WHERE project_id = project AND trajectory_id IS NULL AND created_at < before
    )
    ORDER BY project
"""


@transaction.atomic
def set_retention(*, project: Project, days: int | None, by: Any) -> None:
    """None keeps everything. Raises ValueError for less than a day."""
    if days is not None and not 1 <= days <= LONGEST:
        raise ValueError(f"Retention must be 1 to {LONGEST:,} days, or empty to keep everything.")
    before = Retention.objects.filter(project=project).first()
    if days is None:
        Retention.objects.filter(project=project).delete()
    else:
        Retention.objects.update_or_create(project=project, defaults={"days": days})
    audit(
        "retention.set", project=project, by=by, days=days, before=before.days if before else None
    )


def expired(project: Project, days: int, now: datetime | None = None) -> Any:
    """The rows that a retention of `days` days removes."""
    return Trajectory.objects.filter(
        project=project, pk__lt=floor_of((now or timezone.now()) - timedelta(days=days))
    )


def _with_expired(now: datetime) -> list[Retention]:
    """Those of projects that have something older than they keep, found for all in one query."""
    retentions = {row.pk: row for row in Retention.objects.select_related("project")}
    before = [now - timedelta(days=row.days) for row in retentions.values()]
    with connection.cursor() as cursor:
        cursor.execute(EXPIRED, [list(retentions), before, list(map(floor_of, before))])
        return [retentions[project] for (project,) in cursor.fetchall()]


def enforce(now: datetime | None = None) -> int:
    """Removes what is older than its project keeps, some rows a transaction. Returns how many."""
    removed = 0
    now = now or timezone.now()
    for retention in _with_expired(now):
        gone = 0
        forget_unclaimed(retention.project, now - timedelta(days=retention.days))
        while rows := list(
            expired(retention.project, retention.days, now).order_by("pk")[:AT_ONCE]
        ):
            gone += purge(retention.project, rows)
        if gone:
            audit(
                "retention.enforced",
                project=retention.project,
                by=None,
                removed=gone,
                days=retention.days,
            )
        removed += gone
    return removed
