"""Ratings that a run contains, in forms that machines write: whatever the language. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from workers.lib.messages import json_of

LONGEST = 2000  # characters of a message that may hold a rating
LOWER = 0.4  # of a scale: two of five stars
NAMES = frozenset(
    [
        "rating",
        "score",
        "stars",
        "thumbs",
        "thumb",
        "vote",
        "csat",
        "feedback",
        "helpful",
        "satisfied",
    ]
)
BAD = frozenset(
    [
        "bad",
        "poor",
        "negative",
        "down",
        "thumbs_down",
        "thumbsdown",
        "thumbs-down",
        "dislike",
        "no",
        "false",
        "unhelpful",
        "not_helpful",
        "👎",
    ]
)
_OF = re.compile(
    r"(?<![\d.,/])(\d{1,2})\s?(?:/\s?|[^\W\d]{1,6}\s|[^\W\d]{1,2})(5|10)(?![\d/.,]*\d)"
)
_STARS = re.compile(r"★{1,2}☆{3,4}|☆{5}")
_OBJECT = re.compile(r"\{[^{}]*\}")
_FRAME = re.compile(r"^\s*[\[(【<{][^\n]{1,40}[\])】>}]")


def bad_rating(text: str) -> str:
    """The rating in a message if it is at the lower end of its scale; else empty."""
    text = text[:LONGEST]
    if "👎" in text:
        return "👎"
    if found := _STARS.search(text):
        return found.group()
    framed = _FRAME.match(text)
    for number, scale in _OF.findall(text[:80]) if framed else ():
        if int(number) <= LOWER * int(scale):
            return text[:80]
    return next((f"{name}: {value}" for name, value in _rated(text) if _is_bad(value)), "")


def _rated(text: str) -> Iterator[tuple[str, Any]]:
    for found in _OBJECT.findall(text):
        item = json_of(found) or {}
        yield from ((name, item[name]) for name in NAMES & item.keys())


def _is_bad(value: Any) -> bool:
    """Numbers are bad at 0 and below: what their scale is, is not said."""
    if isinstance(value, str):
        return value.strip().casefold() in BAD
    return isinstance(value, int | float) and value <= 0
