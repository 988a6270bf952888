from __future__ import annotations

import json
import re
from collections.abc import Sized
from typing import Any

from django import template

from apps.evals import editing
from apps.evals.comparison.measures import MS, RATE, TOKENS, USD
from apps.evals.holdout.groups import JUDGED
from apps.evals.holdout.leaks import Leak
from apps.evals.paired import Mean
from apps.evals.samples.transcript import request_of

register = template.Library()


@register.filter
def expected_words(expected: Any) -> str:
    """The expected answer in one line."""
    if not isinstance(expected, dict):
        return ""
    if "calls" in expected:
        none = "no change" if "lookups" in expected else "no call"
        return "; ".join(map(expected_words, expected["calls"])) or none
    if "tool" in expected:
        return f"{expected['tool']} {json.dumps(expected.get('args', {}), ensure_ascii=False)}"
    if "rubric" in expected:
        return " ".join(str(expected["rubric"]).split())
    if "answer" in expected:
        answer = expected["answer"]
        return answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)
    return json.dumps(expected.get("constraint", expected), ensure_ascii=False)


@register.filter
def request_words(messages: list[dict[str, Any]]) -> str:
    return request_of(messages)


@register.filter
def task_tags(metadata: dict[str, Any]) -> list[str]:
    return editing.tags_of(metadata)


@register.filter
def side(change: Any, name: str) -> list[tuple[str, Any]]:
    """(field, value) of one side of a change: what differs, or of a whole task what it says."""
    task = getattr(change, name)
    shown = change.fields or ("messages", "expected", "split")
    return [(field, getattr(task, field)) for field in shown] if task is not None else []


@register.filter
def near(leak: Leak) -> str:
    """Why two tasks count as one."""
    if leak.why == JUDGED:
        return "the same task, as decided by a person"
    if leak.similarity >= 1:
        return "the same request"
    return f"{leak.similarity:.0%} alike" if leak.similarity else "of the same group"


@register.filter
def without_id(detail: str) -> str:
    """The detail of a view, for people: without the id that distinguishes evaluations of the same
    name.
    """
    return re.sub(r" \([0-9a-f]{8}-[0-9a-f-]{27}\)$", "", detail)


@register.filter
def measured(value: float | None, unit: str) -> str:
    """A value of a comparison's measure."""
    if value is None:
        return "–"
    if unit == RATE:
        return f"{value:.1%}"
    if unit in (MS, TOKENS):
        return f"{value:,.0f}{' ms' if unit == MS else ''}"
    return f"${value:,.3g}" if unit == USD else f"{value:+.3f}"


@register.filter
def gap(value: float | None, unit: str) -> str:
    """A difference of a comparison's measure; of rates in percentage points."""
    if value is None:
        return "–"
    if unit == RATE:
        return f"{100 * value:+.1f} pp"
    return (
        f"{value:+,.{0 if abs(value) >= 100 else 1}f}"
        if unit in (MS, TOKENS)
        else f"{value:+.3g}"
        if unit == USD
        else f"{value:+.3f}"
    )


@register.filter
def interval(found: Mean, unit: str) -> str:
    """Of a difference, without its unit."""
    if found.low is None:
        return f"n = {found.n:,}"
    low, high = (gap(end, unit).removesuffix(" pp") for end in (found.low, found.high))
    return f"[{low}, {high}]"


@register.filter
def times(count: int, lines: Sized) -> int:
    """How many differences a table has: of so many evaluations, on each of its lines."""
    return count * len(lines)
