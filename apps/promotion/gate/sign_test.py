"""Exact sign tests: is the candidate worse on more tasks than chance explains? Pure."""

from __future__ import annotations

import math


def sign_test(more: int, fewer: int) -> float:
    """P(at least `more` heads of `more` + `fewer` fair coins)."""
    tosses = more + fewer
    return sum(_chance(heads, tosses) for heads in range(more, tosses + 1))


def sign_test_at_any_time(more: int, fewer: int) -> float:
    """The same, however often one looks: 1 / the capital of a gambler whose coin has any chance of
    heads from 1/2 to 1.

    The integral over these is a beta function times a tail of the beta distribution, which is one
    of the binomial.
    """
    tosses = more + fewer
    tail = sum(_chance(heads, tosses + 1) for heads in range(more + 1))
    return min(1.0, (tosses + 1) * _chance(more, tosses) / (2 * tail))


def _chance(heads: int, tosses: int) -> float:
    """Of so many heads of fair coins, by logarithms: 2 ** 2,000 is no float."""
    ways = math.lgamma(tosses + 1) - math.lgamma(heads + 1) - math.lgamma(tosses - heads + 1)
    return math.exp(ways - tosses * math.log(2))
