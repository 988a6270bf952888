"""Filters and tags that all pages share."""

from __future__ import annotations

import json
import re
from datetime import datetime
from typing import Any

from django import template
from django.db.models import Model
from django.http import QueryDict
from django.urls import reverse
from django.utils import timezone

from apps.core.bidi import escaped, isolated
from apps.core.charts import shortened
from apps.core.models import object_name
from apps.core.sorting import Sorting, header
from workers.lib.memory import gigabytes
from workers.lib.messages import is_example, is_prompt, part_text, unpacked

register = template.Library()

GOOD = {
    "success",
    "succeeded",
    "promote",
    "better",
    "confirmed",
    "frozen",
    "passed",
    "unlocked",
    "same",
    "healthy",
    "enabled",
    "delivered",
    "done",
    "live",
    "proved",
}
BAD = {"failure", "failed", "reject", "worse", "high", "locked", "down", "disabled"}
WARN = {
    "inconclusive",
    "open",
    "draft",
    "cancelled",
    "medium",
    "override",
    "unlisted",
    "failing",
    "unreachable",
    "rollback",
}
INFO = {
    "running",
    "queued",
    "holdout",
    "adapter",
    "initial",
    "waiting",
    "loading",
    "loaded",
    "proving",
}


@register.filter
def sentence_case(text: str) -> str:
    """“Change Password” of a library as “Change password”, the way our own headings are written; IP
    and TOTP stay.
    """
    first, *others = re.split(r"(?<=\S)(?=[\s-])", text.strip())
    return first + "".join(
        re.sub(r"^([\s-]+)([A-Z])(?=[a-z])", lambda found: found[1] + found[2].lower(), word)
        for word in others
    )


register.filter("isolated", lambda text: isolated(str(text)))


@register.filter
def tone(value: Any) -> str:
    """The colour of a state's badge."""
    word = str(value).lower()
    return (
        "good"
        if word in GOOD
        else "bad"
        if word in BAD
        else "warn"
        if word in WARN
        else "info"
        if word in INFO
        else ""
    )


@register.filter
def percent(value: Any, digits: int = 1) -> str:
    return "–" if value is None else f"{float(value):.{digits}%}"


@register.filter
def share(value: float) -> str:
    """As somebody chose it: 0.25 is 25%, 0.005 is 0.5%."""
    return f"{value * 100:.3g}%"


@register.filter
def pairs(value: Any) -> list[tuple[Any, Any]]:
    """The names and values of a dict whose names somebody else chose: in a template, `.items` of
    one with the name “items” is its value.
    """
    return list(value.items()) if isinstance(value, dict) else []


@register.filter
def signed(value: Any) -> str:
    return "–" if value in (None, "") else f"{float(value):+.3f}"


@register.filter
def decimals(value: Any, digits: int = 2) -> str:
    return "–" if value is None else f"{float(value):.{digits}f}"


@register.filter
def seconds(value: Any) -> str:
    if value is None:
        return "–"
    value = float(value)
    return (
        f"{value:.0f} s"
        if value < 90
        else f"{value / 60:.1f} min"
        if value < 5400
        else f"{value / 3600:.1f} h"
    )


@register.filter(name="gigabytes")
def gigabytes_of(value: Any) -> str:
    return "–" if value is None else gigabytes(float(value))


@register.filter
def short_count(value: Any) -> str:
    """1,240 · 56k · 1.2M."""
    if value is None:
        return "–"
    value = float(value)
    for least, unit in ((1e9, "B"), (1e6, "M"), (1e4, "k")):
        if value >= least:
            return f"{value / (1e3 if unit == 'k' else least):.{0 if unit == 'k' else 1}f}{unit}"
    return f"{value:,.0f}"


@register.filter
def dollars(value: Any) -> str:
    """Cents, and what a cent is too coarse for."""
    return (
        "–"
        if value is None
        else f"{float(value):,.2f}"
        if float(value) >= 0.1
        else f"{float(value):.2g}"
    )


