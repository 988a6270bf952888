"""How many runs really failed, and how many of those each layer finds, estimated from checks of randomly drawn runs.
Pure.

Each run is drawn with a known probability. Within a stratum (runs flagged by the same layers) a check is weighted by
the inverse of that probability (Horvitz–Thompson); strata are weighted by their number of runs. A stratum's interval is
that of Korn and Graubard (1998: Clopper–Pearson with the effective number of checks). The strata's intervals are
combined by Zou and Donner's method (2008), which preserves the uncertainty of a stratum without any failure. Runs that
people chose to decide in triage represent only themselves; runs that people are unsure about count as either.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from math import sqrt

from apps.core.intervals import exact

Flags = frozenset[str]  # names of the layers that flagged a run


class How(Enum):
    """How a drawn run got its answer. Only runs asked about in random order represent the ones still waiting."""

    ASKED = "asked"
    CHOSEN = "chosen"  # decided in triage, where people choose what they look at
    WAITING = "waiting"


@dataclass(frozen=True)
class Check:
    """A drawn run and the probability with which it was drawn. `failed` is None if people are unsure or nobody has
    answered.
    """

    flags: Flags
    probability: float
    failed: bool | None
    how: How = How.ASKED


@dataclass(frozen=True)
class Stratum:
    """The number of runs that the same layers flagged, and the checks of some of them."""

    flags: Flags
    runs: int
    checks: Sequence[Check]

    def failed(self) -> Estimate:
        """The number of failed runs, with its interval; anywhere between none and all if nobody has checked any.

        Unsure answers count as fine for the lower bound and as failed for the upper. Waiting runs are represented by
        those that were asked about; if there are none, they are treated as unsure.
        """
        weighted = self._weighted()
        known = [(weight, failed) for weight, failed in weighted if failed is not None]
        if not known:
            return Estimate(self.runs / 2, 0.0, float(self.runs), 0)
        total = sum(weight for weight, _ in weighted)
        bad, sure = sum(weight for weight, failed in known if failed), sum(weight for weight, _ in known)
        n = total**2 / sum(weight * weight for weight, _ in weighted)
        low, _ = exact(min(1.0, bad / total) * n, n)
        _, high = exact(min(1.0, (bad + total - sure) / total) * n, n)
        return Estimate(min(1.0, bad / sure) * self.runs, low * self.runs, high * self.runs, len(known))

    def _weighted(self) -> list[tuple[float, bool | None]]:
        """(weight, failed) of the drawn runs. The weight of waiting runs is spread over those that were asked about."""
        of: dict[How, list[tuple[float, bool | None]]] = {how: [] for how in How}
        for check in self.checks:
            of[check.how].append((1 / check.probability, check.failed))
        if not of[How.ASKED]:
            return of[How.CHOSEN] + of[How.WAITING] if of[How.CHOSEN] else []
        asked, waiting = (sum(weight for weight, _ in of[how]) for how in (How.ASKED, How.WAITING))
        times = (asked + waiting) / asked if of[How.CHOSEN] else 1.0
        return of[How.CHOSEN] + [(weight * times, failed) for weight, failed in of[How.ASKED]]


@dataclass(frozen=True)
class Estimate:
    """A number with its 95% interval, from `n` checks."""

    value: float
    low: float
    high: float
    n: int


def strata(runs: Iterable[tuple[Flags, int]], checks: Iterable[Check]) -> list[Stratum]:
    """Group checks into strata. `runs` are (flags, number of runs with exactly these flags)."""
    by_flags: dict[Flags, list[Check]] = {}
    for check in checks:
        by_flags.setdefault(check.flags, []).append(check)
    counts = {flags: n for flags, n in runs if n > 0}
    return [Stratum(flags, n, by_flags.get(flags, [])) for flags, n in counts.items()]


def failure_rate(given: Sequence[Stratum]) -> Estimate | None:
    """The share of all runs that failed; None if there are no runs or no checks."""
    runs, total = sum(stratum.runs for stratum in given), added(given)
    if not runs or not total.n:
        return None
    return Estimate(total.value / runs, max(0.0, total.low / runs), min(1.0, total.high / runs), total.n)


def added(given: Sequence[Stratum]) -> Estimate:
    """The number of failed runs in all strata together."""
    parts = [stratum.failed() for stratum in given]
    value = sum(part.value for part in parts)
    below = sqrt(sum((part.value - part.low) ** 2 for part in parts))
    above = sqrt(sum((part.high - part.value) ** 2 for part in parts))
    return Estimate(value, max(0.0, value - below), value + above, sum(part.n for part in parts))


def recall(given: Sequence[Stratum], layer: str) -> Estimate | None:
    """The share of all failures that a layer flagged; None if no checked run failed.

    The interval combines the worst cases: few failures among the flagged runs with many among the others, and the
    reverse. Its coverage is at least 95%, usually more.
    """
    if not any(check.failed for stratum in given for check in stratum.checks):
        return None
    flagged = added([stratum for stratum in given if layer in stratum.flags])
    missed = added([stratum for stratum in given if layer not in stratum.flags])
    low = flagged.low / (flagged.low + missed.high) if flagged.low else 0.0
    high = flagged.high / (flagged.high + missed.low) if flagged.high else 0.0
    found = sum(check.failed is True for stratum in given for check in stratum.checks)
    return Estimate(flagged.value / (flagged.value + missed.value), low, high, found)
