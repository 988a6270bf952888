"""Sets of words, and how much of a text is looked at. Pure."""

from __future__ import annotations

LOOKED_AT = 1500  # characters of one message


def word_set(text: str) -> frozenset[str]:
    return frozenset(text.split())
