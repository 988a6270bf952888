"""Scores as answers: a list, figures by what the scored runs have in common, and files."""

from __future__ import annotations

import csv
import io
import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any

import msgspec
from django.db import connection
from django.db.models import QuerySet

from apps.core.charts import beside, in_order, intervals, lines, unlike
from apps.core.intervals import student, wilson
from apps.core.models import Project
from apps.core.query import MOMENT, Query
from apps.core.spreadsheets import cell
from apps.trajectories import uncounted
from apps.trajectories.filters import (
    SCORE_RANGE,
    SINCE,
    Chip,
    active,
    bounds,
    in_ranges,
    range_filters,
)
from apps.trajectories.metrics.figures import short
from apps.trajectories.models import Score
from apps.trajectories.windows import Window, rows_of

LABELS = {
    "name": "Name",
    "source": "Source",
    "kind": "Kind",
    "run": "Run",
    "step": "Step",
    "score_is": "Is",
    "since": "Last",
    "from": "From",
    "to": "Until",
    "score_value": "Value",
}
FILTERS: Query = {
    **{name: None for name in LABELS if name not in SCORE_RANGE},
    **range_filters(SCORE_RANGE),
    "source": tuple(Score.Source.values),
    "kind": tuple(Score.Kind.values),
    "since": (*SINCE, "all"),
    "from": MOMENT,
    "to": MOMENT,
}
COLUMNS = {"name": "name", "source": "source", "kind": "kind", "run": "external_id", "step": "step"}
BY = {
    "agent_version": ("Version", "run.agent_version"),
    "model": ("Model", "run.model"),
    "agent": ("Agent", "run.agent_name"),
    "source": ("Source", "score.source"),
    "score_is": ("Value", "CASE WHEN score.kind <> 'text' THEN score.text END"),
    "day": ("Day", "to_char(score.created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD')"),
}
# Each is looked up (OFFSET): else PostgreSQL would read every run there is, to join some thousand.
RUN = (
    "LEFT JOIN LATERAL (SELECT agent_version, model, agent_name FROM trajectories_trajectory"
    " WHERE id = score.trajectory_id OFFSET 0) AS run ON true"
)
NEWEST, AT_ONCE = 100_000, 1_000
NAMES, VALUES = 12, 31  # that are shown: of the names, and of the values of each, the largest


def apply_filters(project: Project, given: Mapping[str, str]) -> QuerySet[Score]:
    """The scores that match, the newest first; times are those of the scores. Raises QueryError."""
    begin, end = bounds(given, FILTERS)
    rows = Score.objects.filter(project=project)
    rows = rows.filter(created_at__gte=begin) if begin else rows
    rows = rows.filter(created_at__lt=end) if end else rows
    wanted = {
        COLUMNS[name]: value for name in COLUMNS if (value := (given.get(name) or "").strip())
    }
    if said := (given.get("score_is") or "").strip():
        wanted["text__iexact"] = said
    return in_ranges(rows.filter(**wanted), given, SCORE_RANGE)


def runs_of(project: Project, given: Mapping[str, str]) -> QuerySet:
    """The ids of the scored runs, those that were scored last first. Raises QueryError."""
    rows = apply_filters(project, given).exclude(trajectory_id=None)
    return rows.order_by("-created_at", "-pk").values("trajectory_id")


def names_of(project: Project, most: int) -> list[str]:
    """The names of its scores, in their order: a jump of the index each, however many there are."""
    following = "SELECT name FROM trajectories_score WHERE project_id = %s {} ORDER BY name LIMIT 1"
    with connection.cursor() as cursor:
        cursor.execute(
            f"WITH RECURSIVE one(name) AS (({following.format('')}) UNION ALL SELECT"
            f" ({following.format('AND name > one.name')}) FROM one WHERE one.name IS NOT NULL)"
            " SELECT name FROM one WHERE name IS NOT NULL LIMIT %s",
            [project.pk, project.pk, most],
        )
        return [name for (name,) in cursor.fetchall()]


def active_filters(given: Mapping[str, str]) -> list[Chip]:
    return active(given, LABELS, SCORE_RANGE)


class ScoreOut(msgspec.Struct):
    """A score of a run, or of its step of this key. `value` is a number, true or false, or a text,
    `label` what a number means (of OpenTelemetry); `waiting`: the run has not arrived yet.
    """

    id: int
    run: str
    step: str
    name: str
    kind: str
    value: float | bool | str
    label: str
    source: str
    by: str
    comment: str
    created_at: datetime
    waiting: bool


