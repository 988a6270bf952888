"""Purity of clusters: the share of a cluster's confirmed failures that have its most common
mode.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from uuid import UUID

from django.db.models import Count

from apps.core.models import Project
from apps.failures.measures import Share
from apps.failures.models import Failure, FailureState, Source

FEWEST = 2  # confirmed failures: a cluster with only one is always pure


@dataclass(frozen=True)
class Purity:
    """`mode` is the name of the most common one."""

    share: Share
    mode: str


def of_clusters(project: Project, clusters: Collection[UUID] | None = None) -> dict[UUID, Purity]:
    """For each cluster with at least FEWEST failures that people confirmed; without `clusters`, for
    all that still exist.
    """
    rows = Failure.objects.filter(
        project=project, source=Source.PERSON, state=FailureState.CONFIRMED
    )
    rows = (
        rows.filter(cluster__gone=False)
        if clusters is None
        else rows.filter(cluster__in=list(clusters))
    )
    counts: dict[UUID, dict[str, int]] = {}
    for cluster, mode, n in (
        rows.order_by().values_list("cluster", "mode__name").annotate(n=Count("*"))
    ):
        counts.setdefault(cluster, {})[mode] = n
    return {pk: _purity(modes) for pk, modes in counts.items() if sum(modes.values()) >= FEWEST}


def of_all(project: Project) -> Share:
    """Over all clusters with at least FEWEST confirmed failures, weighted by their number."""
    found = [item.share for item in of_clusters(project).values()]
    return Share(sum(share.hits for share in found), sum(share.n for share in found))


def _purity(modes: dict[str, int]) -> Purity:
    mode = max(sorted(modes), key=lambda name: modes[name])
    return Purity(Share(modes[mode], sum(modes.values())), mode)
