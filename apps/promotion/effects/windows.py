"""The hours before and after a move of a channel, and how many runs failed in them, of which mode and cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
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
    """Whole hours (UTC). `version`: only runs that name it; "" for all runs."""

    begin: datetime
    end: datetime
    version: str = ""

    @property
    def hours(self) -> float:
        return max(0.0, (self.end - self.begin) / HOUR)

    def runs(self, project: int) -> QuerySet[HourlyCount]:
        rows = HourlyCount.objects.filter(project=project, hour__gte=self.begin, hour__lt=self.end)
        return rows.filter(_named(self.version)).order_by()

    def failures(self, project: int) -> QuerySet[Failure]:
        rows = Failure.objects.filter(
            project=project, trajectory_id__gte=floor_of(self.begin), trajectory_id__lt=floor_of(self.end)
        )
        return rows.standing().filter(_named(self.version)).order_by()

    @property
    def query(self) -> dict[str, str]:
        """Of the list of trajectories."""
        return {"from": self.begin.isoformat(), "to": self.end.isoformat()} | (
            {"agent_version": self.version} if self.version else {}
        )


def _named(version: str) -> Q:
    return Q(agent_version=version) | Q(model=version) if version else Q()


def label_of(version: ModelVersion) -> str:
    """What runs call it: an agent's own version, else its name with the number."""
    return version.agent_version or str(version)


@dataclass(frozen=True)
class Counted:
    """The runs of a window and the failed ones, by mode and by cluster (ids). Roll-ups are seconds behind: never more failed
    than runs."""

    window: Window
    runs: int
    failed: int
    modes: Mapping[int, int]
    clusters: Mapping[Any, int]
    cost_usd: float
    latency_ms: float | None


def count(project: int, window: Window) -> Counted:
    sums = window.runs(project).aggregate(
        n=Sum("trajectories"), cost=Sum("cost_usd"), latency=Sum("latency_ms"), timed=Sum("with_latency")
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
    return Counted(window, max(sums["n"] or 0, failed), failed, modes, clusters, sums["cost"] or 0.0, latency)


def windows(move: Promotion, days: int) -> tuple[Window, Window]:
    """Up to so many days before and after a move, cut at the channel's moves before and after it and at the current hour. The hour
    of a move itself is on neither side. Where runs name the versions only those of the two count."""
    hour, length = _hour(move.at), timedelta(days=days)
    others = Promotion.objects.filter(channel=move.channel_id).exclude(pk=move.pk)
    earlier = others.filter(at__lte=move.at).order_by("-at", "-pk").values_list("at", flat=True).first()
    later = others.filter(at__gt=move.at).order_by("at").values_list("at", flat=True).first()
    begin, end = hour - length, hour + HOUR + length
    if earlier:
        begin = min(hour, max(begin, _hour(earlier) + HOUR))
    end = min(end, _hour(timezone.now()) + HOUR, *([_hour(later)] if later else []))
    before, after = Window(begin, hour), Window(hour + HOUR, max(end, hour + HOUR))
    project = move.channel.project_id
    if move.from_version is None:
        return before, after
    named = (
        Window(before.begin, before.end, label_of(move.from_version)),
        Window(after.begin, after.end, label_of(move.to_version)),
    )
    return named if all(one.runs(project).filter(trajectories__gt=0).exists() for one in named) else (before, after)


def _hour(at: datetime) -> datetime:
    return at.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
