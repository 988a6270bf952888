"""The filters of lists, the same in the URL of the page and of the API."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from django.db.models import Q, QuerySet
from django.utils import timezone

SINCE = {"1h": timedelta(hours=1), "24h": timedelta(days=1), "7d": timedelta(days=7), "30d": timedelta(days=30)}
EQUAL = {
    "outcome": "outcome_status",
    "agent": "agent_name",
    "agent_version": "agent_version",
    "model": "model",
    "workload": "workload",
    "session": "session_id",
    "user": "user_id",
}


def apply_filters(rows: QuerySet, given: Mapping[str, str]) -> QuerySet:
    """Narrows by what is given; an unknown name or an empty value narrows nothing."""
    for name, column in EQUAL.items():
        if value := _text(given.get(name)):
            rows = rows.filter(**{column: value})
    if value := _text(given.get("tool")):
        rows = rows.filter(tool_names__contains=[value])
    if value := _text(given.get("tag")):
        rows = rows.filter(tags__contains=[value])
    if (value := given.get("since")) in SINCE:
        rows = rows.filter(started_at__gte=timezone.now() - SINCE[value])
    if value := _text(given.get("q")):
        rows = rows.filter(Q(preview__icontains=value) | Q(external_id__icontains=value) | Q(messages__icontains=value))
    if value := _text(given.get("mode")):
        rows = rows.filter(failure__mode__slug=value).exclude(failure__state="dismissed")
    return rows


def _text(value: str | None) -> str:
    return (value or "").replace("\x00", "").strip()