@register.filter
def number(value: Any) -> str:
    """Three decimals for what is small, none for what is large."""
    return (
        "–"
        if value is None
        else f"{float(value):,.0f}"
        if abs(float(value)) >= 100
        else f"{float(value):.3f}"
    )


@register.simple_tag
def in_points(value: float | None) -> str:
    """A difference of two rates in percentage points."""
    return "–" if value is None else f"{100 * value:+.1f}"


@register.filter
def points(value: Any) -> str:
    """A component of a reward: signed, without needless zeros."""
    return "–" if value is None else f"{float(value):+.3g}" if value else "0"


AGES = ((90, 1, "s"), (90 * 60, 60, "min"), (36 * 3600, 3600, "h"))


@register.filter
def ago(value: datetime | None) -> str:
    """How long ago (or in how long), short enough for a column of a table."""
    if value is None:
        return ""
    age = (timezone.now() - value).total_seconds()
    if abs(age) < 5:
        return "now"
    unit, name = next(
        ((unit, name) for below, unit, name in AGES if abs(age) < below), (86400, "d")
    )
    count = round(abs(age) / unit)
    return f"{count} {name} ago" if age > 0 else f"in {count} {name}"


@register.filter
def ago_within_hour(value: datetime) -> str:
    """How long ago, of what is known to the hour only; `value` is the start of that hour."""
    hours = int((timezone.now() - value).total_seconds() // 3600)
    if hours < 2:
        return f"less than {max(hours, 0) + 1} h ago"
    return f"{hours - 1} to {hours} h ago" if hours < 36 else ago(value)


@register.filter("shortened")
def shortened_text(value: object, most: int = 28) -> str:
    """A name, key or id of at most so many characters; "" without one."""
    return "" if value is None else shortened(str(value), most)


@register.filter
def slower_tone(ratio: float | None) -> str:
    """The badge of how many times as long (or as dear) something is as before: plain below a half
    more or a third less.
    """
    return "" if ratio is None or 0.67 < ratio < 1.5 else "bad" if ratio > 1 else "good"


@register.filter
def compact(value: Any) -> str:
    return escaped(json.dumps(value, ensure_ascii=False, default=str))


@register.filter
def pretty(value: Any) -> str:
    """JSON, indented; text that is not JSON unchanged."""
    found = unpacked(value)
    if isinstance(found, str):
        return value
    return escaped(json.dumps(found, indent=2, ensure_ascii=False, default=str))


@register.filter
def text_of(message: dict) -> str:
    """The text of a message; parts that are none as JSON."""
    content = message.get("content")
    if isinstance(content, list):
        return "\n".join(part_text(part) or json.dumps(part) for part in content)
    return str(content or "")


@register.simple_tag
def opening_of(turns: list[dict], blamed: int | str | None = None) -> int:
    """How many messages at the front are the agent's prompt (system message, examples); 0 if one of
    them is blamed.
    """
    count = 0
    for message in turns:
        if not is_prompt(message) and not is_example(message):
            break
        count += 1
    return 0 if count == len(turns) or (isinstance(blamed, int) and blamed < count) else count


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


@register.simple_tag(takes_context=True)
def history_url(context: dict, target: Model) -> str:
    """The audit log, filtered to what concerns an object."""
    return f"{reverse('core:audit', args=[context['project'].slug])}?object={object_name(target)}"


@register.simple_tag(takes_context=True)
def sort_header(context: dict, sorting: Sorting, name: str, title: str, css: str = "") -> str:
    return header(sorting, name, title, context["request"].GET, css)


@register.inclusion_tag("_figure.html")
def chart(figure: dict, id: str) -> dict:
    return {"figure": figure, "id": id}


@register.inclusion_tag("_progress.html")
def bar(value: float) -> dict:
    return {"percent": round(value)}


@register.filter
def type_words(schema: Any) -> str:
    """The types that a JSON schema allows: string or null."""
    if not isinstance(schema, dict):
        return "any"
    parts = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(parts, list):
        return " or ".join(dict.fromkeys(type_words(part) for part in parts)) or "any"
    kind = schema.get("type", "any")
    return " or ".join(map(str, kind)) if isinstance(kind, list) else str(kind)
