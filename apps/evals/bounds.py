"""Confidence bounds for means of few or rare events, without a normal approximation. Pure: numpy
only.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from functools import lru_cache

import numpy as np

GRID = 2001  # candidate means; a bound is accurate to 1/2000 of the range
PRIOR = 0.05  # prior variance: events are assumed to be rare, which costs little if they are not
CAP = 0.99  # share of the largest bet that cannot lose everything


def upper_bound(
    values: Mapping[str, float],
    alpha: float,
    low: float,
    high: float,
    *,
    always_valid: bool = False,
) -> float:
    """One-sided (1 − alpha) upper confidence bound of the mean of independent values in [low,
    high].

    The capital of a gambler who bets that the mean is lower than m; m is excluded once the capital
    exceeds 1/alpha (Waudby-Smith & Ramdas 2024, 2010.09686, with their predictable plug-in bets).
    Valid for every n and every distribution: thirty tasks without an event give about
    ln(1/alpha)/n, not 0. With `always_valid` it holds for every n simultaneously, so one may check
    after each task and stop at any time. Values are read in `fixed_order`. Never below the values'
    own mean, which the bets could exclude in an unlucky order.
    """
    if not values:
        return high
    shares = tuple((values[key] - low) / (high - low) for key in fixed_order(values))
    return min(high, low + (high - low) * _upper(shares, alpha, always_valid))


@lru_cache(512)  # a report computes the same bound more than once, usually with no events at all
def _upper(shares: tuple[float, ...], alpha: float, always_valid: bool) -> float:
    x, means = np.array(shares), np.linspace(0.0, 1.0, GRID)
    kept = _log_capital(x, means, alpha, always_valid) < math.log(1 / alpha)
    return max(float(means[kept].max()) if kept.any() else 0.0, float(x.mean()))


def fixed_order(keys: Iterable[str]) -> list[str]:
    """An order that depends only on the keys: by their hash. Stopping early means stopping after a
    prefix of it.
    """
    return sorted(keys, key=lambda key: hashlib.blake2b(key.encode(), digest_size=8).digest())


def lower_bound(
    values: Mapping[str, float],
    alpha: float,
    low: float,
    high: float,
    *,
    always_valid: bool = False,
) -> float:
    """One-sided lower bound, see `upper_bound`."""
    return -upper_bound(
        {key: -value for key, value in values.items()},
        alpha,
        -high,
        -low,
        always_valid=always_valid,
    )


def _log_capital(x: np.ndarray, means: np.ndarray, alpha: float, always_valid: bool) -> np.ndarray:
    """[GRID]: the log of the capital after all of x, [n] in [0, 1]; with `always_valid` the largest
    value it ever had.
    """
    count = np.arange(1, len(x) + 1)
    average = (0.5 + np.cumsum(x)) / (count + 1)
    variance = (PRIOR + np.cumsum((x - average) ** 2)) / (count + 1)
    before = np.concatenate([[PRIOR], variance[:-1]])  # a bet depends only on earlier values
    horizon = count * np.log1p(count) if always_valid else np.full(len(x), float(len(x)))
    bets = np.sqrt(2 * math.log(1 / alpha) / (before * horizon))
    largest = CAP / np.maximum(1 - means, 1e-9)
    capital, most = np.zeros(GRID), np.full(GRID, -np.inf)
    for value, bet in zip(x, bets, strict=True):
        capital += np.log1p(-np.minimum(bet, largest) * (value - means))
        if always_valid:
            np.maximum(most, capital, out=most)
    return most if always_valid else capital
