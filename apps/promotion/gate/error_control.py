"""How often the gate may be wrong over all comparisons, and how many tasks show an effect. Pure."""

from __future__ import annotations

import math
from itertools import count
from statistics import NormalDist

POWER = 0.8


def level_of(comparison: int, alpha: float) -> float:
    """The error that the k-th comparison on the same tasks may make: alpha / (k (k + 1)).

    Alpha spending (Foster & Stine 2008; online Bonferroni): the levels of all comparisons, however
    many, add up to alpha, so the chance that any model which is not better is promoted stays at
    most alpha. Candidates may be chosen by what earlier comparisons said as long as that was only
    “not better” (the argument of the Ladder, Blum & Hardt 2015: until the first promotion there is
    one path); each view of outputs reveals more, which is why views are counted beside it. Raises
    ValueError for a comparison below 1.
    """
    if comparison < 1:
        raise ValueError(f"comparisons are counted from 1, got {comparison}")
    return alpha / (comparison * (comparison + 1))


def tasks_needed(effect: float, deviation: float, level: float, power: float = POWER) -> int:
    """Tasks with which a true mean difference of `effect` is found with probability `power`.

    `deviation` is the standard deviation of the tasks' paired differences. One-sided normal
    approximation: n = ((z_{1-level} + z_power) × deviation / effect)².
    """
    if effect <= 0:
        raise ValueError("the effect must be above 0")
    z = NormalDist().inv_cdf(1 - level) + NormalDist().inv_cdf(power)
    return max(2, math.ceil((z * deviation / effect) ** 2))


def effect_seen(tasks: int, deviation: float, level: float, power: float = POWER) -> float:
    """The smallest true difference that so many tasks find with probability `power`, see
    `tasks_needed`.
    """
    z = NormalDist().inv_cdf(1 - level) + NormalDist().inv_cdf(power)
    return z * deviation / math.sqrt(tasks)


def more_tasks(level: float, than: float, power: float = POWER) -> float:
    """How many times as many tasks the same effect needs at one level than at another."""
    normal = NormalDist()
    return (
        (normal.inv_cdf(1 - level) + normal.inv_cdf(power))
        / (normal.inv_cdf(1 - than) + normal.inv_cdf(power))
    ) ** 2


def comparisons_until(factor: float, alpha: float) -> int:
    """The number of the first comparison that needs `factor` times the tasks of the first one, see
    `more_tasks`.
    """
    first = level_of(1, alpha)
    return next(k for k in count(1) if more_tasks(level_of(k, alpha), first) >= factor)


def margin_met(tasks: int, error: float) -> float:
    """The smallest increase of a rate that this many tasks without one event can exclude: about
    ln(1/error) / n.
    """
    return 1 - error ** (1 / tasks) if tasks else 1.0
