"""What the list, the page and the API say of clusters: counts, the likely fix, and the share of all
failures.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from django.db.models import Count, Q
from django.utils import timezone

from apps.core.models import Project
from apps.failures.clusters.fixes import LikelyFix, likely_fix
from apps.failures.clusters.shares import shares
from apps.failures.models import Failure, FailureCluster, FailureState
from apps.trajectories.ids import floor_of

WEEK = timedelta(days=7)
NAMES = 2  # tools and arguments in the reason of a fix


def summarised(project: Project, rows: Sequence[FailureCluster]) -> Sequence[FailureCluster]:
    """Sets what `counted` sets, `fix`, `share` of all failures, and what its signature says."""
    counted(rows)
    standing = Failure.objects.filter(project=project).standing().count()
    found = shares(project, {row.pk: row.n for row in rows}, standing)
    for row in rows:
        row.fix, row.share = fix_of(row), found[row.pk]
        row.mode_slug = row.mode.slug if row.mode else None
        row.causes = row.signature.get("causes", [])
    return rows


def fix_of(row: FailureCluster) -> LikelyFix:
    signature = row.signature
    kinds = ("tool", "names")
    names = [item["value"] for item in signature.get("facts", ()) if item["kind"] in kinds]
    has_failed = row.state == FailureCluster.State.REOPENED
    return likely_fix(
        fact=str(signature.get("fact", "")),
        mode=row.mode.slug if row.mode else "",
        names=tuple(names[:NAMES]),
        corrected=int(signature.get("corrected", 0)),
        failed_after=row.fixed_version if has_failed else "",
    )


def counted(rows: Sequence[FailureCluster]) -> Sequence[FailureCluster]:
    """Sets `n` standing and `open` failures, those of the last `week` and `growth`, how many more
    than in the week before.

    Read from the index by cluster alone, and without the clusters' own columns.
    """
    now = timezone.now()
    last, before = floor_of(now - WEEK), floor_of(now - 2 * WEEK)
    found = (
        Failure.objects.filter(cluster__in=[row.pk for row in rows])
        .standing()
        .order_by()
        .values_list("cluster")
    )
    counts = found.annotate(
        n=Count("*"),
        open=Count("trajectory", filter=Q(state=FailureState.OPEN)),
        week=Count("trajectory", filter=Q(trajectory__gte=last)),
        before=Count("trajectory", filter=Q(trajectory__gte=before, trajectory__lt=last)),
    )
    by_cluster = {pk: numbers for pk, *numbers in counts}
    for row in rows:
        row.n, row.open, row.week, earlier = by_cluster.get(row.pk, (0, 0, 0, 0))
        row.growth = row.week - earlier
    return rows