def as_json(row: Score) -> dict[str, Any]:
    """The fields of ScoreOut."""
    value = bool(row.value) if row.kind == Score.Kind.YES_NO else row.value
    return {
        "id": row.pk,
        "run": row.external_id,
        "step": row.step,
        "name": row.name,
        "kind": row.kind,
        "value": row.text if value is None else value,
        "label": row.text if row.kind == Score.Kind.NUMBER else "",
        "source": row.source,
        "by": row.by,
        "comment": row.comment,
        "created_at": row.created_at,
        "waiting": row.trajectory_id is None,
    }


def _read(rows: QuerySet[Score]) -> Iterator[dict[str, Any]]:
    return map(as_json, rows.order_by("pk").iterator(AT_ONCE))


def jsonl(rows: QuerySet[Score]) -> Iterator[bytes]:
    return (msgspec.json.encode(row) + b"\n" for row in _read(rows))


def csv_lines(rows: QuerySet[Score]) -> Iterator[bytes]:
    """With a header, and the byte order mark that spreadsheets need."""
    yield "\ufeff".encode() + _lines([ScoreOut.__struct_fields__])
    found = _read(rows)
    while some := list(islice(found, AT_ONCE)):
        yield _lines([[cell(value) for value in row.values()] for row in some])


def _lines(rows: Any) -> bytes:
    out = io.StringIO()
    csv.writer(out).writerows(rows)
    return out.getvalue().encode()


FILES = {
    "jsonl": ("application/x-ndjson", jsonl),
    "csv": ("text/csv; charset=utf-8", csv_lines),
}


@dataclass(frozen=True, slots=True)
class Group:
    """Scores of one name and kind whose runs share the `value` of `by`; `mean` of numbers, and of
    yes and no as 1 and 0, with its 95% interval.
    """

    name: str
    kind: str
    value: str
    scores: int
    mean: float | None
    low: float | None
    high: float | None

    @property
    def kind_said(self) -> str:
        return str(Score.Kind(self.kind).label)


@dataclass(frozen=True)
class Answer:
    by: str
    groups: list[Group]
    scores: int
    more: bool
    omitted: int
    uncounted: int

    @property
    def is_complete(self) -> bool:
        return not self.more and not self.uncounted

    @property
    def note(self) -> str:
        said = [f"Of the newest {NEWEST:,} matching scores."] if self.more else []
        if self.omitted:
            said.append(f"{self.omitted:,} smaller groups are not shown.")
        if self.uncounted:
            said.append(uncounted.sentence(self.uncounted))
        return " ".join(said)


def ask(project: Project, given: Mapping[str, str]) -> Answer:
    """By default by version. Raises QueryError."""
    by, waiting = given.get("by") or "agent_version", uncounted.runs(project)
    found, read = _groups(project, given, BY[by][1])
    shown = sorted(
        _largest(found), key=lambda group: (group.name, group.kind, in_order(group.value))
    )
    omitted = len(found) - len(shown)
    return Answer(by, shown, min(read, NEWEST), read > NEWEST, omitted, waiting)


def _largest(groups: list[Group]) -> Iterator[Group]:
    names = list(dict.fromkeys((group.name, group.kind) for group in groups))[:NAMES]
    room = dict.fromkeys(names, VALUES)
    for group in groups:
        if room.get((group.name, group.kind)):
            room[group.name, group.kind] -= 1
            yield group


def whole(project: Project, given: Mapping[str, str]) -> Group | None:
    """Of all that match, of the name and kind that most have and that has a mean; None if none do.
    Raises QueryError.
    """
    measured = (group for group in _groups(project, given, "''")[0] if group.mean is not None)
    return next(measured, None)


NAMED = ("name", "source", "kind")
_OF_WINDOWS = f"""
    SELECT asked.n, largest.* FROM {{asked}} LEFT JOIN LATERAL (
        SELECT name, kind, '', count(*) AS scores, avg(value) AS mean, stddev_samp(value) FROM (
            SELECT name, kind, value FROM {Score._meta.db_table} AS score
            WHERE project_id = asked.project AND score.name = asked.name
                AND created_at >= asked.since AND created_at < asked.until
                AND (asked.source = '' OR score.source = asked.source)
                AND (asked.kind = '' OR score.kind = asked.kind)
            ORDER BY created_at DESC, id DESC LIMIT {NEWEST}
        ) AS score
        GROUP BY name, kind HAVING avg(value) IS NOT NULL ORDER BY scores DESC, name, kind LIMIT 1
    ) AS largest ON true
"""


