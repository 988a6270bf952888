"""Latencies of two models, measured alternately on the same tasks: their ratio, bootstrapped over
tasks. Light.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

DRAWS = 1000


@dataclass(frozen=True)
class Ratio:
    """candidate ÷ baseline, with an interval whose error is `error` on each side, and both sides'
    own quantile for display.
    """

    baseline: float
    candidate: float
    value: float
    low: float
    high: float


def typical_ratio(
    baseline: Sequence[Sequence[float]],
    candidate: Sequence[Sequence[float]],
    *,
    error: float,
    draws: int = DRAWS,
    seed: int = 0,
) -> Ratio:
    """The median over tasks of each task's ratio of the geometric means of its answers. Answers to
    one task come right after each other, so a temporary slowdown of the machine cancels out before
    tasks are compared. See `quantile_ratio`.
    """
    _check(baseline, candidate)
    logs = [
        np.array([np.log(answers).mean() for answers in side]) for side in (baseline, candidate)
    ]
    ratios = logs[1] - logs[0]
    chosen = np.random.default_rng(seed).integers(0, len(ratios), (draws, len(ratios)))
    low, high = np.exp(np.quantile(np.median(ratios[chosen], axis=1), [error, 1 - error]))
    shown = [
        float(np.median(np.concatenate([np.asarray(answers) for answers in side])))
        for side in (baseline, candidate)
    ]
    return Ratio(shown[0], shown[1], float(np.exp(np.median(ratios))), float(low), float(high))


def quantile_ratio(
    baseline: Sequence[Sequence[float]],
    candidate: Sequence[Sequence[float]],
    quantile: float,
    *,
    error: float,
    draws: int = DRAWS,
    seed: int = 0,
) -> Ratio:
    """The ratio of quantiles. `baseline[i]` and `candidate[i]` are the milliseconds of task i,
    above 0. Percentile bootstrap over whole tasks, both sides together, since answers to one task
    are alike. Raises ValueError if there are no tasks.
    """
    _check(baseline, candidate)
    sides = [_padded(side) for side in (baseline, candidate)]
    chosen = np.random.default_rng(seed).integers(0, len(baseline), (draws, len(baseline)))
    drawn = [_quantiles(side[chosen].reshape(draws, -1), quantile) for side in sides]
    whole = [float(np.nanquantile(side, quantile)) for side in sides]
    low, high = np.quantile(drawn[1] / drawn[0], [error, 1 - error])
    return Ratio(whole[0], whole[1], whole[1] / whole[0], float(low), float(high))


def _check(baseline: Sequence[Sequence[float]], candidate: Sequence[Sequence[float]]) -> None:
    if not baseline or len(baseline) != len(candidate):
        raise ValueError("Both sides must have the same tasks, at least one.")


def _quantiles(rows: np.ndarray, quantile: float) -> np.ndarray:
    """A quantile of each row without its NaN. NumPy is fifty times as slow if it has to look for
    NaN.
    """
    return (np.nanquantile if np.isnan(rows).any() else np.quantile)(rows, quantile, axis=1)


def _padded(side: Sequence[Sequence[float]]) -> np.ndarray:
    """[tasks, most answers of a task], NaN if a task has fewer."""
    found = np.full((len(side), max(map(len, side))), np.nan)
    for row, values in zip(found, side, strict=True):
        row[: len(values)] = values
    return found
