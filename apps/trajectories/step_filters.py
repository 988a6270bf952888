"""The filters of steps, the same in the URL of the page, of the API and of the exports."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any
from uuid import UUID

from django.core.exceptions import EmptyResultSet
from django.db import connection, transaction
from django.db.models import Exists, OuterRef, Q, QuerySet, Sum

from apps.core.models import Project
from apps.core.query import MOMENT, Query
from apps.core.sorting import choices
from apps.trajectories import step_totals
from apps.trajectories.filters import (
    LARGEST,
    SCORE_RANGE,
    SINCE,
    Chip,
    active,
    bounds,
    few_of,
    ids_within,
    in_ranges,
    range_filters,
    scores_with,
    words_query,
)
from apps.trajectories.ids import OLDEST, floor_of, month_of, next_month, time_of
from apps.trajectories.models import (
    SLOW_MS,
    STEP_TERMS,
    STEP_WORDS,
    Score,
    Step,
    Trajectory,
    TrajectoryKey,
)
from apps.trajectories.ordering import First
from apps.trajectories.step_totals import OVER_S
from apps.trajectories.steps import KINDS, STATUSES
from workers.lib.storable import storable

LABELS = {
    "kind": "Kind",
    "name": "Name",
    "status": "Status",
    "failed_or_over": "Failed or over",
    "arguments": "Arguments",
    "error": "Error",
    "model": "Model",
    "agent": "Agent",
    "agent_version": "Version",
    "run": "Run",
    "since": "Last",
    "from": "From",
    "to": "Until",
    "duration": "Duration in s",
    "tokens": "Tokens",
    "cost": "Cost in $",
    "score": "Score",
    "score_is": "Score is",
    "score_value": "Score value",
}
RANGES = {
    "duration": ("duration_ms", 1000.0),  # given in seconds
    "tokens": ("total_tokens", 1.0),
    "cost": ("cost_usd", 1.0),
}
COLUMNS = {
    "kind": "kind",
    "name": "name",
    "status": "status",
    "model": "model",
    "agent": "agent_name",
    "agent_version": "agent_version",
}
FILTERS: Query = {
    **{name: None for name in LABELS if name not in {**RANGES, **SCORE_RANGE}},
    **range_filters((*RANGES, *SCORE_RANGE)),
    "kind": tuple(KINDS),
    "status": tuple(STATUSES),
    "failed_or_over": {"type": "number", "minimum": 0, "maximum": LARGEST},
    "since": (*SINCE, "all"),
    "from": MOMENT,
    "to": MOMENT,
}
SORTS = {
    "started": "-pk",
    "duration": "-duration_ms",
    "tokens": "-total_tokens",
    "cost": "-cost_usd",
}
SORTED_BY: Query = {"sort": choices(SORTS), "cursor": None}
BITMAPS = {"enable_indexscan": "off", "enable_seqscan": "off", "work_mem": "'32MB'"}
# With fewer matches among so many steps they are looked up, else they are soon met on the way.
RARE = 1_000
MOST = 10_000
PROBED, COMMON = 500, 5
NEAR, FAR = 5_000, 50_000  # runs: most pages end among the nearest; more are not counted
EVERY = Q()
EXCLUDES = re.compile(r"(?:^|\s)-")


def apply_filters(project: Project, given: Mapping[str, str]) -> QuerySet[Step]:
    """The steps that match, for files and sorted lists: where few do, by the runs that they are of.
    Times are those of the runs' starts. Raises QueryError.
    """
    within = within_of(project, given)
    rows, terms = _of_runs(project, given, within), _terms(given)
    found = _matching(project, given, within)
    for runs in (
        scored_runs(project, given),
        _of_terms(project, rows, terms, given),
        *(_of_words(rows, given, name) for name in STEP_WORDS),
    ):
        if runs is not None:
            found = found.filter(trajectory_id__in=set(runs))
    return found


def first_of(project: Project, given: Mapping[str, str]) -> First:
    """Reads the first steps that match, for a page by time: on the way, or, where an index knows
    which they are, among the nearest runs and then month by month, until the page is full.
    """

    def first(beyond: Mapping[str, Any], order: str, most: int) -> list[Step]:
        within = _onwards(within_of(project, given), beyond)
        search = _search(project, given, within, beyond, order)
        if search is None:
            return list(_matching(project, given, within).filter(**beyond).order_by(order)[:most])
        found: list[Step] = []
        span, runs = _span(project, within), NEAR
        while span and len(found) < most:
            window, span = _nearest(project, span, order, runs)
            rows = _matching(project, given, window).filter(**beyond)
            found += search(rows, order, most - len(found))
            runs = 1 + 2 * NEAR * (most - len(found)) // len(found) if found else FAR
        return found

    return first


def _onwards(within: Mapping[str, UUID], beyond: Mapping[str, Any]) -> Mapping[str, UUID]:
    """`within`, and not before the run of a place."""
    for lookup, (_, run, _) in beyond.items():
        side, nearest = ("lte", min) if lookup == "pk__lt" else ("gte", max)
        within = {**within, side: nearest(run, within.get(side, run))}
    return within


Span = tuple[UUID, UUID]  # ids of runs, without the second


def _span(project: Project, within: Mapping[str, UUID]) -> Span | None:
    """From the first run to the last."""
    ids = _ids(project, within)
    first, last = ids.first(), ids.last()
    return (first, UUID(int=last.int + 1)) if first and last else None


def _ids(project: Project, within: Mapping[str, UUID]) -> QuerySet:
    bounded = {f"id__{lookup}": pk for lookup, pk in within.items()}
    runs = Trajectory.objects.filter(project=project, **bounded)
    return runs.order_by("id").values_list("id", flat=True)


def _nearest(
    project: Project, span: Span, order: str, runs: int
) -> tuple[Mapping[str, UUID], Span | None]:
    """About so many runs of one month, whose rows are a table, and what of the span is left; of
    many runs, those of the whole month.
    """
    low, high = span
    ids = _ids(project, {"gte": low, "lt": high})
    if order == "-pk":
        month = month_of(time_of(UUID(int=high.int - 1)))
        begins = [floor_of(month)] if month else []
        cut = max([low, *begins, *_edge(ids.reverse(), runs)])
        return {"gte": cut, "lt": high}, (low, cut) if low < cut else None
    month = month_of(time_of(low))
    following = floor_of(next_month(month) if month else OLDEST)
    cut = min([high, following, *_edge(ids, runs)])
    return {"gte": low, "lt": cut}, (cut, high) if cut < high else None


def _edge(ids: QuerySet, runs: int) -> QuerySet | tuple:
    return ids[runs : runs + 1] if runs < FAR else ()


def _search(
    project: Project,
    given: Mapping[str, str],
    within: Mapping[str, UUID],
    beyond: Mapping[str, Any],
    order: str,
) -> Callable[[QuerySet[Step], str, int], list[Step]] | None:
    """Reads the first of those that match through an index. None where none leads to them, or they
    are soon met on the way.
    """
    if _text(given, "run"):
        return None
    rows = _of_runs(project, given, within)
    if _has_terms(given) and not _are_many(project, rows, _terms(given), given):
        return lambda rows, order, most: _looked_up(rows, by_terms(rows, given), order, most)
    near = rows.filter(**beyond).order_by(order)
    if any(_are_rare(near, given, name) for name in STEP_WORDS):
        return lambda rows, order, most: _looked_up(rows, by_words(rows, given), order, most)
    if scores_with(given) is not None:
        return lambda rows, order, most: _looked_up(rows, rows, order, most)
    return None


def _looked_up(
    rows: QuerySet[Step], as_indexed: QuerySet[Step], order: str, most: int
) -> list[Step]:
    """The first of the rows, which are said again `as_indexed`. Many are met on the way.

    The index is read as a whole, and the limit stops it early: it is not in the order of time.
    """
    way = "DESC" if order == "-pk" else "ASC"
    try:
        sql, params = as_indexed.values("trajectory_id", "number").query.sql_with_params()
    except EmptyResultSet:
        return []
    with by_bitmaps() if as_indexed is not rows else nullcontext(), connection.cursor() as cursor:
        cursor.execute(
            f"WITH hits AS MATERIALIZED ({sql}), few AS MATERIALIZED (SELECT * FROM hits LIMIT"
            f" {MOST + 1}) SELECT trajectory_id, number, (SELECT count(*) FROM few) FROM few"
            f" ORDER BY 1 {way}, 2 {way} LIMIT {most}",
            params,
        )
        hits = cursor.fetchall()
    if hits and hits[0][2] > MOST:
        return list(rows.order_by(order)[:most])
    runs, numbers = ({hit[side] for hit in hits} for side in (0, 1))
    steps = rows.model.objects.filter(trajectory_id__in=runs, number__in=numbers)
    found = {(step.trajectory_id, step.number): step for step in steps}
    if any(hit[:2] not in found for hit in hits):  # deleted meanwhile
        return _looked_up(rows, as_indexed, order, most)
    return [found[hit[:2]] for hit in hits]


@contextmanager
def by_bitmaps() -> Iterator[None]:
    """Indexes are combined before any step is read: PostgreSQL takes all words for as frequent, and
    might read a long time for a rare one. With room for the places of many rows.
    """
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("; ".join(f"SET LOCAL {name} = {value}" for name, value in BITMAPS.items()))
        yield
        cursor.execute("; ".join(f"SET LOCAL {name} TO DEFAULT" for name in BITMAPS))


def matching(project: Project, given: Mapping[str, str], times: Q = EVERY) -> QuerySet[Step]:
    """The steps that match, of these times, for those who know how to read them. Raises
    QueryError.
    """
    return _matching(project, given, within_of(project, given), times)


def _matching(
    project: Project, given: Mapping[str, str], within: Mapping[str, UUID], times: Q = EVERY
) -> QuerySet[Step]:
    narrowed = _narrowed(_of_runs(project, given, within).filter(times), _terms(given), given)
    if (scores := scores_with(given)) is not None:
        of_step = _of_steps(project, scores, within).filter(
            times, trajectory_id=OuterRef("trajectory_id"), step=OuterRef("key")
        )
        narrowed = narrowed.filter(Exists(of_step))
    for name in STEP_WORDS:
        narrowed = _with_words(narrowed, given, name) if _text(given, name) else narrowed
    return narrowed


def runs_of(project: Project, given: Mapping[str, str]) -> QuerySet:
    """The ids of the runs of the steps that match, the newest first. Raises QueryError."""
    return apply_filters(project, given).order_by("-pk").values("trajectory_id")


def steps_of_runs(project: Project, given: Mapping[str, str]) -> QuerySet[Step]:
    """All steps of the runs, or of the time, that is asked for."""
    return _of_runs(project, given, within_of(project, given))


def scored_runs(project: Project, given: Mapping[str, str]) -> list[UUID] | None:
    """The runs of few steps with the scores that are asked for; None where they are many, or no
    score is.
    """
    known = _scores(project, given)
    return None if known is None or estimated(known) > 3 * MOST else few_of(known, MOST)


def are_few_scored(project: Project, given: Mapping[str, str]) -> bool:
    known = _scores(project, given)
    assert known is not None
    return estimated(known) <= 3 * MOST and at_most(known, MOST) <= MOST


def _scores(project: Project, given: Mapping[str, str]) -> QuerySet[Score] | None:
    if (scores := scores_with(given)) is None:
        return None
    return _of_steps(project, scores, within_of(project, given))


def _of_steps(
    project: Project, scores: QuerySet[Score], within: Mapping[str, UUID]
) -> QuerySet[Score]:
    bounded = {f"trajectory_id__{lookup}": pk for lookup, pk in within.items()}
    known = scores.filter(project=project, trajectory_id__isnull=False, **bounded)
    return known.exclude(step="").order_by()


def within_of(project: Project, given: Mapping[str, str]) -> Mapping[str, UUID]:
    """Bounds of the ids of the runs whose steps can match, by lookup. Raises QueryError."""
    within = ids_within(*bounds(given, FILTERS))
    version = _text(given, "agent_version")
    return _within_version(project, version, within) if version else within


def _of_runs(
    project: Project, given: Mapping[str, str], within: Mapping[str, UUID]
) -> QuerySet[Step]:
    rows = Step.objects.filter(
        project=project, **{f"trajectory_id__{lookup}": pk for lookup, pk in within.items()}
    )
    if run := _text(given, "run"):
        key = TrajectoryKey.objects.filter(project=project, external_id=run)
        rows = rows.filter(trajectory_id__in=list(key.values_list("trajectory_id", flat=True)))
    return rows


def _terms(given: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name in COLUMNS if (value := _text(given, name))}


def _narrowed(
    rows: QuerySet[Step], terms: Mapping[str, str], given: Mapping[str, str]
) -> QuerySet[Step]:
    rows = rows.filter(**{COLUMNS[name]: value for name, value in terms.items()})
    if (limit := _failed_or_over(given)) is not None:
        rows = rows.filter(Q(status="error") | Q(duration_ms__gte=limit))
    return in_ranges(rows, given, RANGES)


def _within_version(
    project: Project, version: str, within: Mapping[str, UUID]
) -> Mapping[str, UUID]:
    """`within`, and not before or after all runs of this version: a walk from the newest step to
    those of an old one would pass most of the table.
    """
    runs = Trajectory.objects.filter(project=project, agent_version=version).order_by("id")
    first, last = (rows.values_list("id", flat=True).first() for rows in (runs, runs.reverse()))
    if first is None or last is None:
        return within
    return {
        **within,
        "gte": max(first, within.get("gte", first)),
        "lte": last,
    }


def by_terms(rows: QuerySet[Step], given: Mapping[str, str]) -> QuerySet[Step]:
    """The rows with these terms and words, said as the indexes of them know it. What a name implies
    is left out: the longer lists would be read in vain.
    """
    rows, terms = rows.alias(terms=STEP_TERMS), _terms(given)
    name = terms.pop("name", "")
    named = f":{name}" if name else ""
    of_names = []
    if terms.get("status") == "ok":  # which most have: it has no term
        del terms["status"]
    elif named and "status" in terms:
        of_names.append([f"status:{terms.pop('status')}{named}"])
    for least, others in (
        (float(_text(given, "duration_min") or 0) * 1000, []),
        (_failed_or_over(given) or 0, [f"status:error{named}"]),
    ):
        if least >= SLOW_MS[0]:
            classes = range(bisect_right(SLOW_MS, least), len(SLOW_MS) + 1)
            of_names.append([*others, *(f"seconds:{n}{named}" for n in classes)])
    for either in of_names:
        rows = rows.filter(terms__overlap=either)
    if name:
        terms.pop("kind", None)
        terms |= {} if of_names else {"name": name}
    rows = by_words(rows, given)
    wanted = [f"{name}:{value}" for name, value in terms.items()]
    return rows.filter(terms__contains=wanted) if wanted else rows


def by_words(rows: QuerySet[Step], given: Mapping[str, str]) -> QuerySet[Step]:
    """The rows with these words, so that the indexes of them can be used. What excludes words may
    be of steps that have none.
    """
    for name in STEP_WORDS:
        if (text := _text(given, name)) and not EXCLUDES.search(text):
            rows = rows.exclude(**{name: ""})
    return rows


def _has_terms(given: Mapping[str, str]) -> bool:
    return any(_text(given, name) for name in (*COLUMNS, "duration_min", "failed_or_over"))


def _of_terms(
    project: Project, rows: QuerySet[Step], terms: Mapping[str, str], given: Mapping[str, str]
) -> list[UUID] | None:
    """The runs of few steps with these terms; None where they are many, or no term is given."""
    if not _has_terms(given) or _are_many(project, rows, terms, given):
        return None
    return few_of(by_terms(rows, given), MOST)


def _are_many(
    project: Project, rows: QuerySet[Step], terms: Mapping[str, str], given: Mapping[str, str]
) -> bool:
    """By PostgreSQL's estimate, which takes terms for independent: what another implies is left
    out. `rows` are already those of about the version. Between few and many, totals know better.
    """
    implied = {"agent_version"} | ({"kind"} if "name" in terms else set())
    told = {name: value for name, value in terms.items() if name not in implied}
    times = RARE * estimated(_narrowed(rows, told, given)) / max(1, estimated(rows))
    if 1 < times < 10 and (counted := _added_up(project, given)):
        return counted > MOST
    return times > 1


def _added_up(project: Project, given: Mapping[str, str]) -> int:
    """How many of the steps that are added up match; 0 if that is not known."""
    wanted, covered = in_totals(given), step_totals.cover(project.pk, *bounds(given, FILTERS))
    if wanted is None or covered is None:
        return 0
    return covered.totals.filter(wanted).aggregate(n=Sum("steps"))["n"] or 0


def _failed_or_over(given: Mapping[str, str]) -> float | None:
    """In ms."""
    text = _text(given, "failed_or_over")
    return float(text) * 1000 if text else None


def estimated(rows: QuerySet[Any]) -> int:
    """How many rows PostgreSQL expects."""
    try:
        sql, params = rows.order_by().values("trajectory_id").query.sql_with_params()
    except EmptyResultSet:
        return 0
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN (FORMAT JSON) {sql}", params)
        plan = cursor.fetchone()[0]
    plan = json.loads(plan) if isinstance(plan, str) else plan
    return plan[0]["Plan"]["Plan Rows"]


def at_most(rows: QuerySet[Any], most: int) -> int:
    """How many there are; of more than `most`, one more."""
    return rows.order_by().values("trajectory_id")[: max(0, most + 1)].count()


def _of_words(rows: QuerySet[Step], given: Mapping[str, str], name: str) -> list[UUID] | None:
    """The runs of few steps whose arguments or error have these words."""
    if not _are_rare(rows.order_by("-pk"), given, name):
        return None
    return few_of(by_words(_with_words(rows, given, name), {name: given[name]}), MOST)


def _are_rare(rows: QuerySet[Step], given: Mapping[str, str], name: str) -> bool:
    """Whether few of the first rows have these words: PostgreSQL takes all words for as frequent,
    and the index gives all rows of a frequent one before the first. Of what excludes words, all of
    the index would be read.
    """
    text = _text(given, name)
    if not text or EXCLUDES.search(text):
        return False
    edge = next(iter(rows.values_list("trajectory_id", flat=True)[PROBED : PROBED + 1]), None)
    if edge is None:
        return False
    side = "gte" if rows.query.order_by == ("-pk",) else "lte"
    near = _with_words(rows.order_by().filter(**{f"trajectory_id__{side}": edge}), given, name)
    return len(near.values("number")[:COMMON]) < COMMON


def _with_words(rows: QuerySet[Step], given: Mapping[str, str], name: str) -> QuerySet[Step]:
    alias = f"{name}_words"
    said = {alias: words_query(_text(given, name))}
    return rows.alias(**{alias: STEP_WORDS[name]}).filter(**said)


def active_filters(given: Mapping[str, str]) -> list[Chip]:
    chips = active(given, LABELS, {**RANGES, **SCORE_RANGE})
    words = {"kind": KINDS, "status": STATUSES}
    return [
        Chip(chip.name, f"{LABELS[chip.name]}: {words[chip.name].get(given[chip.name], '')}")
        if chip.name in words
        else Chip(chip.name, f"{LABELS[chip.name]} {given[chip.name]} s")
        if chip.name == "failed_or_over"
        else chip
        for chip in chips
    ]


def in_totals(given: Mapping[str, str]) -> Q | None:
    """The filters, of totals; None if they do not know one of them."""
    wanted, levels = Q(), (0, *OVER_S)
    for chip in active_filters(given):
        value = given[chip.name].strip()
        if chip.name in COLUMNS:
            wanted &= Q(**{COLUMNS[chip.name]: value})
        elif chip.name in ("duration_min", "failed_or_over"):
            if float(value) not in levels:
                return None
            over = Q(over__gte=levels.index(float(value)))
            wanted &= over if chip.name == "duration_min" else over | Q(status="error")
        elif chip.name not in ("since", "from", "to"):
            return None
    return wanted


def has_words(given: Mapping[str, str]) -> bool:
    """Whether an index of words knows which steps match."""
    words = [text for name in STEP_WORDS if (text := _text(given, name))]
    return bool(words) and not any(EXCLUDES.search(text) for text in words)


def _text(given: Mapping[str, str], name: str) -> str:
    return storable(given.get(name) or "", "").strip()
