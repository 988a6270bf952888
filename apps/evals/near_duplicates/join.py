"""Joins of many sets with many: which pairs share a band, and how much they overlap, exactly. Pure,
numpy and scipy.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Protocol

import numpy as np
from scipy import sparse

from apps.evals.near_duplicates.minhash import BANDS, chunks

PAIRS = 500_000  # pairs processed at a time


class Side(Protocol):
    """Many sets, one per row."""

    sizes: np.ndarray  # (rows,) int64
    bands: np.ndarray  # (rows, BANDS) int64


def candidates(
    a: Side, b: Side, threshold: float, within: bool
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Rows of a and of b that share a band, in chunks; each pair occurs once, at the first band
    that it shares.

    Sets whose sizes differ so much that their Jaccard index cannot reach the threshold are left
    out. `within`: a is b, i < j.
    """
    rows = np.flatnonzero(a.sizes), np.flatnonzero(b.sizes)
    for band in range(BANDS):
        for i, j in _joined(a.bands[rows[0], band], b.bands[rows[1], band]):
            i, j = rows[0][i], rows[1][j]
            small, large = np.minimum(a.sizes[i], b.sizes[j]), np.maximum(a.sizes[i], b.sizes[j])
            fits = (small >= threshold * large) & ((i < j) | (not within))
            i, j = i[fits], j[fits]
            new = ~(a.bands[i, :band] == b.bands[j, :band]).any(axis=1)
            yield i[new], j[new]


def _joined(left: np.ndarray, right: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Positions of equal keys in both, at most about PAIRS at a time (more only for one key of
    `left`).
    """
    order = np.argsort(right, kind="stable")
    ranked = right[order]
    begin, end = np.searchsorted(ranked, left, "left"), np.searchsorted(ranked, left, "right")
    counts = end - begin
    hits = np.flatnonzero(counts)
    for chunk in chunks(hits.tolist(), counts[hits].tolist(), PAIRS):
        many = counts[chunk]
        offsets = np.arange(many.sum()) - np.repeat(np.cumsum(many) - many, many)
        yield np.repeat(chunk, many), order[np.repeat(begin[chunk], many) + offsets]


class Overlap:
    """Jaccard indices of many pairs of sets: two sparse 0/1 matrices over one vocabulary."""

    def __init__(self, a: Sequence[Iterable[Hashable]], b: Sequence[Iterable[Hashable]]) -> None:
        columns: dict[Hashable, int] = {}
        rows = [
            [[columns.setdefault(item, len(columns)) for item in one] for one in side]
            for side in (a, b)
        ]
        self.a, self.b = (_matrix(side, len(columns)) for side in rows)
        self.sizes = [np.array([len(one) for one in side], dtype=np.int64) for side in rows]

    def jaccard(self, i: np.ndarray, j: np.ndarray) -> np.ndarray:
        """The Jaccard index of row i of a and row j of b, for each; 1 if both sets are empty."""
        both = np.asarray(self.a[i].multiply(self.b[j]).sum(axis=1)).ravel()
        either = self.sizes[0][i] + self.sizes[1][j] - both
        return np.where(either > 0, both / np.maximum(either, 1), 1.0)


def _matrix(rows: list[list[int]], columns: int) -> sparse.csr_matrix:
    starts = np.concatenate([[0], np.cumsum([len(row) for row in rows], dtype=np.int64)])
    flat = np.fromiter(
        (column for row in rows for column in row), dtype=np.int32, count=int(starts[-1])
    )
    made = sparse.csr_matrix(
        (np.ones(len(flat), dtype=np.int32), flat, starts), shape=(len(rows), max(columns, 1))
    )
    made.sort_indices()
    return made
