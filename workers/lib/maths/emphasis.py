"""Removes Markdown around an answer. Pure."""

from __future__ import annotations

import re

MARKS = "*_`"
# A mark opens before and closes after a word, with nothing else next to it, so that 2**3 and 2*3*5
# stay powers and products.
_PAIR = re.compile(
    r"(?<![\w)}\]\\*.])(\*{1,3}|__)(?=[^\s*_])([^\n]{1,300}?)(?<=[^\s*_])\1(?![\w({\[\\*])"
    r"|(?<![\w`])`([^`\n]{1,300})`(?![\w`])"
)
_HEADING = re.compile(r"#{1,6}\s+")


def unmarked(text: str) -> str:
    """The text without bold, italics and code, and without a heading's mark at the start."""
    text = text.strip()
    if found := _HEADING.match(text):
        text = text[found.end() :]
    return _PAIR.sub(lambda m: m[2] or m[3], text).strip(MARKS + " \t\n")