def wholes_of(windows: Collection[Window]) -> dict[Window, Group | None]:
    """The `whole` of many at once: of those of one name, with no other filters than NAMED."""
    known = [
        window
        for window in windows
        if "name" in dict(window.filters) and all(name in NAMED for name, _ in window.filters)
    ]
    asked, values = rows_of(
        (
            (
                window.project,
                window.begin,
                window.end,
                *(dict.fromkeys(NAMED, "") | dict(window.filters)).values(),
            )
            for window in known
        ),
        project="bigint",
        since="timestamptz",
        until="timestamptz",
        **dict.fromkeys(NAMED, "text"),
    )
    with connection.cursor() as cursor:
        cursor.execute(_OF_WINDOWS.format(asked=asked), values)
        return {
            known[n - 1]: None if columns[0] is None else _group(tuple(columns))
            for n, *columns in cursor.fetchall()
        }


def _groups(project: Project, given: Mapping[str, str], value: str) -> tuple[list[Group], int]:
    """By name, kind and an expression of `score` and its `run`, the largest first; and how many
    scores match: of more than NEWEST, one more.
    """
    rows = apply_filters(project, given).order_by("-created_at", "-pk")
    sql, params = rows.values_list(
        "trajectory_id", "name", "kind", "value", "text", "source", "created_at"
    )[: NEWEST + 1].query.sql_with_params()
    with connection.cursor() as cursor:
        cursor.execute(
            f"WITH score AS MATERIALIZED ({sql}) SELECT score.name, score.kind,"
            f" coalesce({value}, ''), count(*), avg(score.value), stddev_samp(score.value),"
            f" (SELECT count(*) FROM score) FROM (SELECT * FROM score LIMIT {NEWEST}) AS score"
            f" {RUN if 'run.' in value else ''} GROUP BY 1, 2, 3 ORDER BY 4 DESC, 1, 2, 3",
            params,
        )
        rows = cursor.fetchall()
    return [_group(row[:-1]) for row in rows], rows[0][-1] if rows else 0


def _group(row: tuple[Any, ...]) -> Group:
    name, kind, value, scores, mean, deviation = row
    low = high = None
    if kind == Score.Kind.YES_NO:
        low, high = wilson(round(mean * scores), scores)
    elif kind == Score.Kind.NUMBER and scores > 1:
        half = student(scores - 1) * deviation / math.sqrt(scores)
        low, high = mean - half, mean + half
    return Group(name, kind, value, scores, mean, low, high)


def figures(answer: Answer) -> list[tuple[str, dict]]:
    """A chart for each name and kind, with an id: each score has a scale of its own. Only what was
    measured.
    """
    of_name: defaultdict[tuple[str, str], list[Group]] = defaultdict(list)
    for group in answer.groups:
        if group.mean is not None:
            of_name[group.name, group.kind].append(group)
    draw = _by_day if answer.by == "day" else _by_value
    kinds = Counter(name for name, _ in of_name)
    titles = unlike(
        f"{short(name)} ({Score.Kind(kind).label.lower()})" if kinds[name] > 1 else short(name)
        for name, kind in of_name
    )
    return [
        (f"scores-figure-{at}", draw(title, groups))
        for at, (title, groups) in enumerate(zip(titles, of_name.values(), strict=True))
    ]


def _by_value(title: str, groups: list[Group]) -> dict:
    names = unlike(short(group.value or "(none)") for group in groups)
    lows, highs = ([getattr(one, side) for one in groups] for side in ("low", "high"))
    means = [group.mean or 0.0 for group in groups]
    drawn = intervals(
        names,
        means,
        [mean if low is None else low for low, mean in zip(lows, means, strict=True)],
        [mean if high is None else high for high, mean in zip(highs, means, strict=True)],
        title,
    )
    return _with_hover(beside(drawn, names), groups, "%{y}: %{x:.4~g}")


def _by_day(title: str, groups: list[Group]) -> dict:
    days, means = zip(*((group.value, group.mean) for group in groups), strict=True)
    drawn = lines({title: (days, means)}, title, x="")
    drawn["data"][0]["error_y"] = {
        "type": "data",
        "symmetric": False,
        "array": [0 if one.high is None else one.high - one.mean for one in groups],
        "arrayminus": [0 if one.low is None else one.mean - one.low for one in groups],
        "thickness": 1.2,
    }
    return _with_hover(drawn, groups, "%{x}: %{y:.4~g}")


def _with_hover(drawn: dict, groups: list[Group], said: str) -> dict:
    drawn["data"][0] |= {
        "customdata": [f"n = {group.scores:,}" for group in groups],
        "hovertemplate": f"{said}<br>%{{customdata}}<extra></extra>",
    }
    return drawn
