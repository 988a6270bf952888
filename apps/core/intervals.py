"""Confidence intervals. Pure: no Django, no torch; no scipy either, whose statistics alone would double a web process."""

from __future__ import annotations

from math import sqrt
from statistics import NormalDist

LEVEL = 0.95


def wilson(successes: int, n: int, level: float = LEVEL) -> tuple[float, float]:
    """Wilson score interval of a proportion (Wilson 1927). (0, 1) for n = 0. Raises ValueError for more successes than n."""
    if not 0 <= successes <= n:
        raise ValueError(f"{successes} successes of {n}")
    if n == 0:
        return 0.0, 1.0
    z2, share = NormalDist().inv_cdf((1 + level) / 2) ** 2, successes / n
    centre = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = sqrt(z2 * (share * (1 - share) + z2 / (4 * n)) / n) / (1 + z2 / n)
    return (0.0 if successes == 0 else centre - half), (1.0 if successes == n else centre + half)
