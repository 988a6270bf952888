"""Failure rates: failures counted by indexes alone, runs from their daily roll-up. Intervals are
Wilson's, 95%.

Days are whole UTC days: a span of seven days is today and the seven before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta

from django.db.models import Count, DateTimeField, F, Func, Min, Q, QuerySet, Sum
from django.db.models.functions import Trunc
from django.utils import timezone

from apps.core.charts import BAD, bars, intervals, lines, shortened, unlike
from apps.core.intervals import wilson
from apps.core.models import Project
from apps.failures.agent_versions import ALL, KEY, AgentVersion, Chosen, newest_first
from apps.failures.models import DailyRuns, Failure, FailureMode, FailureQuerySet, FailureState
from apps.trajectories.ids import floor_of
from apps.trajectories.models import HourlyCount
from apps.trajectories.rollups import rollup_unit

SINCE = {"7d": 7, "30d": 30, "90d": 90, "all": 0}
VERSIONS, MODES = 12, 12
SHOWN_OVER_TIME = 6
COLUMNS = {"mode": ("mode_id",), "version": KEY, "cluster": ("cluster_id",)}
BAND = "rgba(198, 66, 58, 0.18)"


@dataclass(frozen=True)
class Rate:
    """`failed` of `n` trajectories. Roll-ups lag by seconds: never more than all of them."""

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
    """The start of a span of SINCE; None for all time."""
    days = SINCE.get(given, 30)
    return midnight(timezone.now() - timedelta(days=days)) if days else None


def midnight(at: datetime) -> datetime:
    return at.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)


def runs(project: Project, since: datetime | None) -> QuerySet[DailyRuns]:
    """Runs since the day of that time."""
    rows = DailyRuns.objects.filter(project=project).order_by()
    return rows.filter(day__gte=midnight(since).date()) if since else rows


def failures(project: Project, since: datetime | None) -> FailureQuerySet:
    """Standing failures of runs since the day of that time: an id begins with the run's time, so no
    trajectory is read.
    """
    rows = Failure.objects.filter(project=project).standing().order_by()
    return rows.filter(trajectory_id__gte=floor_of(midnight(since))) if since else rows


def total(project: Project, since: datetime | None = None, of: Chosen = ALL) -> int:
    return of.among(runs(project, since)).aggregate(n=Sum("runs"))["n"] or 0


@dataclass(frozen=True)
class Kind:
    """The runs of one agent, version and model since some day, `failed` of them; `first` is the
    hour of the first one ever.
    """

    agent: str
    version: str
    model: str
    first: datetime
    runs: int
    failed: int


def kinds(project: Project, since: datetime | None) -> list[Kind]:
    """All kinds of runs that the project ever had."""
    names = ("agent_name", "agent_version", "model")
    shown = Q(day__gte=midnight(since).date()) if since else Q()
    known = (
        runs(project, None)
        .values_list(*names)
        .annotate(first=Min("first"), n=Sum("runs", filter=shown, default=0))
    )
    counted = failures(project, since).values_list(*names).annotate(n=Count("*"))
    failed = {tuple(key): n for *key, n in counted}
    return [Kind(*key, first, n, failed.get(tuple(key), 0)) for *key, first, n in known]


def buckets(project: Project) -> list[Bucket]:
    """Each mode of the project with its share of all trajectories, most frequent first."""
    counted = (
        Failure.objects.filter(project=project)
        .order_by()
        .values_list("mode_id", "state")
        .annotate(n=Count("*"))
    )
    counts = {(mode, state): n for mode, state, n in counted}
    everything = total(project)
    found = []
    for mode in project.failure_modes.all():
        waiting, confirmed, dismissed = (
            counts.get((mode.pk, state), 0) for state in FailureState.values
        )
        found.append(
            Bucket(mode, Rate(mode.name, waiting + confirmed, everything), waiting, dismissed)
        )
    return sorted(found, key=lambda bucket: -bucket.rate.failed)


def by_mode(project: Project, since: datetime | None) -> list[Rate]:
    counted = dict(failures(project, since).values_list("mode").annotate(n=Count("*")))
    everything = total(project, since)
    named = [
        Rate(mode.name, counted[mode.pk], everything)
        for mode in project.failure_modes.all()
        if mode.pk in counted
    ]
    return sorted(named, key=lambda rate: -rate.failed)[:MODES]


def by_version(known: Iterable[Kind]) -> list[Rate]:
    """The newest versions with runs, by when they were first seen."""
    versions: dict[AgentVersion, list[Kind]] = {}
    for kind in known:
        if kind.runs:
            versions.setdefault(AgentVersion(kind.agent, kind.version), []).append(kind)
    first = {key: min(kind.first for kind in same) for key, same in versions.items()}
    return [
        Rate(
            str(key),
            sum(kind.failed for kind in versions[key]),
            sum(kind.runs for kind in versions[key]),
        )
        for key in newest_first(first)[:VERSIONS]
    ]


class StartOfRun(Func):
    """The time in a trajectory's id."""

    function = "uuid_extract_timestamp"
    output_field = DateTimeField()


