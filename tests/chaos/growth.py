"""How the soak tells growth from warming up and from the ups and downs of a day."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from scipy import stats

ALLOWED = 0.025  # of its level, that something may grow in a day
UNIT = 1.0  # a day: what is less than a file, a connection or a MiB is no growth


@dataclass(frozen=True)
class Growth:
    """`levels`: the median of each day, whose traffic is the same; `least` and `most`: what it
    grows by in a day (95%), over the later half of the days. In the earlier half caches and pools
    fill.
    """

    name: str
    levels: tuple[float, ...]
    least: float
    most: float

    @property
    def verdict(self) -> str:
        allowed = max(UNIT, ALLOWED * self.levels[-1])
        if self.most <= allowed:
            return "flat"
        return "grows" if self.least > allowed else "undecided"


def growth(name: str, days: Sequence[Sequence[float]]) -> Growth:
    """`days`: what was measured on each. A day is one observation, since what is measured seconds
    apart says the same. At least six days.
    """
    levels = [statistics.median(day) for day in days]
    later = levels[len(levels) // 2 :]
    fit = stats.linregress(range(len(later)), later)
    reach = float(stats.t.ppf(0.975, len(later) - 2)) * fit.stderr
    reach = reach if math.isfinite(reach) else 0.0
    return Growth(name, tuple(levels), fit.slope - reach, fit.slope + reach)
