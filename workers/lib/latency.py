"""Latencies of two models on the same tasks, measured in turns: the ratio of a quantile, bootstrapped over tasks. Light."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

DRAWS = 1000


@dataclass(frozen=True)
class Ratio:
    """candidate ÷ baseline of a quantile, with an interval that errs with `error` on each side."""

    baseline: float
    candidate: float
    low: float
    high: float

    @property
    def value(self) -> float:
        return self.candidate / self.baseline


def quantile_ratio(
    baseline: Sequence[Sequence[float]], candidate: Sequence[Sequence[float]], quantile: float, *, error: float,
    draws: int = DRAWS, seed: int = 0,
) -> Ratio:  # fmt: skip
    """`baseline[i]` and `candidate[i]` are the milliseconds of task i, above 0. Percentile bootstrap: whole tasks are drawn,
    both sides of a task together, since answers to one task are alike. Raises ValueError for no task."""
    if not baseline or len(baseline) != len(candidate):
        raise ValueError("Both sides must have the same tasks, at least one.")
    sides = [_padded(side) for side in (baseline, candidate)]
    chosen = np.random.default_rng(seed).integers(0, len(baseline), (draws, len(baseline)))
    drawn = [np.nanquantile(side[chosen].reshape(draws, -1), quantile, axis=1) for side in sides]
    whole = [float(np.nanquantile(side, quantile)) for side in sides]
    low, high = np.quantile(drawn[1] / drawn[0], [error, 1 - error])
    return Ratio(whole[0], whole[1], float(low), float(high))


def _padded(side: Sequence[Sequence[float]]) -> np.ndarray:
    """[tasks, most answers of a task], NaN where a task has fewer."""
    found = np.full((len(side), max(map(len, side))), np.nan)
    for row, values in zip(found, side, strict=True):
        row[: len(values)] = values
    return found
