"""Times of projects in which the same is asked of many at once, as the alerts of all projects do
every minute: what each adds up to takes a statement for all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from apps.core.postgres import array


class Window(NamedTuple):
    """`filters`: (name, value) of those that are set, in their order, without times."""

    project: int
    filters: tuple[tuple[str, str], ...]
    begin: datetime
    end: datetime

    @property
    def given(self) -> dict[str, str]:
        """As an address has it."""
        times = {"from": self.begin.isoformat(), "to": self.end.isoformat()}
        return dict(self.filters) | times


def rows_of(rows: Iterable[Sequence[Any]], **kinds: str) -> tuple[str, list[str]]:
    """(SQL, values) of a FROM item `asked` with these rows, of columns of these names and types;
    `n` is the place of a row, from 1.
    """
    arrays = ", ".join(f"%s::{kind}[]" for kind in kinds.values())
    columns = list(zip(*rows, strict=True)) or [()] * len(kinds)
    values = [array(map(str, column)) for column in columns]
    return f"unnest({arrays}) WITH ORDINALITY AS asked({', '.join(kinds)}, n)", values
