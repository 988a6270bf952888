"""Steps that are alike, added up by hour and by day (UTC) of their run's start.

Who changes steps notes their hours in the same transaction (`note_change`), and `add_up` counts
an hour, and then its day, anew when it is over and quiet. An hour or day that is not noted is right
at any moment, whatever was deleted, came late or was assembled again; of a noted one, readers read
the steps themselves. A day of few steps keeps no hours, which would be as large as the steps.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

import numpy as np
from django.db import connection, transaction
from django.db.models import Count, Func, Max, Min, Q, QuerySet, Sum, UUIDField, Value
from django.utils import timezone

from apps.core import locks
from apps.core.locks import ProjectLock
from apps.trajectories.ids import floor_of, time_of
from apps.trajectories.metrics import sketch
from apps.trajectories.models import Step, StepChange, StepTotal, Trajectory

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
LENGTH = {"hour": HOUR, "day": DAY}
OVER_S = (1, 2, 5, 10, 30, 60)  # questions with these limits can be answered
ALIKE = ("kind", "name", "status", "model", "agent_name", "agent_version")
SETTLED, QUIET, LATE = timedelta(minutes=1), timedelta(minutes=2), timedelta(minutes=15)
MOST_TOTALS = 5_000  # of an hour or day: it would take as long to read as its steps
SMALL_DAY = 10_000  # steps
MOST_GAPS = 200  # times that are read from their steps
_LIMITS = ",".join(str(1000 * seconds) for seconds in OVER_S)
OVER = f"coalesce(width_bucket(duration_ms, '{{{_LIMITS}}}'::float8[]), -1)"
BUCKET = (
    f"(CASE WHEN duration_ms <= {sketch.LEAST} THEN {sketch.ZERO} ELSE"
    f" ceil(ln(least(duration_ms, {sketch.LARGEST})) / {sketch.LOG_GAMMA!r}) END)::int2"
)
PAIRS = (
    "coalesce(string_agg(int2send(bucket) || int4send(n::int4), ''::bytea)"
    " FILTER (WHERE bucket IS NOT NULL), ''::bytea)"
)
_PAIR = np.dtype([("bucket", ">i2"), ("n", ">i4")])
_COUNT_STEPS = f"""
    INSERT INTO {StepTotal._meta.db_table} (project_id, unit, at, {", ".join(ALIKE)}, over, steps,
        tokens, with_tokens, cost_usd, costed, durations)
    SELECT %s, %s, %s, {", ".join(ALIKE)}, over, sum(n), sum(tokens), sum(with_tokens), sum(cost),
        sum(costed), {PAIRS}
    FROM (
        SELECT {", ".join(ALIKE)}, {OVER} AS over, {BUCKET} AS bucket, count(*) AS n,
            coalesce(sum(total_tokens), 0) AS tokens, count(total_tokens) AS with_tokens,
            sum(cost_usd) AS cost, count(cost_usd) AS costed
        FROM {Step._meta.db_table}
        WHERE project_id = %s AND trajectory_id >= %s AND trajectory_id < %s
        GROUP BY {", ".join(ALIKE)}, over, bucket
    ) AS classed
    GROUP BY {", ".join(ALIKE)}, over
"""
_STARTED = "(('x' || substr(replace(id::text, '-', ''), 1, 12))::bit(48)::bigint / 1000)"
_NOTE_ALL = f"""
    INSERT INTO {StepChange._meta.db_table} (project_id, unit, at, changed_at, left_as)
    SELECT %s, 'hour', at, now(), ''
    FROM (
        SELECT to_timestamp({_STARTED} / 3600 * 3600) AS at
        FROM {Trajectory._meta.db_table} WHERE project_id = %s
        UNION SELECT at FROM {StepTotal._meta.db_table} WHERE project_id = %s AND unit = 'hour'
        UNION SELECT at FROM {StepChange._meta.db_table} WHERE project_id = %s AND unit = 'hour'
    ) AS hours
"""
_FORGET_BETWEEN = f"""
    DELETE FROM {StepChange._meta.db_table} AS change
    USING (
        SELECT unit, at, min(id) AS first, max(id) AS last
        FROM {StepChange._meta.db_table} WHERE project_id = %s GROUP BY unit, at
    ) AS kept
    WHERE change.project_id = %s AND (change.unit, change.at) = (kept.unit, kept.at)
        AND change.id > kept.first AND change.id < kept.last
"""

OF_TIMES = f"""
    {Step._meta.db_table} AS (
        SELECT of_time.* FROM unnest(%s::uuid[], %s::uuid[]) AS time(since, until)
        CROSS JOIN LATERAL (
            SELECT * FROM {Step._meta.db_table}
            WHERE project_id = %s AND trajectory_id >= since AND trajectory_id < until OFFSET 0
        ) AS of_time
    ),
