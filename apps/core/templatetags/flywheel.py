"""Filters and tags that all pages share."""

from __future__ import annotations

import json
from typing import Any

from django import template
from django.http import QueryDict

register = template.Library()

GOOD = {"success", "succeeded", "promote", "better", "confirmed", "frozen", "passed", "unlocked", "same"}
BAD = {"failure", "failed", "reject", "worse", "high", "locked"}
WARN = {"inconclusive", "open", "draft", "cancelled", "medium", "override"}
INFO = {"running", "queued", "holdout", "adapter", "initial"}


@register.filter
def tone(value: Any) -> str:
    """The colour of a state's badge."""
    word = str(value).lower()
    return (
        "good" if word in GOOD else "bad" if word in BAD else "warn" if word in WARN else "info" if word in INFO else ""
    )


@register.filter
def percent(value: Any, digits: int = 1) -> str:
    return "–" if value is None else f"{float(value):.{digits}%}"


@register.filter
def signed(value: Any) -> str:
    return "–" if value is None else f"{float(value):+.3f}"


@register.filter
def decimals(value: Any, digits: int = 2) -> str:
    return "–" if value is None else f"{float(value):.{digits}f}"


@register.filter
def seconds(value: Any) -> str:
    if value is None:
        return "–"
    value = float(value)
    return f"{value:.0f} s" if value < 90 else f"{value / 60:.1f} min" if value < 5400 else f"{value / 3600:.1f} h"


@register.filter
def pretty(value: Any) -> str:
    """JSON, indented; text that is not JSON as it is."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return value
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)


@register.filter
def text_of(message: dict) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return "\n".join(
            str(part.get("text") or json.dumps(part)) if isinstance(part, dict) else str(part) for part in content
        )
    return str(content or "")


@register.filter
def is_example(message: dict) -> bool:
    return str(message.get("name") or "").startswith("example_")


@register.filter
def get(mapping: dict, key: Any) -> Any:
    return mapping.get(key) if mapping else None


@register.simple_tag(takes_context=True)
def with_query(context: dict, **changes: Any) -> str:
    """The page's query with some parameters changed; an empty value drops one."""
    query: QueryDict = context["request"].GET.copy()
    for name, value in changes.items():
        query.pop(name, None)
        if value not in (None, ""):
            query[name] = str(value)
    return query.urlencode()


@register.inclusion_tag("_figure.html")
def chart(figure: dict, id: str) -> dict:
    return {"figure": figure, "id": id}


@register.inclusion_tag("_progress.html")
def bar(value: float) -> dict:
    return {"percent": round(value)}
