"""Confidence intervals. Pure: no Django, no torch; no scipy either, whose statistics alone would
double a web process.
"""

from __future__ import annotations

import math
from math import sqrt
from statistics import NormalDist

LEVEL = 0.95


def wilson(successes: int, n: int, level: float = LEVEL) -> tuple[float, float]:
    """Wilson score interval of a proportion (Wilson 1927). (0, 1) for n = 0. Raises ValueError for
    more successes than n.
    """
    if not 0 <= successes <= n:
        raise ValueError(f"{successes} successes of {n}")
    if n == 0:
        return 0.0, 1.0
    z2, share = NormalDist().inv_cdf((1 + level) / 2) ** 2, successes / n
    centre = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = sqrt(z2 * (share * (1 - share) + z2 / (4 * n)) / n) / (1 + z2 / n)
    return (0.0 if successes == 0 else centre - half), (1.0 if successes == n else centre + half)


EXACT = 30  # degrees of freedom, up to which Student's quantile is solved for


def student(df: int, level: float = LEVEL) -> float:
    """Two-sided quantile of Student's t, to 0.1% at any level: solved from the closed form of the
    distribution up to EXACT degrees of freedom, else the expansion of Abramowitz & Stegun 26.7.5.
    It spares the web process scipy.
    """
    z = NormalDist().inv_cdf((1 + level) / 2)
    if df > EXACT:
        terms = (
            (z**3 + z) / 4,
            (5 * z**5 + 16 * z**3 + 3 * z) / 96,
            (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
            (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
        )
        return z + sum(term / df**power for power, term in enumerate(terms, 1))
    low, high = 0.0, math.pi / 2  # of the angle whose tangent is t / sqrt(df)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, df) < level else (low, middle)
    return sqrt(df) * math.tan(low)


def _within(angle: float, df: int) -> float:
    """P(|t| < sqrt(df) tan(angle)) of Student's t, by the finite sums of Abramowitz & Stegun 26.7.3
    and 26.7.4.
    """
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = df % 2
    term, total = (cosine, cosine if df > 1 else 0.0) if odd else (1.0, 1.0)
    for n in range(3 if odd else 2, df - 1, 2):
        term *= cosine * cosine * ((n - 1) / n)
        total += term
    return (angle + sine * total) * 2 / math.pi if odd else sine * total


def newcombe(
    before: tuple[int, int], after: tuple[int, int], level: float = LEVEL
) -> tuple[float, float]:
    """Interval of the difference of two shares, after - before, of (successes, n) each: Newcombe's
    method 10 (1998), from the Wilson intervals of both. Both n above 0."""
    (low1, high1), (low2, high2) = wilson(*before, level), wilson(*after, level)
    p1, p2 = before[0] / before[1], after[0] / after[1]
    below, above = (
        sqrt((p2 - low2) ** 2 + (high1 - p1) ** 2),
        sqrt((high2 - p2) ** 2 + (p1 - low1) ** 2),
    )
    return max(-1.0, p2 - p1 - below), min(1.0, p2 - p1 + above)


def newcombe_paired(
    both: int, only_before: int, only_after: int, neither: int, level: float = LEVEL
) -> tuple[float, float]:
    """Interval of the difference of two shares of the same n, after - before: Newcombe's method 10
    for paired data (1998, Statistics in Medicine 17:2635), with his continuity correction of phi.
    n above 0.
    """
    n = both + only_before + only_after + neither
    before, after = both + only_before, both + only_after
    (low1, high1), (low2, high2) = wilson(before, n, level), wilson(after, n, level)
    p1, p2 = before / n, after / n
    product = both * neither - only_before * only_after
    if product > 0:
        product = max(product - n / 2, 0.0)
    margins = before * (n - before) * after * (n - after)
    phi = product / sqrt(margins) if margins else 0.0

    def width(one: float, other: float) -> float:
        return sqrt(max(0.0, one**2 - 2 * phi * one * other + other**2))

    low = p2 - p1 - width(p2 - low2, high1 - p1)
    return max(-1.0, low), min(1.0, p2 - p1 + width(high2 - p2, p1 - low1))


def exact(successes: float, n: float, level: float = LEVEL) -> tuple[float, float]:
    """Clopper–Pearson interval of a proportion (1934): never covers less than `level`. Counts may
    be effective sizes, so no whole numbers (Korn & Graubard 1998). (0, 1) for n = 0. Raises
    ValueError for more successes than n.
    """
    if not 0 <= successes <= n:
        raise ValueError(f"{successes} successes of {n}")
    if n == 0:
        return 0.0, 1.0
    tail = (1 - level) / 2
    low = 0.0 if successes == 0 else _beta_quantile(tail, successes, n - successes + 1)
    high = 1.0 if successes == n else _beta_quantile(1 - tail, successes + 1, n - successes)
    return low, high


def _beta_quantile(share: float, a: float, b: float) -> float:
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if _beta_cdf(middle, a, b) < share else (low, middle)
    return (low + high) / 2


def _beta_cdf(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function by its continued fraction (Abramowitz & Stegun
    26.5.8, Lentz's method).
    """
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1.0 - _beta_cdf(1 - x, b, a)
    front = (
        math.exp(
            math.lgamma(a + b)
            - math.lgamma(a)
            - math.lgamma(b)
            + a * math.log(x)
            + b * math.log1p(-x)
        )
        / a
    )
    tiny, c, d = 1e-300, 1.0, 1.0 / (1.0 - (a + b) * x / (a + 1) or 1e-300)
    fraction = d
    for m in range(1, 500):
        for numerator in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1.0 / (1.0 + numerator * d or tiny)
            c = 1.0 + numerator / c or tiny
            fraction *= c * d
        if abs(c * d - 1.0) < 1e-12:
            break
    return front * fraction
