"""Figures of trajectories over time and by group, for the filters of their list.

Roll-ups answer where they know all filters: any number of trajectories, exact but for percentiles
(`sketch.ACCURACY`). The rows of an hour that begins before or ends after the time range are read.
Otherwise the newest NEWEST that match are read, and the answer says so.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache, reduce
from operator import or_
from typing import Any

import msgspec
from django.db import connection
from django.db.models import Q
from django.utils import timezone

from apps.core.models import Project
from apps.trajectories import uncounted
from apps.trajectories.filters import active, apply_filters, bounds
from apps.trajectories.ids import floor_of, time_of
from apps.trajectories.metrics import sketch
from apps.trajectories.metrics.cells import (
    COUNTED,
    MEASURES,
    SKETCHED,
    TOGETHER,
    Cell,
    Measure,
    Numbers,
)
from apps.trajectories.models import MetricCell, Trajectory
from apps.trajectories.rollups import DIMENSIONS, rollup_unit
from apps.trajectories.windows import Window, rows_of
from workers.lib.token_usage import TOKENS

NEWEST = 20_000
GROUPS = 8  # the largest are shown, the rest is one of its own
OTHER = "all others"
HOUR = timedelta(hours=1)
FOREVER = datetime(2101, 1, 1, tzinfo=UTC)  # no run starts as late
UNITS = {"hour": HOUR, "day": timedelta(days=1), "week": timedelta(days=7)}
PART = 5_000  # of an hour that is only partly in the time range; with more, the hour counts whole
MOST_POINTS = 800
BY = {
    "outcome": "Outcome",
    "agent": "Agent",
    "agent_version": "Version",
    "model": "Model",
    "workload": "Workload",
    "tool": "Tool",
}
FILTER_OF = {"version": "agent_version"}  # where the dimension is called otherwise
COLUMNS = (
    "id",
    "agent_name",
    "agent_version",
    "model",
    "workload",
    "tool_names",
    "outcome_status",
    *TOKENS,
    "cost_usd",
    "cost_basis",
    "latency_ms",
)


@dataclass(frozen=True)
class Point:
    """`n` runs are behind the value; the interval is Wilson's, 95%, where the measure is a
    proportion.
    """

    at: datetime | None
    value: float | None
    n: int
    interval: tuple[float, float] | None = None


@dataclass(frozen=True)
class Series:
    """`measure` is a key of MEASURES; `whole` is that of all times together."""

    name: str
    measure: str
    points: list[Point]
    whole: Point
    runs: int


@dataclass(frozen=True)
class Answer:
    """`read` is the number of trajectories that were read, where roll-ups could not answer; `more`
    that there are more; `uncounted`, that so many runs may be missing.
    """

    measure: str
    unit: str
    series: list[Series]
    total: Cell
    read: int | None = None
    more: bool = False
    others: int = 0  # groups that are one series
    rounded: bool = False  # the hours at the ends of the time range are counted whole
    uncounted: int = 0

    @property
    def is_complete(self) -> bool:
        return not self.more and not self.uncounted

    @property
    def note(self) -> str:
        """What a reader has to know beside the figures; empty if nothing."""
        said = []
        if self.more:
            said.append(f"Of the newest {self.read:,} matching runs.")
        if self.total.unknown > 0 and "failure_rate" in self.measure and self.total.runs:
            share = self.total.unknown / self.total.runs
            said.append(f"{share:.1%} of the runs have no known outcome and are left out.")
        if self.total.unpriced > 0 and "cost" in self.measure:
            said.append(
                f"The cost of {self.total.unpriced:,} runs is unknown or not complete: the real"
                " cost is higher."
            )
        if self.rounded:
            said.append("The first and last hour are counted in full.")
        if self.others:
            said.append(f"“{OTHER}” are {self.others:,} smaller groups.")
        if self.uncounted:
            said.append(uncounted.sentence(self.uncounted))
        return " ".join(said)


@dataclass
class Read:
    """Cells by time and group."""

    cells: defaultdict[tuple[datetime, str], Cell] = field(
        default_factory=lambda: defaultdict(Cell)
    )
    rows: int | None = None
    more: bool = False
    rounded: bool = False


def ask(
    project: Project, given: Mapping[str, str], measure: str, by: str = "", bucket: str = ""
) -> Answer:
    """`measure` of MEASURES or TOGETHER, `by` of BY or “”, `bucket` of UNITS or “” for one that
    fits. Raises KeyError.
    """
    keys = measures_of(measure, by)
    begin, end = _span(project, given)
    unit, waiting = (
        unit_of(begin, end and min(end, timezone.now()), bucket),
        uncounted.runs(project),
    )
    read = _read(project, given, by, "hour" if unit == "hour" else "day", begin, end)
    cells = _in_units(read.cells, unit)
    groups, others = _groups(cells)
    times = _times(cells, unit)
    total = _merged(cells.values())
    series = []
    for name, members in groups:
        own = _of_group(cells, members)
        whole = _merged(own.values())
        for key in keys:
            points = [_point(MEASURES[key], at, own.get(at)) for at in times]
            title = name if by else key[-3:] if len(keys) > 1 else MEASURES[key].title
            series.append(
                Series(title, key, points, _point(MEASURES[key], None, whole), whole.runs)
            )
    return Answer(measure, unit, series, total, read.rows, read.more, others, read.rounded, waiting)


def totals(project: Project, given: Mapping[str, str]) -> Answer:
    """All that match, added up, without groups or times."""
    waiting = uncounted.runs(project)
    begin, _ = _span(project, given)
    read = _read(project, given, "", "day", begin, bounds(given)[1] or FOREVER)
    return Answer(
        "runs",
        "day",
        [],
        _merged(read.cells.values()),
        read.rows,
        read.more,
        rounded=read.rounded,
        uncounted=waiting,
    )


def totals_of(windows: Collection[Window]) -> dict[Window, Cell]:
    """The `totals` of many at once: of those whose filters the roll-ups know."""
    known = {
        window: dimension
        for window in windows
        if window.begin < window.end and (dimension := _filtered(window.filters))
    }
    found = {window: Cell() for window in known}
    whole = {window: _whole_hours(window.begin, window.end) for window in known}
    edges = [
        (window, *edge)
        for window, (first, last) in whole.items()
        for edge in ((window.begin, min(first, window.end)), (max(first, last), window.end))
        if edge[0] < edge[1]
    ]
    for window in _add_edges(found, edges, known):
        found[window] = Cell()
        whole[window] = _hour(window.begin), window.end
    _add_cells(found, whole, known)
    return found


@lru_cache(maxsize=10_000)
def _filtered(filters: tuple[tuple[str, str], ...]) -> tuple[str, str] | None:
    """The dimension of the roll-ups and its value, “” of all; None if they cannot answer."""
    known = _dimension(dict(filters), "")
    return None if known is None else (known[0], known[1] or "")


Known = Mapping[Window, tuple[str, str]]
_SPENT = ("outcome_status", *TOKENS, "cost_usd", "cost_basis", "latency_ms")
_HAS_VALUE = " ".join(
    f"WHEN '{dimension}' THEN {column} = asked.value" for dimension, column in DIMENSIONS.items()
)
_OF_EDGES = f"""
    SELECT asked.n, run.* FROM {{asked}} CROSS JOIN LATERAL (
        SELECT {", ".join(_SPENT)} FROM {Trajectory._meta.db_table}
        WHERE project_id = asked.project AND id >= asked.since AND id < asked.until
            AND CASE asked.dimension WHEN '' THEN true
                WHEN 'tool' THEN asked.value = ANY(tool_names) {_HAS_VALUE} END
        LIMIT {PART + 1}
    ) AS run
