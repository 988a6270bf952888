"""How many runs really failed, and how many of those each layer finds, estimated from checks of
randomly drawn runs. Pure.

Each run is drawn with a known probability that no answer can change. Strata are the runs that the
rules flag and those that they do not: what the other layers say may have been learned from the
answers, so it must not decide which runs an answer represents. Within a stratum a check is weighted
by the inverse of its probability (Hájek); strata are weighted by their number of runs. A stratum's
interval is that of Korn and Graubard (1998: Clopper–Pearson with the effective number of checks).
The strata's intervals are combined by Zou and Donner's method (2008), which preserves the
uncertainty of a stratum without any failure. Runs that people are unsure about count as either.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from math import sqrt

from apps.core.intervals import exact

Flags = frozenset[str]  # names of the layers that flagged a run
RULES, ESTIMATE = "rules", "estimate"


class How(Enum):
    """How a drawn run got its answer. Runs are asked about in random order, so the first ones
    represent the others, however each of them was decided; what people chose to decide out of turn
    represents nothing else.
    """

    ASKED = "asked"
    CHOSEN = "chosen"  # decided in triage before its turn, where people choose what they look at
    WAITING = "waiting"


@dataclass(frozen=True)
class Check:
    """A drawn run and the probability with which it was drawn. `failed` is None if people are
    unsure or nobody has answered. `flags` are the layers that flagged it before the answer.
    """

    by_rules: bool
    probability: float
    failed: bool | None
    how: How = How.ASKED
    flags: Flags = frozenset()


@dataclass(frozen=True)
class Stratum:
    """The number of runs that the rules flag, or do not, and the checks of some of them."""

    by_rules: bool
    runs: int
    checks: Sequence[Check]

    def failed(self) -> Estimate:
        """The number of failed runs, with its interval; anywhere between none and all if nobody has
        checked any.

        Unsure answers count as fine for the lower bound and as failed for the upper. Waiting runs
        are represented by those that were asked about; if there are none, they are treated as
        unsure.
        """
        checks = self.sample()
        known = [check for check in checks if check.failed is not None]
        if not known:
            return Estimate(self.runs / 2, 0.0, float(self.runs), 0)
        bad, sure, total = _weight(known, True), _weight(known), _weight(checks)
        n = total**2 / sum(check.probability**-2 for check in checks)
        low, _ = exact(min(1.0, bad / total) * n, n)
        _, high = exact(min(1.0, (bad + total - sure) / total) * n, n)
        return Estimate(
            min(1.0, bad / sure) * self.runs, low * self.runs, high * self.runs, len(known)
        )

    def sample(self) -> list[Check]:
        """The checks that represent the stratum: those asked about, or all of them if people chose
        the answered ones or nothing is waiting.
        """
        of = {how: [check for check in self.checks if check.how == how] for how in How}
        if of[How.ASKED] and of[How.WAITING]:
            return of[How.ASKED]
        return list(self.checks) if of[How.ASKED] or of[How.CHOSEN] else []

    def flagged(self, layer: str, is_flagged: bool) -> Stratum | None:
        """The same stratum, but only failures that the layer flagged (or did not) count; None if it
        has none of them.
        """
        never = layer == RULES if not self.by_rules else layer == ESTIMATE
        if (layer == RULES and self.by_rules) or never:
            return self if is_flagged != never else None
        checks = [
            (
                check
                if (layer in check.flags) == is_flagged or check.how == How.WAITING
                else replace(check, failed=False)
            )
            for check in self.checks
        ]
        return replace(self, checks=checks)


def _weight(checks: Iterable[Check], failed: bool | None = None) -> float:
    return sum(
        1 / check.probability for check in checks if failed is None or check.failed == failed
    )


@dataclass(frozen=True)
class Estimate:
    """A number with its 95% interval, from `n` checks."""

    value: float
    low: float
    high: float
    n: int


def strata(runs: Mapping[bool, int], checks: Iterable[Check]) -> list[Stratum]:
    """Group checks into strata. `runs` is the number of runs that the rules flag (True), and of the
    others.
    """
    by_rules: dict[bool, list[Check]] = {True: [], False: []}
    for check in checks:
        by_rules[check.by_rules].append(check)
    return [Stratum(flagged, n, by_rules[flagged]) for flagged, n in runs.items() if n > 0]


def failure_rate(given: Sequence[Stratum]) -> Estimate | None:
    """The share of all runs that failed; None if there are no runs or no checks."""
    runs, total = sum(stratum.runs for stratum in given), added(given)
    if not runs or not total.n:
        return None
    return Estimate(
        total.value / runs, max(0.0, total.low / runs), min(1.0, total.high / runs), total.n
    )


def added(given: Sequence[Stratum]) -> Estimate:
    """The number of failed runs in all strata together."""
    parts = [stratum.failed() for stratum in given]
    value = sum(part.value for part in parts)
    below = sqrt(sum((part.value - part.low) ** 2 for part in parts))
    above = sqrt(sum((part.high - part.value) ** 2 for part in parts))
    return Estimate(value, max(0.0, value - below), value + above, sum(part.n for part in parts))


def recall(given: Sequence[Stratum], layer: str) -> Estimate | None:
    """The share of all failures that a layer flagged before anyone answered; None if no checked run
    failed.

    The interval combines the worst cases: few failures among the flagged runs with many among the
    others, and the reverse. Its coverage is at least 95%, usually more.
    """
    failures = sum(check.failed is True for stratum in given for check in stratum.sample())
    if not failures:
        return None
    found, missed = (
        added([part for stratum in given if (part := stratum.flagged(layer, is_flagged))])
        for is_flagged in (True, False)
    )
    low = found.low / (found.low + missed.high) if found.low else 0.0
    high = found.high / (found.high + missed.low) if found.high else 0.0
    return Estimate(found.value / (found.value + missed.value), low, high, failures)
