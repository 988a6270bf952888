"""Paired differences between evaluations, with intervals that are corrected for how many are read
at once. Pure: numpy only.

Correction: Bonferroni's for simultaneous intervals (Dunn 1961, "Multiple comparisons among means",
JASA 56:52-64). Each of the m intervals of a table has the level 1 - 0.05 / m, so that all m cover
the true differences together in at least 95% of tables, however the differences depend on each
other (they share the baseline and the tasks).

Errors: of the mean over tasks, the samples of a task being averaged first; where tasks form groups
(template, session, user …), the larger one of that and of the error clustered by group (Liang &
Zeger 1986; for evaluations Miller 2024, 2411.00640).
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from apps.core.intervals import LEVEL, student, wilson

FEWEST = 10  # tasks below which there is no interval: Student's t needs a better known spread
Bounds = tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean over n tasks with its interval; None if n is too small."""

    mean: float | None
    low: float | None
    high: float | None
    n: int

    @property
    def sign(self) -> int:
        """1 or -1 if the interval lies above or below 0, otherwise 0: nothing is shown."""
        if self.low is None or self.high is None:
            return 0
        return 1 if self.low > 0 else -1 if self.high < 0 else 0

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def corrected(comparisons: int, level: float = LEVEL) -> float:
    """The level of each of this many intervals so that they hold simultaneously at `level`
    (Bonferroni).
    """
    return 1 - (1 - level) / max(1, comparisons)


def difference(
    before: np.ndarray,
    after: np.ndarray,
    groups: np.ndarray | None = None,
    *,
    level: float = LEVEL,
    span: float | None = None,
) -> Mean:
    """The mean of after - before over the tasks that both know. `before`, `after`: [tasks], NaN if
    a task has no value; `groups`: [tasks], numbers. `span`: the largest difference there can be, 1
    for rates."""
    with np.errstate(invalid="ignore"):  # infinite values are not known either
        gaps = after - before
    return mean_of(gaps, groups, level=level, bounds=None if span is None else (-span, span))


def mean_of(
    values: np.ndarray,
    groups: np.ndarray | None = None,
    *,
    level: float = LEVEL,
    bounds: Bounds = None,
) -> Mean:
    """The mean of the tasks' values that are known, with Student's t interval, cut to `bounds`;
    none below FEWEST tasks.

    Where all values are equal the spread says nothing. With bounds, the tasks not seen may have any
    value: as many of them as Wilson's interval allows for n of n (the share that would be
    otherwise) count as the bound. Without, there is no interval.
    """
    known = np.isfinite(values)
    found = values[known]
    n = len(found)
    if n == 0:
        return Mean(None, None, None, 0)
    mean = float(found.mean())
    if n < FEWEST:
        return Mean(mean, None, None, n)
    if float(np.ptp(found)) < 1e-12:
        if bounds is None:
            return Mean(mean, None, None, n)
        rest = 1 - wilson(n, n, level)[0]
        return Mean(mean, mean + rest * (bounds[0] - mean), mean + rest * (bounds[1] - mean), n)
    half = max(
        _student(freedom, level) * error
        for error, freedom in _errors(found, None if groups is None else groups[known])
    )
    low, high = mean - half, mean + half
    if bounds:
        low, high = max(low, bounds[0]), min(high, bounds[1])
    return Mean(mean, low, high, n)


def _errors(values: np.ndarray, groups: np.ndarray | None) -> list[tuple[float, int]]:
    """(standard error, degrees of freedom) over tasks and, where they form groups, over those."""
    n = len(values)
    found = [(float(values.std(ddof=1)) / math.sqrt(n), n - 1)]
    if groups is not None:
        codes = np.unique(groups, return_inverse=True)[1]
        count = int(codes.max()) + 1
        if 1 < count < n:
            sums = np.bincount(codes, values - values.mean())
            found.append((math.sqrt(float(sums @ sums) * count / (count - 1)) / n, count - 1))
    return found


@lru_cache(4096)
def _student(freedom: int, level: float) -> float:
    return student(freedom, level)


@lru_cache(256)
def _chances(most: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    """[samples + 1, passes + 1] both: pass@k and pass^k of a task, NaN for fewer than k samples."""
    at_least, every = np.full((2, most + 1, most + 1), np.nan)
    for n in range(k, most + 1):
        total = math.comb(n, k)
        for c in range(n + 1):
            at_least[n, c], every[n, c] = 1 - math.comb(n - c, k) / total, math.comb(c, k) / total
    return at_least, every


def pass_at(scored: np.ndarray, passed: np.ndarray, k: int) -> np.ndarray:
    """Each task's unbiased pass@k, that one of k samples passes (Chen et al. 2021, 2107.03374),
    [tasks]; NaN below k samples.
    """
    return _chances(int(scored.max(initial=0)), k)[0][scored, passed]


def pass_hat(scored: np.ndarray, passed: np.ndarray, k: int) -> np.ndarray:
    """Each task's unbiased pass^k, that k of k samples pass: C(c, k) / C(n, k) (Yao et al. 2024,
    2406.12045), [tasks].
    """
    return _chances(int(scored.max(initial=0)), k)[1][scored, passed]
