"""What alerts measure, and whether it is as it should be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import median
from typing import Any

from django.db.models import QuerySet
from django.http import QueryDict

from apps.core.models import Project
from apps.core.query import Query, from_browser
from apps.trajectories import filters, score_rows, step_figures, step_filters
from apps.trajectories.metrics import query
from apps.trajectories.metrics.cells import MEASURES as OF_RUNS
from apps.trajectories.metrics.figures import written
from apps.trajectories.models import Alert, AlertPoint, Trajectory
from apps.trajectories.step_figures import MEASURES as OF_STEPS

DAYS = 14  # whose windows at the same time of day say what is usual
FEWEST_DAYS = 5
SPREADS = 4.0  # median absolute deviations (as standard deviations) from the median
LEAST_SPREAD = 0.05  # of the median: what never varied would fire at the least change
SHOWN_RUNS = 20
TIMES = ("since", "from", "to")
POINTS, PER_WINDOW = 400, 12  # that are kept for the chart, and how close they are


@dataclass(frozen=True)
class Measured:
    value: float | None
    n: int


NOTHING = Measured(None, 0)


@dataclass(frozen=True)
class Source:
    """The rows that are measured: the route of their list, its filters, and the ids of their
    runs.
    """

    route: str
    known: Query
    ids: Callable[[Project, Mapping[str, str]], QuerySet]


@dataclass(frozen=True)
class Measure:
    """`runs` finds those behind a value that is too high, or too low."""

    unit: str
    source: Source
    read: Callable[[Project, Mapping[str, str]], Measured]
    runs: Callable[[Project, Mapping[str, str], bool], list[str]]


def _of_runs(name: str) -> Callable[[Project, Mapping[str, str]], Measured]:
    def read(project: Project, given: Mapping[str, str]) -> Measured:
        cell = query.totals(project, given).total
        return Measured(OF_RUNS[name].value(cell), OF_RUNS[name].n(cell))

    return read


def _of_steps(name: str) -> Callable[[Project, Mapping[str, str]], Measured]:
    def read(project: Project, given: Mapping[str, str]) -> Measured:
        group = step_figures.whole(project, given)
        if group is None:
            return NOTHING
        return Measured(OF_STEPS[name].value(group), OF_STEPS[name].n(group))

    return read


def _of_scores(project: Project, given: Mapping[str, str]) -> Measured:
    group = score_rows.whole(project, given)
    return Measured(group.mean, group.scores) if group else NOTHING


def _runs_by(*order: str, **only: Any) -> Callable[[Project, Mapping[str, str], bool], list[str]]:
    def runs(project: Project, given: Mapping[str, str], is_high: bool) -> list[str]:
        rows = filters.apply_filters(project.trajectories.filter(**only), given)
        rows = rows.order_by(*order) if is_high else rows.order_by("-pk")
        return list(rows.values_list("external_id", flat=True)[:SHOWN_RUNS])

    return runs


def _runs_of_steps(
    *order: str, **only: Any
) -> Callable[[Project, Mapping[str, str], bool], list[str]]:
    def runs(project: Project, given: Mapping[str, str], is_high: bool) -> list[str]:
        rows = step_filters.apply_filters(project, given).filter(**only).order_by(*order)
        found = dict.fromkeys(rows.values_list("trajectory_id", flat=True)[: SHOWN_RUNS * 5])
        names = Trajectory.objects.filter(pk__in=found).values_list("pk", "external_id")
        known = dict(names)
        return [known[pk] for pk in found if pk in known][:SHOWN_RUNS]

    return runs


def _runs_of_scores(project: Project, given: Mapping[str, str], is_high: bool) -> list[str]:
    rows = score_rows.apply_filters(project, given).exclude(value=None)
    rows = rows.order_by("-value" if is_high else "value")
    names = rows.values_list("external_id", flat=True)[: SHOWN_RUNS * 5]
    return list(dict.fromkeys(names))[:SHOWN_RUNS]


def _filters(known: Query) -> Query:
    return {name: kind for name, kind in known.items() if name not in TIMES}


RUNS = Source("list", _filters(filters.FILTERS), filters.runs_of)
STEPS = Source("steps", _filters(step_filters.FILTERS), step_filters.runs_of)
SCORES = Source("scores", _filters(score_rows.FILTERS), score_rows.runs_of)
MEASURES = {
    "failure_rate": Measure(
        "share",
        RUNS,
        _of_runs("failure_rate"),
        _runs_by("-pk", outcome_status="failure"),
    ),
    "runs": Measure("runs", RUNS, _of_runs("runs"), _runs_by("-pk")),
    "cost": Measure(
        "usd",
        RUNS,
        _of_runs("cost"),
        _runs_by("-cost_usd", "-pk", cost_usd__isnull=False),
    ),
    "latency_p95": Measure(
        "ms",
        RUNS,
        _of_runs("latency_p95"),
        _runs_by("-latency_ms", "-pk", latency_ms__isnull=False),
    ),
    "step_error_rate": Measure(
        "share",
        STEPS,
        _of_steps("error_rate"),
        _runs_of_steps("-pk", status="error"),
    ),
    "step_p95": Measure(
        "ms",
        STEPS,
        _of_steps("p95"),
        _runs_of_steps("-duration_ms", "-pk", duration_ms__isnull=False),
    ),
    "score": Measure("", SCORES, _of_scores, _runs_of_scores),
}


def given_of(alert: Alert, begin: datetime, end: datetime) -> dict[str, str]:
    """Its filters, and a time. Raises QueryError."""
    known = MEASURES[alert.measure].source.known
    chosen = from_browser(QueryDict(alert.filters), known).dict()
    return chosen | {"from": begin.isoformat(), "to": end.isoformat()}


def measured(alert: Alert, end: datetime) -> Measured:
    """Of the window that ends then. Raises QueryError."""
    begin = end - timedelta(minutes=alert.window_minutes)
    return MEASURES[alert.measure].read(alert.project, given_of(alert, begin, end))


def usual_range(alert: Alert, now: datetime) -> tuple[float, float] | None:
    """From the windows at the same time of the days before; None where too few have enough to go
    by.
    """
    before = (measured(alert, now - timedelta(days=day)) for day in range(1, DAYS + 1))
    values = [one.value for one in before if one.value is not None and one.n >= alert.at_least]
    if len(values) < FEWEST_DAYS:
        return None
    middle = median(values)
    spread = 1.4826 * median(abs(value - middle) for value in values)
    spread = max(spread, LEAST_SPREAD * abs(middle), 1e-9)
    low = middle - SPREADS * spread
    return low if min(values) < 0 else max(low, 0.0), middle + SPREADS * spread


def is_enough(alert: Alert, found: Measured) -> bool:
    """Whether so little says anything. A number of runs does, however small."""
    is_count = alert.measure == Alert.Measure.RUNS
    return found.value is not None and (is_count or found.n >= alert.at_least)


def crosses(alert: Alert, value: float, usual: Alert | AlertPoint | None = None) -> bool:
    """`usual`: what has the `low` and `high` of then."""
    if alert.condition == Alert.Condition.ABOVE:
        return value > alert.line
    if alert.condition == Alert.Condition.BELOW:
        return value < alert.line
    usual = usual or alert
    return usual.low is not None and not usual.low <= value <= usual.high


def spacing(alert: Alert) -> timedelta:
    """How far the points of its chart are apart."""
    return timedelta(minutes=max(1, alert.window_minutes // PER_WINDOW))


def is_high(alert: Alert, value: float) -> bool:
    """Whether too much is what is wrong with it."""
    if alert.condition == Alert.Condition.UNUSUAL:
        return alert.high is None or value > alert.high
    return alert.condition == Alert.Condition.ABOVE


def in_words(alert: Alert, value: float | None) -> str:
    """“Failure rate of runs 12.0%, above 10.0%”"""
    if alert.condition == Alert.Condition.UNUSUAL:
        known = f"usually {amount(alert, alert.low)} to {amount(alert, alert.high)}"
        limit = f"what is usual takes {FEWEST_DAYS} days" if alert.low is None else known
    else:
        crossed = value is None or alert.line is None or crosses(alert, value)
        limit = f"{'' if crossed else 'not '}{alert.condition} {amount(alert, alert.line)}"
    if value is None:
        return f"{alert.get_measure_display()}: nothing to measure ({limit})"
    return f"{alert.get_measure_display()} {amount(alert, value)}, {limit}"


def limit_of(alert: Alert) -> str:
    """“Above 15.0%”"""
    if alert.line is None or alert.condition == Alert.Condition.UNUSUAL:
        return str(alert.get_condition_display())
    return f"{alert.condition} {amount(alert, alert.line)}".capitalize()


def without_data(alert: Alert) -> str:
    """“Failure rate of runs: too little to measure for 60 minutes (0 of at least 5)”"""
    return (
        f"{alert.get_measure_display()}: too little to measure for {alert.window_minutes:,} minutes"
        f" ({alert.n:,} of at least {alert.at_least:,})"
    )


def amount(alert: Alert, value: float | None) -> str:
    """A value with its unit."""
    unit = MEASURES[alert.measure].unit
    if unit and (value is None or value >= 0):
        return written(value, unit)
    return "–" if value is None else f"{value:.4g}"
