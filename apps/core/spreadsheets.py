"""What a spreadsheet may be given. Pure."""

from __future__ import annotations

FORMULA = ("=", "+", "-", "@", "\t", "\r")
LONGEST_CELL = 32_000


def as_text(value: str) -> str:
    """What a spreadsheet would run as a formula gets an apostrophe."""
    return f"'{value}" if value.startswith(FORMULA) else value


def cell(value: object) -> object:
    """No formula, and long texts are cut."""
    return as_text(value)[:LONGEST_CELL] if isinstance(value, str) else value
