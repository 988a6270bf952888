"""How often what fails: failures counted by index, trajectories from the roll-ups. Intervals are Wilson's, 95%."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Count, DateTimeField, F, Func, Max, Min, Sum
from django.db.models.functions import Trunc
from django.utils import timezone

from apps.core.charts import BAD, intervals, lines
from apps.core.intervals import wilson
from apps.core.models import Project
from apps.failures.models import Failure, FailureMode, FailureQuerySet, FailureState
from apps.trajectories.ids import floor_of
from apps.trajectories.models import HourlyCount
from apps.trajectories.pages.totals import time_unit

SINCE = {"7d": 7, "30d": 30, "90d": 90, "all": 0}
VERSIONS, MODES = 12, 12
BAND = "rgba(198, 66, 58, 0.18)"


@dataclass(frozen=True)
class Rate:
    """`failed` of `n` trajectories. Roll-ups are seconds behind: never more than all of them."""

    name: str
    failed: int
    total: int

    @property
    def n(self) -> int:
        return max(self.failed, self.total)

    @property
    def rate(self) -> float:
        return self.failed / self.n if self.n else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        return wilson(self.failed, self.n)


@dataclass(frozen=True)
class Bucket:
    mode: FailureMode
    rate: Rate
    open: int
    dismissed: int


def since_of(given: str) -> datetime | None:
    """The beginning of a span of SINCE; None for all time."""
    days = SINCE.get(given, 30)
    return timezone.now() - timedelta(days=days) if days else None


def hours(project: Project, since: datetime | None) -> Any:
    rows = HourlyCount.objects.filter(project=project, trajectories__gt=0)
    return rows.filter(hour__gte=since.replace(minute=0, second=0, microsecond=0)) if since else rows


def failures(project: Project, since: datetime | None) -> FailureQuerySet:
    """Those of runs that started since then: the run's id begins with its time, so no trajectory is read."""
    rows = Failure.objects.filter(project=project)
    if since is None:
        return rows
    return rows.filter(trajectory_id__gte=floor_of(since.replace(minute=0, second=0, microsecond=0)))


def total(project: Project, since: datetime | None = None) -> int:
    return hours(project, since).aggregate(n=Sum("trajectories"))["n"] or 0


def buckets(project: Project) -> list[Bucket]:
    """Each mode of the project with its share of all trajectories: the most frequent first."""
    counted = Failure.objects.filter(project=project).order_by().values_list("mode_id", "state").annotate(n=Count("pk"))
    counts = {(mode, state): n for mode, state, n in counted}
    everything = total(project)
    found = []
    for mode in project.failure_modes.all():
        waiting, confirmed, dismissed = (counts.get((mode.pk, state), 0) for state in FailureState.values)
        found.append(Bucket(mode, Rate(mode.name, waiting + confirmed, everything), waiting, dismissed))
    return sorted(found, key=lambda bucket: -bucket.rate.failed)


def by_mode(project: Project, since: datetime | None) -> list[Rate]:
    rows = failures(project, since).standing().order_by().values_list("mode__name").annotate(n=Count("pk"))
    everything = total(project, since)
    return [Rate(name, n, everything) for name, n in rows.order_by("-n")[:MODES]]


def by_version(project: Project, since: datetime | None) -> list[Rate]:
    """The newest versions, by when they were first seen."""
    kind = ("agent_name", "agent_version")
    totals = hours(project, since).values_list(*kind).annotate(n=Sum("trajectories"), first=Min("hour"))
    newest = list(totals.order_by("-first", *kind)[:VERSIONS])
    rows = failures(project, since).standing().order_by()
    counted = rows.values_list("trajectory__agent_name", "trajectory__agent_version").annotate(n=Count("pk"))
    failed = {(name, version): n for name, version, n in counted}
    return [
        Rate(" ".join(filter(None, (name, version))) or "(no name)", failed.get((name, version), 0), n)
        for name, version, n, _ in newest
    ]


class StartOfRun(Func):
    """The time in a trajectory's id."""

    function = "uuid_extract_timestamp"
    output_field = DateTimeField()


def by_time(project: Project, since: datetime | None) -> tuple[str, list[tuple[datetime, Rate]]]:
    """(unit, [(when, rate)]) of the hours, days or weeks that have trajectories."""
    seen = hours(project, since).aggregate(first=Min("hour"), last=Max("hour"))
    unit = time_unit(seen["first"], seen["last"])
    totals = hours(project, since).annotate(at=Trunc("hour", unit)).values_list("at").annotate(n=Sum("trajectories"))
    rows = failures(project, since).standing().order_by()
    counted = rows.annotate(at=Trunc(StartOfRun(F("trajectory_id")), unit)).values_list("at").annotate(n=Count("pk"))
    failed = dict(counted)
    return unit, [(at, Rate(at.isoformat(), failed.get(at, 0), n)) for at, n in totals.order_by("at")]


def figures(project: Project, since: datetime | None) -> Iterator[tuple[str, dict]]:
    """The charts by their id; those that have something to show."""
    unit, over_time = by_time(project, since)
    if len(over_time) > 1:
        yield "rate-by-time", _band(over_time, f"Failure rate by the {unit}")
    if rows := by_mode(project, since):
        yield "rate-by-mode", _dots(rows, "Failure rate by mode")
    if rows := by_version(project, since):
        yield "rate-by-version", _dots(rows, "Failure rate by agent version, the newest on top")


def _dots(rows: Iterable[Rate], title: str) -> dict:
    shown = list(rows)[::-1]
    low, high = zip(*(row.interval for row in shown), strict=True)
    figure = intervals(
        [short(row.name) for row in shown], [row.rate for row in shown], low, high, title, height=70 + 24 * len(shown)
    )
    figure["data"][0] |= {
        "customdata": [f"{row.failed:,} of {row.n:,}" for row in shown],
        "hovertemplate": "%{y}: %{x:.1%} (%{customdata})<extra></extra>",
    }
    figure["layout"]["xaxis"] |= {"tickformat": ".0%", "rangemode": "tozero"}
    figure["layout"]["yaxis"] |= {"nticks": len(shown) + 1, "type": "category"}
    return figure


def short(name: str) -> str:
    """Names come from agents: short, and without what plotly reads as markup."""
    return name.replace("<", "‹").replace(">", "›")[:28]


def _band(rows: list[tuple[datetime, Rate]], title: str) -> dict:
    at = [when.isoformat() for when, _ in rows]
    figure = lines({"rate": (at, [rate.rate for _, rate in rows])}, title, x="", height=230)
    figure["data"][0] |= {
        "line": {"color": BAD, "width": 1.8},
        "customdata": [f"{rate.failed:,} of {rate.n:,}" for _, rate in rows],
        "hovertemplate": "%{x}: %{y:.1%} (%{customdata})<extra></extra>",
    }
    low, high = zip(*(rate.interval for _, rate in rows), strict=True)
    edge = {"type": "scatter", "mode": "lines", "line": {"width": 0}, "hoverinfo": "skip", "x": at, "showlegend": False}
    figure["data"] = [
        edge | {"y": list(low)},
        edge | {"y": list(high), "fill": "tonexty", "fillcolor": BAND},
        *figure["data"],
    ]
    figure["layout"]["yaxis"] |= {"tickformat": ".0%", "rangemode": "tozero"}
    return figure
