"""What alerts measure, and whether it is as it should be."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from statistics import median
from typing import Any

from django.db.models import QuerySet
from django.http import QueryDict

from apps.core.models import Project
from apps.core.query import Query, QueryError, from_browser
from apps.core.timeouts import TooLong, patience
from apps.trajectories import filters, score_rows, step_figures, step_filters
from apps.trajectories.metrics import query
from apps.trajectories.metrics.cells import MEASURES as OF_RUNS
from apps.trajectories.metrics.cells import Cell
from apps.trajectories.metrics.figures import written
from apps.trajectories.models import Alert, AlertPoint, Trajectory
from apps.trajectories.step_figures import MEASURES as OF_STEPS
from apps.trajectories.windows import Window

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


@dataclass(frozen=True, eq=False)
class Source:
    """The rows that are measured: the route of their list, its filters, and the ids of their runs.
    `read` adds them up; `read_together` does so for many windows at once, as far as it can.
    """

    route: str
    known: Query
    ids: Callable[[Project, Mapping[str, str]], QuerySet]
    read: Callable[[Project, Mapping[str, str]], Any]
    read_together: Callable[[Collection[Window]], Mapping[Window, Any]]


@dataclass(frozen=True)
class Measure:
    """`of` what its source adds up; `runs` finds those behind a value that is too high, or too
    low.
    """

    unit: str
    source: Source
    of: Callable[[Any], Measured]
    runs: Callable[[Project, Mapping[str, str], bool], list[str]]


def _of_runs(name: str) -> Callable[[Cell], Measured]:
    return lambda cell: Measured(OF_RUNS[name].value(cell), OF_RUNS[name].n(cell))


def _of_steps(name: str) -> Callable[[step_figures.Group | None], Measured]:
    measure = OF_STEPS[name]
    return lambda group: Measured(measure.value(group), measure.n(group)) if group else NOTHING


def _of_scores(group: score_rows.Group | None) -> Measured:
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


RUNS = Source(
    "list",
    _filters(filters.FILTERS),
    filters.runs_of,
    lambda project, given: query.totals(project, given).total,
    query.totals_of,
)
STEPS = Source(
    "steps",
    _filters(step_filters.FILTERS),
    step_filters.runs_of,
    step_figures.whole,
    step_figures.wholes_of,
)
SCORES = Source(
    "scores",
    _filters(score_rows.FILTERS),
    score_rows.runs_of,
    score_rows.whole,
    score_rows.wholes_of,
)
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


@lru_cache(maxsize=10_000)
def _chosen(measure: str, query: str) -> tuple[tuple[str, str], ...]:
    """The filters of an alert. Raises QueryError."""
    known = MEASURES[measure].source.known
    chosen = from_browser(QueryDict(query), known)
    filters.refuse_malformed(chosen, known)
    return tuple((name, value.strip()) for name, value in chosen.items())


def window_of(alert: Alert, end: datetime) -> Window:
    """That which ends then. Raises QueryError."""
    begin = end - timedelta(minutes=alert.window_minutes)
    return Window(alert.project_id, _chosen(alert.measure, alert.filters), begin, end)


def measured(asked: Sequence[tuple[Alert, datetime]], most_ms: int) -> list[Measured]:
    """Of each the window that ends then: together where that can be, else one by one; nothing of
    what takes longer, or what is filtered by what is gone.
    """
    windows: defaultdict[Source, dict[Window, None]] = defaultdict(dict)
    for alert, end in asked:
        with suppress(QueryError):
            windows[MEASURES[alert.measure].source][window_of(alert, end)] = None
    added_up: dict[tuple[Source, Window], Any] = {}
    for source, those in windows.items():
        with suppress(TooLong), patience(most_ms):
            found = source.read_together(those)
            added_up |= {(source, window): found[window] for window in found}
    return [_measured(alert, end, added_up, most_ms) for alert, end in asked]


def _measured(
    alert: Alert, end: datetime, added_up: Mapping[tuple[Source, Window], Any], most_ms: int
) -> Measured:
    measure = MEASURES[alert.measure]
    try:
        window = window_of(alert, end)
        if (measure.source, window) in added_up:
            return measure.of(added_up[measure.source, window])
        with patience(most_ms):
            return measure.of(measure.source.read(alert.project, window.given))
    except (TooLong, QueryError):
        return NOTHING


def usual_ends(now: datetime) -> list[datetime]:
    """When the windows end that say what is usual: at the same time of the days before."""
    return [now - timedelta(days=day) for day in range(1, DAYS + 1)]


def usual_range(alert: Alert, before: Iterable[Measured]) -> tuple[float, float] | None:
    """From the windows of `usual_ends`; None where too few have enough to go by."""
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
