"""The change of a failure rate after a promotion, with intervals that hold simultaneously. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from apps.core.intervals import newcombe

FIXED, IMPROVED, UNCHANGED, WORSE, REOPENED, FEW = (
    "fixed",
    "improved",
    "unchanged",
    "worse",
    "reopened",
    "too few runs",
)
# expected failures after the promotion at the earlier rate: with fewer, seeing none is no surprise
# (5%)
SEEN = 3.0


@dataclass(frozen=True)
class Share:
    failed: int
    n: int

    @property
    def rate(self) -> float | None:
        return self.failed / self.n if self.n else None


@dataclass(frozen=True)
class Shift:
    """The share of failed runs before and after, their difference (after - before) and its
    interval; None without runs.
    """

    before: Share
    after: Share
    difference: float | None
    low: float | None
    high: float | None
    mark: str

    def as_dict(self) -> dict[str, Any]:
        return {
            "before": {
                "failed": self.before.failed,
                "runs": self.before.n,
                "rate": self.before.rate,
            },
            "after": {"failed": self.after.failed, "runs": self.after.n, "rate": self.after.rate},
            "difference": self.difference,
            "low": self.low,
            "high": self.high,
            "mark": self.mark,
        }


def shift(before: Share, after: Share, level: float, *, reopened: bool = False) -> Shift:
    """`level` of the difference's interval, by Newcombe's method 10. `reopened`: it had been fixed
    and came back.
    """
    if before.rate is None or after.rate is None:
        return Shift(before, after, None, None, None, FEW)
    low, high = newcombe((before.failed, before.n), (after.failed, after.n), level)
    return Shift(
        before,
        after,
        after.rate - before.rate,
        low,
        high,
        _mark(before, after, low, high, reopened),
    )


def _mark(before: Share, after: Share, low: float, high: float, reopened: bool) -> str:
    if reopened and after.failed:
        return REOPENED
    if high < 0:
        return IMPROVED if after.failed else FIXED
    if low > 0:
        return WORSE
    expected = before.failed / before.n * after.n
    return FEW if math.isclose(expected, 0) or (not after.failed and expected < SEEN) else UNCHANGED
