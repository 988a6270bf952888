"""How long trajectories are kept, per project. Eval tasks made from them have their own copy and
stay.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Any

from django.db import connection, transaction
from django.utils import timezone

from apps.core.actions import audit
from apps.core.models import Project
from apps.teamwork.actions import forget_orphans
from apps.trajectories import partitions, step_totals
from apps.trajectories.actions.deletions import purge
from apps.trajectories.actions.feedback import forget_unclaimed
from apps.trajectories.ids import floor_of
from apps.trajectories.models import Retention, Trajectory

log = logging.getLogger(__name__)
AT_ONCE, OF_MONTH_AT_ONCE = 500, 1_000
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


def _with_expired(now: datetime, besides: Collection[int]) -> list[Retention]:
    """Those of projects that have something older than they keep, found for all in one query, and
    of these projects.
    """
    retentions = {row.pk: row for row in Retention.objects.select_related("project")}
    before = [now - timedelta(days=row.days) for row in retentions.values()]
    with connection.cursor() as cursor:
        cursor.execute(EXPIRED, [list(retentions), before, list(map(floor_of, before))])
        found = {*besides, *(project for (project,) in cursor.fetchall())}
    return [retentions[project] for project in sorted(found)]


def enforce(now: datetime | None = None) -> int:
    """Removes what is older than its project keeps, some rows a transaction. Returns how many.

    A month of which nobody keeps anything goes with its partitions: only what is outside of them is
    removed row by row.
    """
    now = now or timezone.now()
    removed, of_months = 0, drop_months(now)
    for retention in _with_expired(now, of_months):
        gone = of_months[retention.project_id]
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


def drop_months(now: datetime) -> Counter[int]:
    """{project: how many of its runs were removed with whole months}."""
    kept = {row.project_id: row for row in Retention.objects.select_related("project")}
    removed: Counter[int] = Counter()
    for month in partitions.months():
        end = partitions.next_month(month)
        projects = partitions.projects_of(month)
        expired_in = [
            kept[pk] for pk in projects if pk in kept and end <= now - timedelta(days=kept[pk].days)
        ]
        if not partitions.may_go(month) or not projects or len(expired_in) < len(projects):
            continue
        for retention in expired_in:
            removed[retention.project_id] += _remove_of_month(retention.project, month, end)
        if partitions.drop_removed(month):
            step_totals.forget_month(month, end)
    return removed


def _remove_of_month(project: Project, month: datetime, end: datetime) -> int:
    runs = Trajectory.objects.filter(
        project=project, pk__gte=floor_of(month), pk__lt=floor_of(end)
    ).order_by("pk")
    removed, after = 0, floor_of(month)
    while rows := list(runs.filter(pk__gt=after)[:OF_MONTH_AT_ONCE]):
        after = rows[-1].pk
        removed += purge(project, rows, with_comments=False, with_their_month=True)
    forget_orphans(project)
    return removed
