"""How much a test tries: a part in the suite, all of it in `make proof`, which runs the tests
marked `more` again. Of a table, `more(rows=3)` says so (`conftest.keep_some_rows`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")
in_proof = False  # set before the tests are loaded


def amount(suite: T, proof: T) -> T:
    return proof if in_proof else suite


def few(rows: Sequence[T], count: int) -> Sequence[T]:
    """Of a table whose rows all go the same way: so many in the suite, from all over it."""
    return amount(rows[:: -(-len(rows) // count)], rows)