def by_model(known: Iterable[Kind]) -> list[Rate]:
    """The models with the most runs."""
    models: dict[str, list[Kind]] = {}
    for kind in known:
        if kind.runs:
            models.setdefault(kind.model, []).append(kind)
    found = [
        Rate(
            name or "(no name)", sum(kind.failed for kind in same), sum(kind.runs for kind in same)
        )
        for name, same in models.items()
    ]
    return sorted(found, key=lambda rate: (-rate.n, rate.name))[:VERSIONS]


def by_time(project: Project, since: datetime | None) -> tuple[str, list[tuple[datetime, Rate]]]:
    """(unit, [(when, rate)]) of the hours, days or weeks that have trajectories."""
    unit = rollup_unit(*span(project, since))
    at = Trunc(StartOfRun(F("trajectory_id")), unit, tzinfo=UTC)
    failed = dict(failures(project, since).annotate(at=at).values_list("at").annotate(n=Count("*")))
    totals = _hourly(project, since) if unit == "hour" else _by(unit, project, since)
    return unit, [(at, Rate(at.isoformat(), failed.get(at, 0), n)) for at, n in totals]


def over_time(
    project: Project, since: datetime | None, by: str
) -> tuple[str, dict[str, dict[datetime, int]]]:
    """(unit, {name: {when: failures}}) of the `SHOWN_OVER_TIME` modes, versions or clusters with
    the most failures.
    """
    rows, names = failures(project, since), None
    if by == "cluster":  # by the index of clusters: only those that are shown
        largest = project.failure_clusters.filter(gone=False).order_by("-size")[:SHOWN_OVER_TIME]
        names = dict(largest.values_list("pk", "name"))
        rows = rows.filter(cluster__in=names)
    elif by == "mode":
        names = dict(project.failure_modes.values_list("pk", "name"))
    unit = rollup_unit(*span(project, since))
    at = Trunc(StartOfRun(F("trajectory_id")), unit, tzinfo=UTC)
    counts: dict[str, dict[datetime, int]] = {}
    counted = rows.annotate(at=at).values_list(*COLUMNS[by], "at").annotate(n=Count("*"))
    for *key, when, n in counted:
        name = str(AgentVersion(*key)) if names is None else str(names.get(key[0], key[0]))
        series = counts.setdefault(name, {})
        series[when] = series.get(when, 0) + n
    most = sorted(counts, key=lambda name: (-sum(counts[name].values()), name))[:SHOWN_OVER_TIME]
    shown = unlike(map(short, most))
    return unit, {
        text: dict(sorted(counts[name].items())) for text, name in zip(shown, most, strict=True)
    }


def figures_over_time(project: Project, since: datetime | None) -> Iterator[tuple[str, dict]]:
    """Failures per day by mode, version and cluster: stacked, those with the most failures. None if
    only one day has any.
    """
    for by, title in (("mode", "mode"), ("version", "agent version"), ("cluster", "cluster")):
        unit, counts = over_time(project, since, by)
        days = sorted({when for series in counts.values() for when in series})
        if len(days) > 1:
            at = [when.isoformat() for when in days]
            series = {
                name: (at, [found.get(when, 0) for when in days]) for name, found in counts.items()
            }
            yield (
                f"failures-by-{by}",
                bars(series, f"Failures per {unit} by {title}", stacked=True, x="", unit=unit),
            )


