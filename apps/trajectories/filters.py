"""The filters of lists, the same in the URL of the page and of the API."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.contrib.postgres.search import SearchQuery
from django.core.exceptions import EmptyResultSet
from django.db import connection
from django.db.models import Exists, F, OuterRef, Q, QuerySet
from django.db.models.functions import Coalesce
from django.http import QueryDict
from django.utils import timezone

from apps.core.bus import Question, ask
from apps.core.models import Project
from apps.core.query import MOMENT, Query, QueryError, problem_of
from apps.core.sorting import choices
from apps.trajectories import decoding, schema
from apps.trajectories.ids import floor_of
from apps.trajectories.models import (
    CostBasis,
    Outcome,
    Score,
    SearchText,
    TrajectoryKey,
    UploadedTrajectory,
)
from workers.lib.storable import storable

WORDS = re.compile(r"\w+(?: +\w+)*")

SINCE = {
    "1h": timedelta(hours=1),
    "24h": timedelta(days=1),
    "7d": timedelta(days=7),
    "30d": timedelta(days=30),
    "90d": timedelta(days=90),
}
TERMS = {
    "agent": "agent",
    "agent_version": "version",
    "model": "model",
    "workload": "workload",
    "session": "session",
    "user": "user",
    "label": "label",
    "tool": "tool",
    "tag": "tag",
}
RANGES = {
    "cost": ("cost_usd", 1.0),
    "latency": ("latency_ms", 1000.0),  # given in seconds
    "tokens": ("tokens", 1.0),
    "cached": ("cache_read_tokens", 1.0),
    "cache_write": ("cache_write_tokens", 1.0),
    "reasoning": ("reasoning_tokens", 1.0),
    "reward": ("outcome_reward", 1.0),
    "messages": ("message_count", 1.0),
}


DIMENSIONS = {  # what the roll-ups are counted by
    "outcome": "outcome_status",
    "agent": "agent_name",
    "agent_version": "agent_version",
    "model": "model",
    "workload": "workload",
}
LABELS = {
    "q": "Text",
    "outcome": "Outcome",
    "mode": "Failure mode",
    "agent": "Agent",
    "agent_version": "Version",
    "model": "Model",
    "workload": "Workload",
    "tool": "Tool",
    "tag": "Tag",
    "label": "Label",
    "session": "Session",
    "user": "User",
    "since": "Last",
    "from": "From",
    "to": "Until",
    "cost": "Cost in $",
    "cost_basis": "Cost is",
    "latency": "Latency in s",
    "tokens": "Tokens",
    "cached": "Cached input tokens",
    "cache_write": "Cache-write tokens",
    "reasoning": "Reasoning tokens",
    "messages": "Messages",
    "reward": "Reward",
    "score": "Score",
    "score_is": "Score is",
    "score_value": "Score value",
    "trained": "Learned by",
    "import": "Import",
}
COST_BASES = {value: [value] for value in CostBasis.values} | {
    "unknown": [""],
    "incomplete": ["", CostBasis.AT_LEAST],
}
SCORE_RANGE = {"score_value": ("value", 1.0)}
LARGEST = 10**12
SIDES = {"min": "gte", "max": "lte"}


def range_filters(names: Iterable[str]) -> Query:
    number = {"type": "number", "minimum": -LARGEST, "maximum": LARGEST}
    return {f"{name}_{side}": number for name in names for side in SIDES}


FILTERS: Query = {  # in an address
    **{name: None for name in LABELS if name not in {**RANGES, **SCORE_RANGE}},
    **range_filters((*RANGES, *SCORE_RANGE)),
    "outcome": Outcome.values,
    "cost_basis": tuple(COST_BASES),
    "since": (*SINCE, "all"),
    "from": MOMENT,
    "to": MOMENT,
    "import": UUID,
}
SORTS = {
    "started": "-pk",
    "latency": "-latency_ms",
    "cost": "-cost_usd",
    "tokens": "-tokens",
    "messages": "-message_count",
    "reward": "-outcome_reward",
}
OF_LISTS: Query = FILTERS | {
    "sort": choices(SORTS),
    "cols": None,
    "cursor": None,
}  # of the list's pages
EXPOSED = {
    "q",
    "outcome",
    "mode",
    "agent_version",
    "model",
    "tool",
    "since",
    "import",
}  # not among “More filters”
SIGNS = {"min": "≥", "max": "≤"}
FEW = 1_000  # rows: more are soon met from the newest on


class LearnedBy(Question[QuerySet]):
    """Those of the rows that a model or training run learned from."""

    rows: QuerySet
    learner: str


@dataclass(frozen=True, slots=True)
class Chip:
    """A filter that is set: its name in the URL, and its words."""

    name: str
    text: str


def runs_of(project: Project, given: Mapping[str, str]) -> QuerySet:
    """The ids of the runs that match, the newest first. Raises QueryError."""
    return apply_filters(project.trajectories.all(), given).order_by("-pk").values("pk")


def apply_filters(rows: QuerySet, given: Mapping[str, str]) -> QuerySet:
    """Narrows by what is given. Raises QueryError for a value that cannot be: without it, other
    rows would be meant.
    """
    within = ids_within(*bounds(given))
    rows = rows.filter(**{f"pk__{lookup}": pk for lookup, pk in within.items()})
    if terms := [
        f"{kind}:{value}"
        for name, kind in TERMS.items()
        if name != "agent_version" and (value := _text(given.get(name)))
    ]:
        rows = _with_terms(rows, terms)
    if value := _text(given.get("agent_version")):  # has an index in the order of time
        rows = rows.filter(agent_version=value)
    if value := _text(given.get("outcome")):
        rows = rows.filter(outcome_status=value)
    if value := _text(given.get("cost_basis")):
        rows = rows.filter(cost_basis__in=COST_BASES[value])
    rows = in_ranges(rows, given, RANGES)
    if (scores := scores_with(given)) is not None:
        rows = rows.filter(pk__in=scores.filter(step="").values("trajectory_id"))
    if value := _text(given.get("mode")):
        rows = rows.filter(failure__mode__slug=value).exclude(failure__state="dismissed")
    if value := _text(given.get("trained")):
        for narrowed in ask(LearnedBy(rows, value)):
            rows = narrowed
    if value := _text(given.get("import")):
        rows = rows.filter(of_import(value))
    if value := _text(given.get("q")):
        rows = rows.filter(matching(value, within))
    return rows


def ids_within(begin: datetime | None, end: datetime | None) -> dict[str, UUID]:
    """Bounds of the ids of runs that started in a time, by lookup."""
    return ({"gte": floor_of(begin)} if begin else {}) | ({"lt": floor_of(end)} if end else {})


def in_ranges(
    rows: QuerySet, given: Mapping[str, str], ranges: Mapping[str, tuple[str, float]]
) -> QuerySet:
    """`ranges` are of (column, how much of it the given unit is)."""
    for name, (column, unit) in ranges.items():
        for side, lookup in SIDES.items():
            if (number := _number(given.get(f"{name}_{side}"))) is not None:
                rows = rows.alias(tokens=total_tokens()) if column == "tokens" else rows
                rows = rows.filter(**{f"{column}__{lookup}": number * unit})
    return rows


def scores_with(given: Mapping[str, str]) -> QuerySet[Score] | None:
    """The scores that are asked for; None if none are."""
    name, said = _text(given.get("score")), _text(given.get("score_is"))
    scores = Score.objects.filter(**({"name": name} if name else {}))
    scores = scores.filter(text__iexact=said) if said else scores
    narrowed = in_ranges(scores, given, SCORE_RANGE)
    return narrowed if name or said or narrowed is not scores else None


def refuse_malformed(given: Mapping[str, str], known: Query) -> None:
    """Raises QueryError for a value that cannot be one of its filter; empty ones are no filters."""
    for name, kind in known.items():
        value = _text(given.get(name))
        if value and (problem := problem_of(value, kind)):
            raise QueryError(name, f"{problem}, not “{value[:60]}”")
        if value and kind is MOMENT and _time(value) is None:
            raise QueryError(name, f"is a time that no run can have: “{value[:60]}”")


def of_import(upload: str) -> Q:
    """The trajectories that an import's file contained; none if the text is not the id of an
    import.
    """
    return Q(
        pk__in=UploadedTrajectory.objects.filter(of_import_id(upload, "upload_id")).values(
            "trajectory_id"
        )
    )


def of_import_id(upload: str, column: str = "pk") -> Q:
    try:
        return Q(**{column: UUID(upload)})
    except ValueError:
        return Q(pk__in=[])


def _with_terms(rows: QuerySet, terms: list[str]) -> QuerySet:
    """Where few rows have these terms, they are found first: read in the order of time, most of the
    table would go by.
    """
    found = rows.filter(terms__contains=terms)
    few = list(found.order_by().values_list("pk", flat=True)[: FEW + 1])
    return rows.filter(pk__in=few) if len(few) <= FEW else found


def bounds(
    given: Mapping[str, str], known: Query = FILTERS
) -> tuple[datetime | None, datetime | None]:
    """From when on, and until when (without that moment); None is open. A date as the end is that
    whole day.

    Raises QueryError if any filter has a value that cannot be: all that reads rows by filters
    begins here.
    """
    refuse_malformed(given, known)
    begins = [at] if (at := _time(given.get("from"))) else []
    if (value := given.get("since")) in SINCE:
        begins.append(timezone.now() - SINCE[value])
    end = _time(given.get("to"))
    if end and len(_text(given.get("to"))) == len("2026-01-31"):
        end += timedelta(days=1)
    return max(begins, default=None), end


def active(
    given: Mapping[str, str],
    labels: Mapping[str, str] = LABELS,
    ranges: Collection[str] = (*RANGES, *SCORE_RANGE),
) -> list[Chip]:
    """The filters that narrow, in the order of the form."""
    found = []
    for name, label in labels.items():
        if name in ranges:
            for side, sign in SIGNS.items():
                if (number := _number(given.get(f"{name}_{side}"))) is not None:
                    found.append(Chip(f"{name}_{side}", f"{label} {sign} {number:g}"))
        elif value := _text(given.get(name)):
            usable = {"since": value in SINCE, "from": _time(value), "to": _time(value)}.get(
                name, True
            )
            if usable:
                found.append(Chip(name, f"{label}: {value}"))
    return found


def dimensions(given: Mapping[str, str]) -> tuple[dict[str, str], list[Chip]]:
    """What of the filters the roll-ups know ({column: value}), and what they do not; time is in
    neither.
    """
    known = {
        column: value for name, column in DIMENSIONS.items() if (value := _text(given.get(name)))
    }
    others = [
        chip
        for chip in active(given)
        if chip.name not in DIMENSIONS and chip.name not in ("since", "from", "to")
    ]
    return known, others


def without(given: QueryDict, *names: str) -> str:
    """The query without these parameters, the cursor and what is empty."""
    query = QueryDict(mutable=True)
    for name, values in given.lists():
        if (
            name not in names
            and name not in ("cursor", "page")
            and (full := [value for value in values if value])
        ):
            query.setlist(name, full)
    return query.urlencode()


def normal(query: str) -> str:
    """A query string in one order, so that two that say the same are the same."""
    given = QueryDict(query)
    return "&".join(sorted(filter(None, without(given).split("&"))))


def matching(text: str, within: Mapping[str, UUID] | None = None) -> Q | Exists:
    """Rows of that id, else those with all the words (the last may be unfinished). “"two words"”,
    “or”, “-not” work.

    `within` bounds the ids by lookup: the texts of other months are not searched.
    """
    if named := list(
        TrajectoryKey.objects.filter(external_id=text).values_list("trajectory_id", flat=True)[:20]
    ):
        return Q(pk__in=named)
    texts = texts_with(words_query(text), within or {})
    few = few_of(texts)
    return Exists(texts.filter(trajectory_id=OuterRef("pk"))) if few is None else Q(pk__in=few)


def words_query(text: str) -> SearchQuery:
    """All the words, the last of which may be unfinished; “"two words"”, “or”, “-not” work."""
    if not WORDS.fullmatch(text) or " or " in text.lower():
        return SearchQuery(text, config="simple", search_type="websearch")
    *whole, last = (f"'{word}'" for word in text.split())
    prefix = last + ":*" if len(last) > 4 else last
    return SearchQuery(" & ".join([*whole, prefix]), config="simple", search_type="raw")


def texts_with(words: SearchQuery, within: Mapping[str, UUID]) -> QuerySet[SearchText]:
    bounded = {f"trajectory_id__{lookup}": pk for lookup, pk in within.items()}
    return SearchText.objects.filter(words=words, **bounded)


def few_of(rows: QuerySet, most: int = FEW) -> list[UUID] | None:
    """The ids of runs, where the rows are no more than `most`; None if they are many.

    Words that many rows have are found by walking back from the newest row, words that few have by
    the index alone: a walk would unpack the text of every row. The planner cannot tell (it takes a
    word it does not know for one in 200), so the fence of a materialised query makes it use the
    index, and the limit outside stops it early.
    """
    try:
        sql, params = rows.values("trajectory_id").query.sql_with_params()
    except EmptyResultSet:
        return []
    with connection.cursor() as cursor:
        cursor.execute(
            f"WITH hits AS MATERIALIZED ({sql}) SELECT * FROM hits LIMIT {most + 1}", params
        )
        found = [pk for (pk,) in cursor.fetchall()]
    return found if len(found) <= most else None


def total_tokens() -> Any:
    """In and out together; NULL if neither is known."""
    return Coalesce(F("input_tokens") + F("output_tokens"), F("input_tokens"), F("output_tokens"))


def _text(value: str | None) -> str:
    return storable(value or "", "").strip()


def _number(value: str | None) -> float | None:
    try:
        number = float(value or "")
    except ValueError:
        return None
    return number if math.isfinite(number) and abs(number) <= LARGEST else None


def _time(value: str | None) -> datetime | None:
    """ISO 8601, a date alone included; without a zone it is UTC. None for a time that no run can
    have.
    """
    try:
        return schema.in_utc("", datetime.fromisoformat(_text(value))) if value else None
    except (ValueError, decoding.RowError):
        return None
