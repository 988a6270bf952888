"""What a spreadsheet may be given. Pure."""

from __future__ import annotations

FORMULA = ("=", "+", "-", "@", "\t", "\r")
LONGEST_CELL = 32_000


def cell(value: object) -> object:
    """What a spreadsheet would run as a formula gets an apostrophe; long texts are cut."""
    if not isinstance(value, str):
        return value
    return f"'{value}"[:LONGEST_CELL] if value.startswith(FORMULA) else value[:LONGEST_CELL]
