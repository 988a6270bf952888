"""Confidence intervals. Pure: no Django, no torch."""

from __future__ import annotations

from scipy.stats import binomtest

LEVEL = 0.95


def wilson(successes: int, n: int, level: float = LEVEL) -> tuple[float, float]:
    """Wilson score interval of a proportion (Wilson 1927). (0, 1) for n = 0."""
    if n == 0:
        return 0.0, 1.0
    interval = binomtest(successes, n).proportion_ci(confidence_level=level, method="wilson")
    return float(interval.low), float(interval.high)
