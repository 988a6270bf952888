"""The versions of a project's runs, in the order of their first runs: those in which a cluster can
be fixed.

A version is an agent's, “bank 2”, or a model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import reduce
from itertools import chain, islice
from operator import or_

from django.db.models import Count, Min, Q

from apps.core.models import Project
from apps.failures.clusters.life import Fix, Member
from apps.failures.models import DailyRuns, Failure, FailureCluster
from apps.trajectories.ids import floor_of
from apps.trajectories.models import Arrival

Kind = FailureCluster.FixedKind
COLUMNS = {Kind.AGENT: ("agent_name", "agent_version"), Kind.MODEL: ("model",)}
HOUR = timedelta(hours=1)
NOT_COUNTED = 5_000  # runs read that the roll-ups do not have yet


@dataclass(frozen=True)
class Version:
    """`failures`: of the cluster, in runs of this version."""

    kind: str
    name: str
    first_seen: datetime
    failures: int = 0


def name_of(names: tuple[str, ...]) -> str:
    """“assistant 1.4”, or the model; empty if a run names no version."""
    return " ".join(names).strip() if names[-1] else ""


def of_cluster(cluster: FailureCluster) -> list[Version]:
    """The versions that exist, newest first."""
    found = []
    standing = Failure.objects.filter(cluster=cluster).standing().order_by()
    for kind, columns in COLUMNS.items():
        counts = {
            name_of(tuple(names)): n
            for *names, n in standing.values_list(*columns).annotate(n=Count("*"))
        }
        began = first_seen(cluster.project, kind)
        found += [Version(kind, name, at, counts.get(name, 0)) for name, at in began.items()]
    return sorted(found, key=lambda version: (version.first_seen, version.name), reverse=True)


def found_since(cluster: FailureCluster) -> Iterator[Member]:
    """The standing failures that were found after the cluster was marked as fixed."""
    rows = Failure.objects.filter(cluster=cluster, created_at__gt=cluster.fixed_at).standing()
    columns = ("pk", "created_at", *COLUMNS[Kind(cluster.fixed_kind)])
    for pk, at, *names in rows.order_by("pk").values_list(*columns):
        yield Member(pk, name_of(tuple(names)), at)


def fix_of(cluster: FailureCluster) -> Fix:
    return Fix(cluster.fixed_version, cluster.fixed_at)


def why(cluster: FailureCluster, found: Member) -> str:
    """The sentence about a failure that contradicts the fix."""
    run = Failure.objects.select_related("trajectory").get(pk=found.id).trajectory
    version = f"of {found.version}" if found.version else "without a version"
    return (
        f"The run {run.external_id} {version} failed this way on {run.started_at:%F %R} UTC. The"
        f" cluster was marked as fixed in {cluster.fixed_version} on {cluster.fixed_at:%F %R} UTC."
    )


def first_seen(project: Project, kind: str = Kind.AGENT) -> dict[str, datetime]:
    """Version → when its first run began, oldest first.

    From the roll-ups, which know the hour; runs are only read for hours in which several versions
    began, and for what is not counted yet.
    """
    keys = COLUMNS[Kind(kind)]
    counts = DailyRuns.objects.filter(project=project).exclude(**{keys[-1]: ""}).order_by()
    hours: dict[tuple[str, ...], datetime] = {
        tuple(names): first
        for *names, first in counts.values_list(*keys).annotate(first_hour=Min("first"))
    }
    shared = [hour for hour, n in Counter(hours.values()).items() if n > 1]
    new = chain.from_iterable(
        Arrival.objects.filter(project=project).values_list("trajectories", flat=True)
    )
    wanted = reduce(or_, map(_within, shared), Q(pk__in=list(islice(new, NOT_COUNTED))))
    exact = (
        project.trajectories.filter(wanted).exclude(**{keys[-1]: ""}).order_by().values_list(*keys)
    )
    began = dict(hours)
    for *names, first in exact.annotate(first=Min("started_at")):
        hour = hours.get(tuple(names))
        if hour is None or first < hour + HOUR:
            began[tuple(names)] = first
    found: dict[str, datetime] = {}
    for at, name in sorted((at, name_of(names)) for names, at in began.items()):
        found.setdefault(name, at)
    return found


def _within(hour: datetime) -> Q:
    """The runs that began in an hour: ids begin with their time."""
    return Q(pk__gte=floor_of(hour), pk__lt=floor_of(hour + HOUR))
