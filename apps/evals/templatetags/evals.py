from __future__ import annotations

import json
import re
from typing import Any

from django import template

from apps.evals.holdout.leaks import JUDGED, Leak

register = template.Library()


@register.filter
def expected_words(expected: Any) -> str:
    """What is right, in one line."""
    if not isinstance(expected, dict):
        return ""
    if "calls" in expected:
        return "; ".join(map(expected_words, expected["calls"])) or "no call"
    if "tool" in expected:
        return f"{expected['tool']} {json.dumps(expected.get('args', {}), ensure_ascii=False)}"
    if "answer" in expected:
        answer = expected["answer"]
        return answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)
    return json.dumps(expected.get("constraint", expected), ensure_ascii=False)


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
        return "the same task, as a person judged"
    if leak.similarity >= 1:
        return "the same request"
    return f"{leak.similarity:.0%} alike" if leak.similarity else "of one group"


@register.filter
def without_id(detail: str) -> str:
    """What was looked at, for people: without the id that tells two evaluations of one name apart."""
    return re.sub(r" \([0-9a-f]{8}-[0-9a-f-]{27}\)$", "", detail)
