"""The filters of steps, the same in the URL of the page, of the API and of the exports."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Mapping
from uuid import UUID

from django.core.exceptions import EmptyResultSet
from django.db import connection
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
from apps.trajectories.models import (
    SLOW_MS,
    STEP_TERMS,
    STEP_WORDS,
    Score,
    Step,
    Trajectory,
    TrajectoryKey,
)
from apps.trajectories.step_totals import OVER_S
from apps.trajectories.steps import KINDS, STATUSES

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
# With fewer matches among so many steps they are looked up, else they are soon met on the way.
RARE = 1_000
MOST = 10_000
PROBED, COMMON = 5_000, 10
EXCLUDES = re.compile(r"(?:^|\s)-")


def apply_filters(project: Project, given: Mapping[str, str]) -> QuerySet[Step]:
    """The steps that match, for lists: where few do, by the runs that they are of. Times are those
    of the runs' starts. Raises QueryError.
    """
    within = within_of(project, given)
    rows, terms = _of_runs(project, given, within), _terms(given)
    found = _matching(project, given, within)
    for runs in (
        _of_terms(project, rows, terms, given),
        *(_of_words(rows, given, name) for name in STEP_WORDS),
    ):
        if runs is not None:
            found = found.filter(trajectory_id__in=set(runs))
    return found


def matching(project: Project, given: Mapping[str, str]) -> QuerySet[Step]:
    """The steps that match, for those who know how to read them. Raises QueryError."""
    return _matching(project, given, within_of(project, given))


def _matching(
    project: Project, given: Mapping[str, str], within: Mapping[str, UUID]
) -> QuerySet[Step]:
    narrowed = _narrowed(_of_runs(project, given, within), _terms(given), given)
    if (scores := scores_with(given)) is not None:
        of_step = scores.filter(trajectory_id=OuterRef("trajectory_id"), step=OuterRef("key"))
        narrowed = narrowed.filter(Exists(of_step))
        if (few := _scored(project, scores, within)) is not None:
            narrowed = narrowed.filter(trajectory_id__in=set(few))
    for name, said in STEP_WORDS.items():
        if words := _text(given, name):
            narrowed = narrowed.alias(**{f"{name}_words": said})
            narrowed = narrowed.filter(**{f"{name}_words": words_query(words)})
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
    scores = scores_with(given)
    return None if scores is None else _scored(project, scores, within_of(project, given))


def _scored(
    project: Project, scores: QuerySet[Score], within: Mapping[str, UUID]
) -> list[UUID] | None:
    bounded = {f"trajectory_id__{lookup}": pk for lookup, pk in within.items()}
    known = scores.filter(project=project, trajectory_id__isnull=False, **bounded)
    return few_of(known.exclude(step="").order_by(), MOST)


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
    """The rows with these terms and words, said as the indexes of them know it."""
    rows = rows.alias(terms=STEP_TERMS)
    for least, others in (
        (float(_text(given, "duration_min") or 0) * 1000, []),
        (_failed_or_over(given) or 0, ["status:error"]),
    ):
        if least >= SLOW_MS[0]:
            classes = range(bisect_right(SLOW_MS, least), len(SLOW_MS) + 1)
            rows = rows.filter(terms__overlap=[*others, *(f"seconds:{n}" for n in classes)])
    rows = by_words(rows, given)
    wanted = [f"{name}:{value}" for name, value in _terms(given).items()]
    wanted = [term for term in wanted if term != "status:ok"]  # which most have: it has no term
    return rows.filter(terms__contains=wanted) if wanted else rows


def by_words(rows: QuerySet[Step], given: Mapping[str, str]) -> QuerySet[Step]:
    """The rows with these words, so that the indexes of them can be used."""
    for name in STEP_WORDS:
        rows = rows.exclude(**{name: ""}) if _text(given, name) else rows
    return rows


def _of_terms(
    project: Project, rows: QuerySet[Step], terms: Mapping[str, str], given: Mapping[str, str]
) -> list[UUID] | None:
    """The runs of few steps with these terms; None where they are many, or no term is given."""
    slow = any(_text(given, name) for name in ("duration_min", "failed_or_over"))
    if not (terms or slow) or _are_many(project, rows, terms, given):
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


def estimated(rows: QuerySet[Step]) -> int:
    """How many rows PostgreSQL expects."""
    try:
        sql, params = rows.order_by().values("number").query.sql_with_params()
    except EmptyResultSet:
        return 0
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN (FORMAT JSON) {sql}", params)
        plan = cursor.fetchone()[0]
    plan = json.loads(plan) if isinstance(plan, str) else plan
    return plan[0]["Plan"]["Plan Rows"]


def at_most(rows: QuerySet[Step], most: int) -> int:
    """How many there are; of more than `most`, one more."""
    return rows.order_by().values("number")[: max(0, most + 1)].count()


def _of_words(rows: QuerySet[Step], given: Mapping[str, str], name: str) -> list[UUID] | None:
    """The runs of few steps whose arguments or error have these words. Of what excludes words, all
    of the index would be read.
    """
    text = _text(given, name)
    if not text or EXCLUDES.search(text):
        return None
    words = words_query(text)
    if _are_common(rows.alias(words=STEP_WORDS[name]).filter(words=words), rows):
        return None
    having = rows.exclude(**{name: ""}).alias(words=STEP_WORDS[name])
    return few_of(having.filter(words=words), MOST)


def _are_common(found: QuerySet[Step], rows: QuerySet[Step]) -> bool:
    """Whether many of the newest rows are among those that were `found`: PostgreSQL takes all words
    for as frequent, and the index gives all rows of a frequent one before the first.
    """
    newest = rows.order_by("-pk").values_list("trajectory_id", flat=True)
    edge = next(iter(newest[PROBED : PROBED + 1]), None)
    if edge is None:
        return True
    return len(found.filter(trajectory_id__gte=edge).values("number")[:COMMON]) == COMMON


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
    return (given.get(name) or "").replace("\x00", "").strip()
