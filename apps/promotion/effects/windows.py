"""The hours before and after a move of a channel, with the number of failed runs by mode and
cluster.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any

from django.db.models import Count, Q, QuerySet, Sum
from django.utils import timezone

from apps.failures.models import Failure
from apps.promotion.models import Promotion
from apps.registry.models import ModelVersion
from apps.trajectories.ids import floor_of
from apps.trajectories.models import HourlyCount

HOUR = timedelta(hours=1)
LONGEST, USUAL = 90, 7  # days


@dataclass(frozen=True)
class Window:
    """Whole hours (UTC). `version`: only runs that name it; "" for all runs. `names`: its other
    names. `named_by`: the column that is checked first."""

    begin: datetime
    end: datetime
    version: str = ""
    names: tuple[str, ...] = ()
    named_by: str = "agent_version"

    @property
    def hours(self) -> float:
        return max(0.0, (self.end - self.begin) / HOUR)

    def runs(self, project: int) -> QuerySet[HourlyCount]:
        rows = HourlyCount.objects.filter(project=project, hour__gte=self.begin, hour__lt=self.end)
        return rows.filter(_named(self)).order_by()

    def failures(self, project: int) -> QuerySet[Failure]:
        rows = Failure.objects.filter(
            project=project,
            trajectory_id__gte=floor_of(self.begin),
            trajectory_id__lt=floor_of(self.end),
        )
        return rows.standing().filter(_named(self)).order_by()

    @property
    def query(self) -> dict[str, str]:
        """For the list of trajectories."""
        return {"from": self.begin.isoformat(), "to": self.end.isoformat()} | (
            {self.named_by: self.version} if self.version else {}
        )


def _named(window: Window) -> Q:
    names = (window.version, *window.names)
    return Q(agent_version__in=names) | Q(model__in=names) if window.version else Q()


def label_of(version: ModelVersion) -> str:
    """What runs call it: an agent's own version, otherwise its name with the number."""
    return version.agent_version or str(version)


@dataclass(frozen=True)
class Counted:
    """The runs of a window and the failed ones, by mode and by cluster (ids). Roll-ups lag by
    seconds: never more failed than runs.
    """

    window: Window
    runs: int
    failed: int
    modes: Mapping[int, int]
    clusters: Mapping[Any, int]
    cost_usd: float
    latency_ms: float | None
    daily: Sequence[int] = ()  # the runs of each whole 24 hours
    unpriced: int = 0  # runs whose cost is not known, or only a part of it


def count(project: int, window: Window) -> Counted:
    sums = window.runs(project).aggregate(
        n=Sum("trajectories"),
        cost=Sum("cost_usd"),
        unpriced=Sum("unpriced"),
        latency=Sum("latency_ms"),
        timed=Sum("with_latency"),
    )
    rows = window.failures(project).values_list("mode_id", "cluster_id").annotate(n=Count("*"))
    modes: dict[int, int] = {}
    clusters: dict[Any, int] = {}
    for mode, cluster, n in rows:
        modes[mode] = modes.get(mode, 0) + n
        if cluster:
            clusters[cluster] = clusters.get(cluster, 0) + n
    failed = sum(modes.values())
    latency = sums["latency"] / sums["timed"] if sums["timed"] else None
    cost, runs = sums["cost"] or 0.0, max(sums["n"] or 0, failed)
    daily, unpriced = _daily(project, window), sums["unpriced"] or 0
    return Counted(window, runs, failed, modes, clusters, cost, latency, daily, unpriced)


def _daily(project: int, window: Window) -> list[int]:
    counts = [0] * int(window.hours // 24)
    for hour, n in window.runs(project).values_list("hour").annotate(n=Sum("trajectories")):
        if (day := int((hour - window.begin) / HOUR // 24)) < len(counts):
            counts[day] += n
    return counts


def windows(move: Promotion, days: int) -> tuple[Window, Window]:
    """At most this many days before and after a move, cut at the channel's adjacent moves and at
    the present.

    If runs name the versions, only runs of the two count, and hours in which the channel moved are
    on both sides: the names tell the runs apart. Otherwise (also where both have one name, such as
    two agents at their version 2) all runs count, and such an hour is on neither side.
    """
    others = Promotion.objects.filter(channel=move.channel_id).exclude(pk=move.pk)
    earlier = (
        others.filter(at__lte=move.at).order_by("-at", "-pk").values_list("at", flat=True).first()
    )
    later = others.filter(at__gt=move.at).order_by("at").values_list("at", flat=True).first()
    if move.from_version is not None:
        named = _cut(move, days, earlier, later, shared=True)
        before = _naming(named[0], move.from_version, move.from_name, move)
        after = _naming(named[1], move.to_version, move.to_name, move)
        if before and after and not set(before.names) & set(after.names):
            return before, after
    return _cut(move, days, earlier, later, shared=False)


def _cut(
    move: Promotion, days: int, earlier: datetime | None, later: datetime | None, *, shared: bool
) -> tuple[Window, Window]:
    """`shared`: the hours of moves belong to both sides."""
    hour, length, own = _hour(move.at), timedelta(days=days), HOUR if shared else timedelta()
    begin, end = hour - length, min(hour + HOUR + length, _hour(timezone.now()) + HOUR)
    if earlier:
        begin = min(hour, max(begin, _hour(earlier) + HOUR - own))
    if later:
        end = min(end, _hour(later) + own)
    start = hour + HOUR - own
    return Window(begin, hour + own), Window(start, max(end, start))


def _naming(window: Window, version: ModelVersion, once: str, move: Promotion) -> Window | None:
    """The window's runs that name the version by its current name, or by its name at the move
    (`once`); None if there are none.
    """
    names = tuple(
        dict.fromkeys(filter(None, (label_of(version), "" if version.agent_version else once)))
    )
    runs = window.runs(move.channel.project_id).filter(trajectories__gt=0)
    for column, name in product(("agent_version", "model"), names):
        if runs.filter(**{column: name}).exists():
            return replace(window, version=name, names=names, named_by=column)
    return None


def _hour(at: datetime) -> datetime:
    return at.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
