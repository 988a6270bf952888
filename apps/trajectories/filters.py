"""The filters of lists, the same in the URL of the page and of the API."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from django.contrib.postgres.search import SearchQuery
from django.db.models import Exists, F, OuterRef, Q, QuerySet
from django.db.models.functions import Coalesce
from django.utils import timezone

from apps.trajectories import schema
from apps.trajectories.ids import floor_of
from apps.trajectories.models import SearchText, TrajectoryKey

WORDS = re.compile(r"\w+(?: +\w+)*")

SINCE = {"1h": timedelta(hours=1), "24h": timedelta(days=1), "7d": timedelta(days=7), "30d": timedelta(days=30)}
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
    "reward": ("outcome_reward", 1.0),
    "messages": ("message_count", 1.0),
}


def apply_filters(rows: QuerySet, given: Mapping[str, str]) -> QuerySet:
    """Narrows by what is given; an unknown name or a value that cannot be narrows nothing."""
    terms = [f"{kind}:{value}" for name, kind in TERMS.items() if (value := _text(given.get(name)))]
    if terms:
        rows = rows.filter(terms__contains=terms)
    if value := _text(given.get("outcome")):
        rows = rows.filter(outcome_status=value)
    rows = _in_time(rows, given)
    for name, (column, unit) in RANGES.items():
        for end, lookup in (("min", "gte"), ("max", "lte")):
            if (number := _number(given.get(f"{name}_{end}"))) is not None:
                rows = rows.filter(**{f"{column}__{lookup}": number * unit})
    if (number := _number(given.get("tokens_min"))) is not None:
        rows = rows.alias(tokens=_tokens()).filter(tokens__gte=number)
    if (number := _number(given.get("tokens_max"))) is not None:
        rows = rows.alias(tokens=_tokens()).filter(tokens__lte=number)
    if value := _text(given.get("mode")):
        rows = rows.filter(failure__mode__slug=value).exclude(failure__state="dismissed")
    if value := _text(given.get("q")):
        rows = rows.filter(matching(value))
    return rows


def _in_time(rows: QuerySet, given: Mapping[str, str]) -> QuerySet:
    """By the id, which begins with the start: only the partitions of that time are read."""
    now = timezone.now()
    if (value := given.get("since")) in SINCE:
        rows = rows.filter(pk__gte=floor_of(now - SINCE[value]))
    if at := _time(given.get("from")):
        rows = rows.filter(pk__gte=floor_of(at))
    if at := _time(given.get("to")):
        rows = rows.filter(pk__lt=floor_of(at))
    return rows


def matching(text: str) -> Q | Exists:
    """Rows of that id, else those with all the words (the last may be unfinished). “"two words"”, “or”, “-not” work."""
    if named := list(TrajectoryKey.objects.filter(external_id=text).values_list("trajectory_id", flat=True)[:20]):
        return Q(pk__in=named)
    query = SearchQuery(text, config="simple", search_type="websearch")
    if WORDS.fullmatch(text) and " or " not in text.lower():
        *whole, last = (f"'{word}'" for word in text.split())
        prefix = last + ":*" if len(last) > 4 else last
        query = SearchQuery(" & ".join([*whole, prefix]), config="simple", search_type="raw")
    return Exists(SearchText.objects.filter(trajectory_id=OuterRef("pk"), words=query))


def _tokens() -> Any:
    return Coalesce(F("input_tokens"), 0) + Coalesce(F("output_tokens"), 0)


def _text(value: str | None) -> str:
    return (value or "").replace("\x00", "").strip()


def _number(value: str | None) -> float | None:
    try:
        number = float(value or "")
    except ValueError:
        return None
    return number if math.isfinite(number) and abs(number) < 1e12 else None


def _time(value: str | None) -> datetime | None:
    """ISO 8601, a date alone included; without a zone it is UTC."""
    try:
        at = datetime.fromisoformat(_text(value)) if value else None
    except ValueError:
        return None
    return schema.aware(at)