"""
# Each is looked up (OFFSET): else PostgreSQL might read the cells of all projects.
_OF_CELLS = f"""
    SELECT asked.n, cell.* FROM {{asked}} CROSS JOIN LATERAL (
        SELECT {", ".join((*COUNTED, *SKETCHED))} FROM {MetricCell._meta.db_table}
        WHERE project_id = asked.project AND unit = asked.unit AND dimension = asked.dimension
            AND value = asked.value AND at >= asked.since AND at < asked.until AND runs > 0 OFFSET 0
    ) AS cell
"""


def _add_edges(
    found: Mapping[Window, Cell], edges: list[tuple[Window, datetime, datetime]], known: Known
) -> set[Window]:
    """Adds the runs of parts of hours. Returns the windows where they are too many to be read."""
    asked, values = rows_of(
        (
            (window.project, floor_of(begin), floor_of(end), *known[window])
            for window, begin, end in edges
        ),
        project="bigint",
        since="uuid",
        until="uuid",
        dimension="text",
        value="text",
    )
    read = [0] * len(edges)
    with connection.cursor() as cursor:
        cursor.execute(_OF_EDGES.format(asked=asked), values)
        for n, *columns in cursor.fetchall():
            read[n - 1] += 1
            found[edges[n - 1][0]].add(Numbers.of(dict(zip(_SPENT, columns, strict=True))))
    return {edge[0] for edge, n in zip(edges, read, strict=True) if n > PART}


def _add_cells(
    found: Mapping[Window, Cell], whole: Mapping[Window, tuple[datetime, datetime]], known: Known
) -> None:
    spans = [
        (window, *span)
        for window, (first, last) in whole.items()
        for span in _spans_between(first, last)
        if span[1] < span[2]
    ]
    asked, values = rows_of(
        ((window.project, *span, *known[window]) for window, *span in spans),
        project="bigint",
        unit="text",
        since="timestamptz",
        until="timestamptz",
        dimension="text",
        value="text",
    )
    counted = len(COUNTED)
    with connection.cursor() as cursor:
        cursor.execute(_OF_CELLS.format(asked=asked), values)
        for n, *columns in cursor.fetchall():
            sketches = map(msgspec.json.decode, columns[counted:])
            found[spans[n - 1][0]].merge(Cell.from_list([*columns[:counted], *sketches]))


def measures_of(measure: str, by: str) -> tuple[str, ...]:
    """The keys of MEASURES that are drawn. Raises KeyError."""
    if measure not in TOGETHER:
        return (MEASURES[measure] and measure,)
    keys = TOGETHER[measure][1]
    return (keys[1],) if by else keys


def unit_of(begin: datetime | None, end: datetime | None, bucket: str = "") -> str:
    """The bucket that is asked for, or a larger one where it would give more than MOST_POINTS."""
    unit = bucket if bucket in UNITS else rollup_unit(begin, end)
    names = list(UNITS)
    while begin and end and (end - begin) / UNITS[unit] > MOST_POINTS and unit != names[-1]:
        unit = names[names.index(unit) + 1]
    return unit


# Reading


def _span(project: Project, given: Mapping[str, str]) -> tuple[datetime | None, datetime | None]:
    """From when to when there is something to show; what lies in the future of an open end is left
    out.
    """
    begin, end = bounds(given)
    end = end or timezone.now() + timedelta(days=1)
    if begin is None:
        days = MetricCell.objects.filter(project=project, unit="day", dimension="", runs__gt=0)
        begin = days.order_by("at").values_list("at", flat=True).first()
    return begin, end


def _read(
    project: Project,
    given: Mapping[str, str],
    by: str,
    unit: str,
    begin: datetime | None,
    end: datetime | None,
) -> Read:
    if begin is None or end is None or begin >= end:
        return Read()
    dimension = _dimension(given, by)
    if dimension is None:
        return _from_rows(project, given, by, unit, end)
    name, value = dimension
    found = Read()
    first, last = _whole_hours(begin, end)
    edges = [(begin, min(first, end)), (max(first, last), end)]
    if not all(_add_rows(found, project, given, by, unit, *edge) for edge in edges):
        found, (first, last) = Read(rounded=True), (_hour(begin), end)
    rows = MetricCell.objects.filter(
        _times_between(first, last, unit), project=project, dimension=name, runs__gt=0
    )
    if value is not None:
        rows = rows.filter(value=value)
    for at, group, *columns in rows.order_by().values_list("at", "value", *COUNTED, *SKETCHED):
        counted = len(COUNTED)
        cell = Cell(*columns[:counted], *(sketch.from_json(item) for item in columns[counted:]))
        found.cells[at if unit == "hour" else midnight(at), group if by else ""].merge(cell)
    return found


def _add_rows(
    found: Read,
    project: Project,
    given: Mapping[str, str],
    by: str,
    unit: str,
    begin: datetime,
    end: datetime,
) -> bool:
    """Adds the runs of a part of an hour. False if they are too many to be read."""
    if begin >= end:
        return True
    given = {**dict(given.items()), "since": "", "from": begin.isoformat(), "to": end.isoformat()}
    rows = apply_filters(project.trajectories.all(), given).order_by("-pk")
    read = list(rows.values(*COLUMNS)[: PART + 1])
    for values in read:
        _count(found, values, by, unit)
    return len(read) <= PART


def _dimension(given: Mapping[str, str], by: str) -> tuple[str, str | None] | None:
    """The dimension of the roll-ups, and its value where it is filtered by; None if they cannot
    answer.
    """
    wanted: dict[str, str | None] = {by: None} if by else {}
    for chip in active(given):
        if chip.name in ("since", "from", "to"):
            continue
        if chip.name not in BY:
            return None
        wanted[chip.name] = given[chip.name].strip()
    if len(wanted) > 1:
        return None
    names = {filter_name: dimension for dimension, filter_name in FILTER_OF.items()}
    return next(((names.get(name, name), value) for name, value in wanted.items()), ("", None))


def _times_between(begin: datetime, end: datetime, unit: str) -> Q:
    """The cells of these times, which begin with an hour: hours, or whole days and the hours before
    and after them.
    """
    spans = [("hour", begin, end)] if unit == "hour" else _spans_between(begin, end)
    return reduce(or_, (Q(unit=unit, at__gte=since, at__lt=until) for unit, since, until in spans))


def _spans_between(begin: datetime, end: datetime) -> list[tuple[str, datetime, datetime]]:
    """Of which days are added up, and of which hours before and after them; some may be empty."""
    first, last = midnight(begin + UNITS["day"] - HOUR), midnight(end)
    if first >= last:
        return [("hour", begin, end)]
    return [("day", first, last), ("hour", begin, first), ("hour", last, end)]


def _whole_hours(begin: datetime, end: datetime) -> tuple[datetime, datetime]:
    """The first that begins then or later, and that in which the end is."""
    return _hour(begin + HOUR - timedelta(microseconds=1)), _hour(end)


def _from_rows(
    project: Project, given: Mapping[str, str], by: str, unit: str, end: datetime
) -> Read:
    matching = apply_filters(project.trajectories.filter(pk__lt=floor_of(end)), given).order_by(
        "-pk"
    )
    found, seen = Read(), 0
    for values in matching.values(*COLUMNS)[: NEWEST + 1]:
        seen += 1
        if seen > NEWEST:
            break
        _count(found, values, by, unit)
    found.rows, found.more = min(seen, NEWEST), seen > NEWEST
    return found


def _count(found: Read, row: Mapping[str, Any], by: str, unit: str) -> None:
    at, numbers = _hour(time_of(row["id"])), Numbers.of(row)
    for group in _groups_of(row, by):
        found.cells[at if unit == "hour" else midnight(at), group].add(numbers)


def _groups_of(row: Mapping[str, Any], by: str) -> Iterable[str]:
    if by == "tool":
        return dict.fromkeys(row["tool_names"])
    names = {FILTER_OF.get(name, name): column for name, column in DIMENSIONS.items()}
    return (row[names[by]],) if by else ("",)


def _hour(at: datetime) -> datetime:
    return at.astimezone(UTC).replace(minute=0, second=0, microsecond=0)


def midnight(at: datetime) -> datetime:
    return at.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)


# Putting together


def _in_units(
    cells: Mapping[tuple[datetime, str], Cell], unit: str
) -> dict[tuple[datetime, str], Cell]:
    if unit != "week":
        return dict(cells)
    found: dict[tuple[datetime, str], Cell] = defaultdict(Cell)
    for (at, group), cell in cells.items():
        found[at - timedelta(days=at.weekday()), group].merge(cell)
    return found


def _groups(cells: Mapping[tuple[datetime, str], Cell]) -> tuple[list[tuple[str, set[str]]], int]:
    """[(name, values)], the largest first, and how many are in the last, that of the others."""
    runs: dict[str, int] = defaultdict(int)
    for (_, group), cell in cells.items():
        runs[group] += cell.runs
    names = sorted(runs, key=lambda name: (-runs[name], name))
    shown = names if len(names) <= GROUPS + 1 else names[:GROUPS]
    found = [(name or "(none)", {name}) for name in shown]
    if rest := set(names) - set(shown):
        found.append((OTHER, rest))
    return found, len(rest)


def _of_group(
    cells: Mapping[tuple[datetime, str], Cell], members: set[str]
) -> dict[datetime, Cell]:
    found: dict[datetime, Cell] = {}
    for (at, group), cell in cells.items():
        if group in members:
            found[at] = _merged((found[at], cell)) if at in found else cell
    return found


def _merged(cells: Iterable[Cell]) -> Cell:
    whole = Cell()
    for cell in cells:
        whole.merge(cell)
    return whole


def _times(cells: Mapping[tuple[datetime, str], Cell], unit: str) -> list[datetime]:
    """From the first to the last, those without runs included where they are not too many."""
    seen = sorted({at for at, _ in cells})
    if not seen or (seen[-1] - seen[0]) / UNITS[unit] > MOST_POINTS:
        return seen
    steps = round((seen[-1] - seen[0]) / UNITS[unit])
    return [seen[0] + step * UNITS[unit] for step in range(steps + 1)]


def _point(measure: Measure, at: datetime | None, cell: Cell | None) -> Point:
    if cell is None or cell.runs <= 0:
        return Point(at, 0 if measure.adds_up else None, 0)
    value, n = measure.value(cell), measure.n(cell)
    return Point(
        at, value, n, measure.interval(cell) if measure.interval and value is not None else None
    )
