"""Calibrates a reward model's scores to probabilities, on pairs that it was not trained on. Pure.

`fit` is Platt scaling, p = 1 / (1 + e^−(slope · score + intercept)), with his smoothed targets,
fitted by Newton's method as in Lin, Lin and Weng (2007). The probability is that of being a chosen
answer among equally many chosen and rejected ones.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise

from msgspec import Struct

ROUNDS = 100
FOLDS = 5
RIDGE = 1e-10  # added to the Hessian's diagonal to make it invertible


class Calibration(Struct, forbid_unknown_fields=True, kw_only=True):
    """`threshold` applies to the raw score: at or above it an answer counts as good."""

    slope: float
    intercept: float
    threshold: float

    def probability(self, score: float) -> float:
        return _sigmoid(self.slope * score + self.intercept)


def fit(chosen: Sequence[float], rejected: Sequence[float]) -> Calibration:
    """Fit to scores of both sides, at least one each. A model that ranks the wrong way round gets
    the slope 0, which means no information.
    """
    scores = [*chosen, *rejected]
    spread = max(abs(score) for score in scores) or 1.0
    high, low = (len(chosen) + 1) / (len(chosen) + 2), 1 / (len(rejected) + 2)
    targets = [high] * len(chosen) + [low] * len(rejected)
    slope, intercept = _newton([score / spread for score in scores], targets)
    if slope <= 0:
        slope, intercept = 0.0, math.log(sum(targets) / (len(targets) - sum(targets)))
    return Calibration(
        slope=slope / spread, intercept=intercept, threshold=threshold(chosen, rejected)
    )


def _newton(scores: Sequence[float], targets: Sequence[float]) -> tuple[float, float]:
    """(slope, intercept) with the smallest cross-entropy. A step is halved until it improves it."""
    slope = intercept = 0.0
    loss = _loss(slope, intercept, scores, targets)
    for _ in range(ROUNDS):
        found = [_sigmoid(slope * score + intercept) for score in scores]
        errors = [p - target for p, target in zip(found, targets, strict=True)]
        weights = [p * (1 - p) for p in found]
        gradient = sum(e * s for e, s in zip(errors, scores, strict=True)), sum(errors)
        ss = sum(w * s * s for w, s in zip(weights, scores, strict=True)) + RIDGE
        s1, s0 = sum(w * s for w, s in zip(weights, scores, strict=True)), sum(weights) + RIDGE
        determinant = ss * s0 - s1 * s1
        step = (
            (s0 * gradient[0] - s1 * gradient[1]) / determinant,
            (ss * gradient[1] - s1 * gradient[0]) / determinant,
        )
        size = 1.0
        while size > 1e-10:
            tried = slope - size * step[0], intercept - size * step[1]
            if (less := _loss(*tried, scores, targets)) < loss:
                break
            size /= 2
        else:
            break
        (slope, intercept), loss = tried, less
    return slope, intercept


def _loss(
    slope: float, intercept: float, scores: Sequence[float], targets: Sequence[float]
) -> float:
    """Cross-entropy: log(1 + e^z) − t z."""
    return sum(
        max(z, 0.0) + math.log1p(math.exp(-abs(z))) - target * z
        for z, target in (
            (slope * score + intercept, target)
            for score, target in zip(scores, targets, strict=True)
        )
    )


def threshold(chosen: Sequence[float], rejected: Sequence[float]) -> float:
    """The score that separates the two sides best: it maximises the share of chosen answers at or
    above it plus that of rejected ones below it. Among equals the highest, because a bad answer
    that passes costs more. It lies halfway between two scores.
    """
    values, good, bad = sorted({*chosen, *rejected}), sorted(chosen), sorted(rejected)
    cuts = [values[0], *((low + high) / 2 for low, high in pairwise(values))]

    def right(cut: float) -> float:
        passed = (len(good) - bisect_left(good, cut)) / len(good)
        return passed + bisect_left(bad, cut) / len(bad)

    return max(cuts, key=lambda cut: (right(cut), cut))


def brier(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Mean squared error of the probabilities for (chosen, rejected) scores, each from a fit on the
    other folds; None for fewer than two pairs. Always predicting one half gives 0.25.
    """
    if len(pairs) < 2:
        return None
    folds = min(FOLDS, len(pairs))
    errors: list[float] = []
    for fold in range(folds):
        rest = [pair for at, pair in enumerate(pairs) if at % folds != fold]
        found = fit([good for good, _ in rest], [bad for _, bad in rest])
        for good, bad in pairs[fold::folds]:
            errors += [(1 - found.probability(good)) ** 2, found.probability(bad) ** 2]
    return sum(errors) / len(errors)


def _sigmoid(z: float) -> float:
    return 1 / (1 + math.exp(-z)) if z >= 0 else math.exp(z) / (1 + math.exp(z))
