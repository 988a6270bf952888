"""What PostgreSQL and UTF-8 cannot hold: NUL, halves of surrogate pairs, and in JSON numbers that
are not finite (1e999). No page and no operation of the API takes it. Pure.

What is read row by row (trajectories, tasks, answers) does not come here: there a bad character
costs its row only, or is replaced.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite
from typing import Any

from workers.lib.storable import is_storable, storable
from workers.lib.typed import FormError, joined

PROBLEM = "has a character that cannot be stored (NUL, or half of a surrogate pair)"
NOT_FINITE = "is not a finite number"
SHOWN = 200  # characters of a name


def refuse_unstorable(value: Any) -> None:
    """Raises FormError with the path of the first text, key or number of a JSON value that cannot
    be stored.
    """
    if found := _first_problem(value):
        steps, problem = found
        path = [step if isinstance(step, int) else _shown(step) for step in steps]
        raise FormError(joined("", path), problem)


def refuse_unstorable_fields(fields: Iterable[tuple[str, Iterable[str]]]) -> None:
    """As `refuse_unstorable`, for the fields of a form, a query or an address: (name, values)."""
    for name, values in fields:
        if not all(map(is_storable, (name, *values))):
            raise FormError(_shown(name), PROBLEM)


def _first_problem(value: Any) -> tuple[list[str | int], str] | None:
    """(path, what is wrong)"""
    if isinstance(value, str):
        return None if is_storable(value) else ([], PROBLEM)
    if isinstance(value, float):
        return None if isfinite(value) else ([], NOT_FINITE)
    inner: Iterable[tuple[str | int, Any]] = ()
    if isinstance(value, dict):
        inner = value.items()
    elif isinstance(value, list):
        inner = enumerate(value)
    for step, item in inner:
        if isinstance(step, str) and not is_storable(step):
            return [step], PROBLEM
        if found := _first_problem(item):
            return [step, *found[0]], found[1]
    return None


def _shown(name: str) -> str:
    return storable(name)[:SHOWN]
