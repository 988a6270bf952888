"""How many runs really failed, and how many of those each layer finds, from checks of randomly chosen runs. Pure.

Each run was asked about with a known probability. Within a stratum (runs that the same layers flagged) a check counts by the inverse
of that (Horvitz–Thompson's weights); between strata by how many runs there are. A stratum's interval is Korn and Graubard's
(1998: Clopper–Pearson with the effective number of checks), and the strata's are put together by Zou and Donner's method (2008),
which keeps what a stratum without any failure leaves open. What people chose to decide in triage counts for itself only; what they are
unsure of counts as either.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from math import sqrt

from apps.core.intervals import exact

Flags = frozenset[str]  # names of the layers that flagged a run


class How(Enum):
    """How a drawn run came to its answer. Who is asked in the order of random numbers says something about those who wait."""

    ASKED = "asked"
    CHOSEN = "chosen"  # decided in triage, where people choose what they look at
    WAITING = "waiting"


@dataclass(frozen=True)
class Check:
    """A drawn run, with the probability with which it was drawn. `failed` is None where people are unsure, or nobody has answered."""

    flags: Flags
    probability: float
    failed: bool | None
    how: How = How.ASKED


@dataclass(frozen=True)
class Stratum:
    """`runs` runs that the same layers flagged, and the checks of some of them."""

    flags: Flags
    runs: int
    checks: Sequence[Check]

    def failed(self) -> Estimate:
        """How many of them failed, with the interval; where nobody has checked any, between none and all.

        Those that people are unsure of count as fine below and as failed above. Those that wait are like the ones that were
        asked about; where none was, they are as uncertain as the unsure.
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
        """(weight, failed) of the drawn runs, those that wait left to the ones that were asked about."""
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
    """A number with its 95% interval, from n checks."""

    value: float
    low: float
    high: float
    n: int


def strata(runs: Iterable[tuple[Flags, int]], checks: Iterable[Check]) -> list[Stratum]:
    """`runs` are how many there are of each kind of flags."""
    by_flags: dict[Flags, list[Check]] = {}
    for check in checks:
        by_flags.setdefault(check.flags, []).append(check)
    counts = {flags: n for flags, n in runs if n > 0}
    return [Stratum(flags, n, by_flags.get(flags, [])) for flags, n in counts.items()]


def failure_rate(given: Sequence[Stratum]) -> Estimate | None:
    """The share of all runs that failed; None where there are no runs or no checks."""
    runs, total = sum(stratum.runs for stratum in given), added(given)
    if not runs or not total.n:
        return None
    return Estimate(total.value / runs, max(0.0, total.low / runs), min(1.0, total.high / runs), total.n)


def added(given: Sequence[Stratum]) -> Estimate:
    """How many failed in all strata together."""
    parts = [stratum.failed() for stratum in given]
    value = sum(part.value for part in parts)
    below = sqrt(sum((part.value - part.low) ** 2 for part in parts))
    above = sqrt(sum((part.high - part.value) ** 2 for part in parts))
    return Estimate(value, max(0.0, value - below), value + above, sum(part.n for part in parts))


def recall(given: Sequence[Stratum], layer: str) -> Estimate | None:
    """The share of all failures that a layer flagged; None where no check failed.

    The interval takes the worst of both: few among the flagged and many among the others, and the other way round. It covers at
    least 95%, usually more.
    """
    if not any(check.failed for stratum in given for check in stratum.checks):
        return None
    flagged = added([stratum for stratum in given if layer in stratum.flags])
    missed = added([stratum for stratum in given if layer not in stratum.flags])
    low = flagged.low / (flagged.low + missed.high) if flagged.low else 0.0
    high = flagged.high / (flagged.high + missed.low) if flagged.high else 0.0
    found = sum(check.failed is True for stratum in given for check in stratum.checks)
    return Estimate(flagged.value / (flagged.value + missed.value), low, high, found)
