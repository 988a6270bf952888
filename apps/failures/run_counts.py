"""What failures are counted against, maintained by the trajectories' digest: runs by day, and the
version of each failed run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta
from uuid import UUID

from django.db import connection
from django.db.models import Min, Sum

from apps.core.bus import on
from apps.core.postgres import array
from apps.failures.models import DailyRuns
from apps.trajectories.digest import RunsDigested
from apps.trajectories.models import HourlyCount

NAMES = ("agent_name", "agent_version", "model")
Kind = tuple[str, ...]


@on(RunsDigested)
def update_counts(event: RunsDigested) -> None:
    days: defaultdict[date, set[Kind]] = defaultdict(set)
    for row in event.counts.hour_rows():
        days[row["hour"].date()].add(tuple(row[name] for name in NAMES))
    for day, kinds in sorted(days.items()):
        _count_day(event.project, day, kinds)
    _follow_runs(event.trajectories)


def _count_day(project: int, day: date, kinds: set[Kind]) -> None:
    """Sums the hours again instead of adding differences, so a day cannot drift from its hours."""
    start = datetime.combine(day, time.min, UTC)
    hours = HourlyCount.objects.filter(
        project=project,
        hour__gte=start,
        hour__lt=start + timedelta(days=1),
        trajectories__gt=0,
        agent_name__in={kind[0] for kind in kinds},
        agent_version__in={kind[1] for kind in kinds},
    )
    sums = (
        hours.order_by().values_list(*NAMES).annotate(runs=Sum("trajectories"), first=Min("hour"))
    )
    found = {tuple(names): (runs, first) for *names, runs, first in sums}
    DailyRuns.objects.bulk_create(
        [
            DailyRuns(
                project_id=project,
                day=day,
                **dict(zip(NAMES, kind, strict=True)),
                runs=runs,
                first=first,
            )
            for kind in sorted(kinds & found.keys())
            for runs, first in [found[kind]]
        ],
        update_conflicts=True,
        unique_fields=["project", "day", *NAMES],
        update_fields=["runs", "first"],
    )
    for kind in kinds - found.keys():
        DailyRuns.objects.filter(
            project=project, day=day, **dict(zip(NAMES, kind, strict=True))
        ).delete()


def _follow_runs(trajectories: Sequence[UUID]) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE failures_failure AS failure SET agent_name = run.agent_name, agent_version ="
            " run.agent_version, model = run.model FROM trajectories_trajectory AS run WHERE run.id"
            " = failure.trajectory_id AND failure.trajectory_id = ANY(%s::uuid[]) AND"
            " (failure.agent_name, failure.agent_version, failure.model) IS DISTINCT FROM"
            " (run.agent_name, run.agent_version, run.model)",
            [array(map(str, trajectories))],
        )
