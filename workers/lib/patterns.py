"""Regular expressions written by users and models: RE2 only, whose time is linear in the text.

RE2 may still take a step for each part of the pattern and each byte of the text, so both are
bounded.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import re2

from workers.lib.errors import SpecError

LONGEST = 200_000  # characters of a text that are searched
MAX_PATTERN = 2_000  # characters
MAX_PROGRAM = 10_000  # RE2's instructions
MAX_WORK = 300_000_000  # instructions × bytes; the worst pattern takes a second or two for that


class PatternError(ValueError):
    """A pattern that cannot be run, and why."""


@lru_cache(maxsize=1024)
def compiled(text: str, *, case: bool = True) -> Any:
    """An RE2 pattern over UTF-8 bytes; `.` does not match newlines unless the pattern says (?s).
    Raises PatternError.
    """
    if len(text) > MAX_PATTERN:
        raise PatternError(f"has {len(text):,} characters; {MAX_PATTERN:,} are allowed")
    chosen = re2.Options()
    chosen.log_errors, chosen.case_sensitive = False, case
    try:
        found = re2.compile(text.encode("utf-8", "replace"), chosen)
    except re2.error as error:
        raise PatternError(f"is not an RE2 pattern: {_words(error)}") from error
    if found.programsize > MAX_PROGRAM:
        raise PatternError(
            f"takes {found.programsize:,} steps, its repetitions written out; {MAX_PROGRAM:,} are"
            " allowed"
        )
    return found


def pattern_of(text: str | None, where: str, *, case: bool = True) -> Any:
    """The compiled pattern; None for None. Raises SpecError."""
    try:
        return None if text is None else compiled(text, case=case)
    except PatternError as error:
        raise SpecError(f"“{where}” {error}.") from error


def as_bytes(text: str, pattern: Any = None) -> bytes:
    """The text as a pattern searches it. Raises PatternError if that could take too long."""
    raw = text[:LONGEST].encode("utf-8", "replace")
    if pattern is not None and len(raw) * pattern.programsize > MAX_WORK:
        raise PatternError(
            f"The pattern, of {pattern.programsize:,} steps, is too large for a text of"
            f" {len(raw):,} bytes."
        )
    return raw


def _words(error: Exception) -> str:
    said = error.args[0] if error.args else error
    return said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)
