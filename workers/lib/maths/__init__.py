"""Whether two answers are mathematically equal. Light: sympy runs in helper processes (`python -m
workers.maths`).
"""

from __future__ import annotations

import os
from functools import lru_cache

from workers.lib.helpers import HelperError, Helpers, TooMuch, helpers_of

__all__ = ["LONGEST", "HelperError", "TooMuch", "compare", "helpers", "problem_of"]
CPU_SECONDS = 4.0  # per comparison
LONGEST = 1000  # characters per answer


def helpers() -> Helpers:
    """The helpers of this process, FLYWHEEL_MATHS_PROCESSES (2)."""
    size = int(os.environ.get("FLYWHEEL_MATHS_PROCESSES", "2"))
    seconds = float(os.environ.get("FLYWHEEL_MATHS_CPU_SECONDS", CPU_SECONDS))
    return helpers_of("workers.maths", size, seconds)


@lru_cache(maxsize=4096)
def compare(gold: str, given: str, positive: bool = False) -> tuple[bool, str]:
    """(whether the answer equals the gold one, if not why). Raises ValueError for a gold answer
    that cannot be parsed.
    """
    if problem := problem_of(gold):
        raise ValueError(problem)
    if len(given) > LONGEST:
        return False, f"the answer has {len(given):,} characters; {LONGEST:,} are allowed"
    try:
        found = helpers().ask({"gold": gold, "given": given, "positive": positive})
    except TooMuch as error:
        return False, f"the answer {error} to compare"
    if left := found.get("undone"):
        return False, f"not evaluated: {given[:80]!r} leaves {' and '.join(left)} to be computed"
    return found.get("same", False), (
        f"not one clear answer: {found['given']}" if "given" in found else ""
    )


@lru_cache(maxsize=4096)
def problem_of(gold: str) -> str:
    """What is wrong with a gold answer; "" if it can be parsed."""
    if len(gold) > LONGEST:
        return f"has {len(gold):,} characters; {LONGEST:,} are allowed"
    try:
        return helpers().ask({"gold": gold}).get("gold", "")
    except TooMuch as error:
        return f"{error} to compare"