"""


def hour_of(at: datetime) -> datetime:
    return at.astimezone(UTC).replace(minute=0, second=0, microsecond=0)


def day_of(at: datetime) -> datetime:
    return hour_of(at).replace(hour=0)


def after(at: datetime, unit: str) -> datetime:
    """The first hour or day that begins then or later."""
    start = hour_of(at) if unit == "hour" else day_of(at)
    return start if start == at else start + LENGTH[unit]


# Writing


def note_change(project: int, runs: Iterable[UUID]) -> None:
    """The steps of these runs change in this transaction."""
    hours = sorted({hour_of(time_of(pk)) for pk in runs})
    StepChange.objects.bulk_create(
        StepChange(project_id=project, unit="hour", at=at) for at in hours
    )


def note_all(project: int) -> None:
    """All hours of a project are counted anew: after steps were changed by hand."""
    with connection.cursor() as cursor:
        cursor.execute(_NOTE_ALL, [project, project, project, project])


def forget_month(begin: datetime, end: datetime) -> None:
    """Its steps are gone, of all projects."""
    for model in (StepTotal, StepChange):
        model.objects.filter(at__gte=begin, at__lt=end).delete()


def add_up(until: float, now: datetime | None = None) -> int:
    """Counts hours, then days, until a moment of `time.monotonic`. Returns how many."""
    done = 0
    for unit in LENGTH:
        for project, at in _due(unit, now or timezone.now()):
            if time.monotonic() >= until:
                return done
            done += _add_up(project, unit, at)
    notes = StepChange.objects.order_by().values("project", "unit", "at").annotate(n=Count("pk"))
    for project in {note["project"] for note in notes.filter(n__gt=2)}:
        _forget_between(project)
    return done


def _due(unit: str, now: datetime) -> list[tuple[int, datetime]]:
    """What is over, and has not changed for a while or waits for long."""
    changes = StepChange.objects.filter(unit=unit, at__lt=now - LENGTH[unit] - SETTLED, left_as="")
    waiting = changes.order_by("project", "at").values("project", "at")
    due = waiting.annotate(first=Min("changed_at"), last=Max("changed_at")).filter(
        Q(last__lt=now - QUIET) | Q(first__lt=now - LATE)
    )
    return [(row["project"], row["at"]) for row in due]


@transaction.atomic
def _add_up(project: int, unit: str, at: datetime) -> bool:
    if not locks.try_acquire_in(project, ProjectLock.STEP_TOTALS):
        return False
    changes = StepChange.objects.filter(project=project)
    of_day = changes.filter(unit="hour", at__gte=at, at__lt=at + DAY)
    if unit == "day" and of_day.filter(left_as="").exists():
        return False
    # Read before the steps: what is noted later stays noted.
    noted = list(changes.filter(unit=unit, at=at).values_list("pk", flat=True))
    totals = StepTotal.objects.filter(project=project, unit=unit, at=at)
    totals.delete()
    written = _count_steps(project, unit, at)
    changes.filter(pk__in=noted).delete()
    if written > MOST_TOTALS:
        totals.delete()
        _leave(project, unit, [at], "varied")
    if unit == "hour":
        StepChange.objects.create(project_id=project, unit="day", at=day_of(at))
    elif written <= MOST_TOTALS:
        _keep_hours(project, at, totals.aggregate(n=Sum("steps"))["n"] or 0)
    return True


def _keep_hours(project: int, day: datetime, steps: int) -> None:
    """Of a day of few steps none, of one that was so, all again."""
    changes = StepChange.objects.filter(
        project=project, unit="hour", at__gte=day, at__lt=day + DAY
    ).exclude(left_as="")
    if steps > SMALL_DAY:
        changes.filter(left_as="small").update(left_as="", changed_at=timezone.now())
        return
    changes.delete()
    StepTotal.objects.filter(project=project, unit="hour", at__gte=day, at__lt=day + DAY).delete()
    _leave(project, "hour", [day + HOUR * n for n in range(24 if steps else 0)], "small")


def _leave(project: int, unit: str, times: Iterable[datetime], left_as: str) -> None:
    StepChange.objects.bulk_create(
        StepChange(project_id=project, unit=unit, at=at, left_as=left_as) for at in times
    )


def _count_steps(project: int, unit: str, at: datetime) -> int:
    begin, end = floor_of(at), floor_of(at + LENGTH[unit])
    with connection.cursor() as cursor:
        cursor.execute(_COUNT_STEPS, [project, unit, at, project, begin, end])
        return cursor.rowcount


@transaction.atomic
def _forget_between(project: int) -> None:
    """Of many notes of an hour, the first and the last are enough. Under the lock: a count that has
    not seen what one of them says must not take away the last.
    """
    if locks.try_acquire_in(project, ProjectLock.STEP_TOTALS):
        with connection.cursor() as cursor:
            cursor.execute(_FORGET_BETWEEN, [project, project])


# Reading


def counts_of(pairs: bytes) -> sketch.Sketch:
    """Of pairs one behind the other, in which a bucket may be several times."""
    given = np.frombuffer(pairs, _PAIR)
    counts = np.bincount(given["bucket"].astype(int) - sketch.ZERO, weights=given["n"])
    return {int(place) + sketch.ZERO: int(counts[place]) for place in np.flatnonzero(counts)}


class Span(NamedTuple):
    """The steps of runs that started then or later, before `end`."""

    begin: datetime
    end: datetime


@dataclass(frozen=True)
class Cover:
    """Of a time: the totals that are right, and what they leave out."""

    totals: QuerySet[StepTotal]
    gaps: list[Span]


def cover(project: int, begin: datetime | None, end: datetime | None) -> Cover | None:
    """None where the steps of too many times would have to be read. Changes are read here, totals
    and steps later: each hour is as it was at one moment since.
    """
    changes = StepChange.objects.filter(project=project)
    totals = StepTotal.objects.filter(project=project)
    begin = begin or _first(changes, totals)
    if begin is None:
        return Cover(totals.none(), [])
    if end is None:
        last = changes.filter(unit="hour").aggregate(last=Max("at"))["last"]
        end = max(hour_of(timezone.now()), last or begin) + HOUR
    noted = changes.filter(at__gte=day_of(begin), at__lt=end)
    noted = set(noted.values_list("unit", "at", "left_as").distinct())
    left_out = {at for unit, at, _ in noted if unit == "hour"}
    days = {day_of(at) for unit, at, left_as in noted if unit == "day" or not left_as}
    first, last = after(begin, "hour"), hour_of(end)
    if first >= last:
        return Cover(totals.none(), [Span(begin, end)] if begin < end else [])
    whole_days = after(first, "day"), day_of(last)
    hours = set(_hours(first, last, whole_days, days))
    right = totals.filter(
        Q(unit="day", at__gte=whole_days[0], at__lt=whole_days[1]) & ~Q(at__in=days)
        | Q(unit="hour", at__in=hours - left_out)
    )
    gaps = [Span(begin, first), *(Span(at, at + HOUR) for at in hours & left_out), Span(last, end)]
    joined = _joined(gap for gap in gaps if gap.begin < gap.end)
    return Cover(right, joined) if len(joined) <= MOST_GAPS else None


def _first(changes: QuerySet[StepChange], totals: QuerySet[StepTotal]) -> datetime | None:
    firsts = [
        rows.filter(unit="hour").order_by("at").values_list("at", flat=True).first()
        for rows in (changes, totals)
    ]
    return min((at for at in firsts if at is not None), default=None)


def _hours(
    first: datetime, last: datetime, whole_days: tuple[datetime, datetime], days: Collection
) -> Iterator[datetime]:
    """Those of which no day has the total."""
    at = first
    while at < last:
        day = day_of(at)
        if whole_days[0] <= day < whole_days[1] and day not in days:
            at = day + DAY
        else:
            yield at
            at += HOUR


def _joined(spans: Iterable[Span]) -> list[Span]:
    joined: list[Span] = []
    for span in sorted(spans):
        if joined and span.begin <= joined[-1].end:
            joined[-1] = Span(joined[-1].begin, max(span.end, joined[-1].end))
        else:
            joined.append(span)
    return joined


class Ids(NamedTuple):
    """The steps of runs of these ids, as numbers, without `end`: times closer than a clock says."""

    begin: int
    end: int

    @classmethod
    def of(cls, span: Span) -> Ids:
        return cls(*(floor_of(at).int for at in span))


def within(spans: Iterable[Span | Ids], as_unknown: bool = False) -> Q:
    """Steps of these times. `as_unknown`: PostgreSQL plans for times that it does not know; of
    short ones it expects no steps, and would not look for them by another index, too.
    """
    said = Q(trajectory_id__in=[])
    for span in spans:
        ids = span if isinstance(span, Ids) else Ids.of(span)
        first, last = (Value(UUID(int=number)) for number in ids)
        if as_unknown:
            first, last = (
                Func(at, template="(SELECT %(expressions)s)", output_field=UUIDField())
                for at in (first, last)
            )
        said |= Q(trajectory_id__gte=first, trajectory_id__lt=last)
    return said


def of_times(project: int, times: Collection[Ids]) -> tuple[str, list[Any]]:
    """How a WITH begins in which `trajectories_step` is the steps of these times, and its values.
    To plan for many times in one condition takes longer than to read their steps.
    """
    bounds = [[UUID(int=ids[side]) for ids in times] for side in (0, 1)]
    return OF_TIMES, [*bounds, project]


def by_time(covered: Cover) -> dict[Span, int]:
    """How many steps there are, by hour or day; without the gaps."""
    rows = covered.totals.order_by("at").values_list("unit", "at").annotate(n=Sum("steps"))
    return {Span(at, at + LENGTH[unit]): n for unit, at, n in rows}