def span(project: Project, since: datetime | None) -> tuple[datetime | None, datetime | None]:
    """The first and the last hour with runs."""
    last = (
        HourlyCount.objects.filter(project=project, trajectories__gt=0, hour__lte=tomorrow())
        .order_by("-hour")
        .values_list("hour", flat=True)
    )
    first = runs(project, since).aggregate(first=Min("first"))["first"]
    return (first, last.first()) if first else (None, None)


def tomorrow() -> datetime:
    """Where charts end: a run with a wrong clock would squeeze all others into one point."""
    return timezone.now() + timedelta(days=1)


def _hourly(project: Project, since: datetime | None) -> Iterable[tuple[datetime, int]]:
    rows = HourlyCount.objects.filter(project=project, trajectories__gt=0, hour__lte=tomorrow())
    rows = rows.filter(hour__gte=midnight(since)) if since else rows
    return rows.values_list("hour").annotate(n=Sum("trajectories")).order_by("hour")


def _by(unit: str, project: Project, since: datetime | None) -> Iterable[tuple[datetime, int]]:
    """By day or week."""
    known = runs(project, since).filter(day__lte=tomorrow().date())
    found = known.annotate(at=Trunc("day", unit)).values_list("at").annotate(n=Sum("runs"))
    return [(datetime.combine(day, time(), UTC), n) for day, n in found.order_by("at")]


def figures(
    project: Project, since: datetime | None, known: Iterable[Kind] | None = None
) -> Iterator[tuple[str, dict]]:
    """The charts by id; none if nothing has failed. `known` are its `kinds`, if already read."""
    unit, over_time = by_time(project, since)
    if not any(rate.failed for _, rate in over_time):
        return
    if len(over_time) > 1:
        yield "rate-by-time", _band(over_time, f"Runs with a failure per {unit}")
    if rows := by_mode(project, since):
        yield "rate-by-mode", _dots(rows, "Runs with a failure, by mode")
    known = list(kinds(project, since) if known is None else known)
    if rows := by_version(known):
        yield "rate-by-version", _dots(rows, "Runs with a failure, by agent version, newest on top")
    if len(rows := by_model(known)) > 1:
        yield "rate-by-model", _dots(rows, "Runs with a failure, by model")


def _dots(rows: Iterable[Rate], title: str) -> dict:
    shown = list(rows)[::-1]
    low, high = zip(*(row.interval for row in shown), strict=True)
    figure = intervals(
        unlike(short(row.name) for row in shown),
        [row.rate for row in shown],
        low,
        high,
        title,
        height=70 + 24 * len(shown),
    )
    figure["data"][0] |= {
        "customdata": [f"{row.failed:,} of {row.n:,}" for row in shown],
        "hovertemplate": "%{y}: %{x:.1%} (%{customdata})<extra></extra>",
    }
    figure["layout"]["xaxis"] |= {
        "tickformat": ".0%" if max(high) > 0.05 else ".1%",
        "rangemode": "tozero",
    }
    figure["layout"]["yaxis"] |= {"nticks": len(shown) + 1, "type": "category"}
    return figure


def short(name: str) -> str:
    """Names come from agents: shortened, and without what Plotly reads as markup."""
    return shortened(name.replace("<", "‹").replace(">", "›"))


def _band(rows: list[tuple[datetime, Rate]], title: str) -> dict:
    at = [when.isoformat() for when, _ in rows]
    figure = lines({"rate": (at, [rate.rate for _, rate in rows])}, title, x="", height=230)
    figure["data"][0] |= {
        "line": {"color": BAD, "width": 1.8},
        "customdata": [f"{rate.failed:,} of {rate.n:,}" for _, rate in rows],
        "hovertemplate": "%{x}: %{y:.1%} (%{customdata})<extra></extra>",
    }
    low, high = zip(*(rate.interval for _, rate in rows), strict=True)
    edge = {
        "type": "scatter",
        "mode": "lines",
        "line": {"width": 0},
        "hoverinfo": "skip",
        "x": at,
        "showlegend": False,
    }
    figure["data"] = [
        edge | {"y": list(low)},
        edge | {"y": list(high), "fill": "tonexty", "fillcolor": BAND},
        *figure["data"],
    ]
    figure["layout"]["yaxis"] |= {
        "tickformat": ".0%" if max(high) > 0.05 else ".1%",
        "rangemode": "tozero",
    }
    return figure
