"""How many runs really failed, and how many of those each layer finds, estimated from checks of
randomly drawn runs and from the judge's verdicts. Pure.

Each run is drawn with a known probability that no answer can change. Strata are the runs that the
rules flag and those that they do not: what the other layers say may have been learned from the
answers, so it must not decide which runs an answer represents. Within a stratum a check is weighted
by the inverse of its probability (Hájek); strata are weighted by their number of runs. A stratum's
interval is that of Korn and Graubard (1998: Clopper–Pearson with the effective number of checks).
The strata's intervals are combined by Zou and Donner's method (2008), which preserves the
uncertainty of a stratum without any failure. Runs that people are unsure about count as either.

The judge's verdicts narrow the interval and cannot bias it (`assisted`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum
from math import ceil, sqrt
from operator import mul
from types import MappingProxyType

import numpy as np

from apps.core.intervals import exact

Flags = frozenset[str]  # names of the layers that flagged a run
RULES, ESTIMATE, JUDGE = "rules", "estimate", "judge"
# So many answers, or verdicts, represent their own time; those that follow, the next.
BLOCK, VERDICTS = 20, 50


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
    `verdict` is the judge's score minus the mean score of the random share that the judge reviews;
    0 for a check outside that share. `asked` is when people were asked about an asked one, or would
    have been.
    """

    by_rules: bool
    probability: float
    failed: bool | None
    how: How = How.ASKED
    flags: Flags = frozenset()
    verdict: float = 0.0
    asked: datetime | None = None

    @property
    def weight(self) -> float:
        return 1 / self.probability


@dataclass(frozen=True)
class Stratum:
    """The number of runs that the rules flag, or do not, and the checks of some of them, oldest run
    first. `verdicts` is the size of the judge's random share.
    """

    by_rules: bool
    runs: int
    checks: Sequence[Check]
    verdicts: float = 0.0

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
        share, _ = self._assisted(known, [check.failed is True for check in known])
        least, least_n = self._assisted(checks, [check.failed is True for check in checks])
        most, most_n = self._assisted(checks, [check.failed is not False for check in checks])
        low = min(share, exact(least * least_n, least_n)[0])
        high = max(share, exact(most * most_n, most_n)[1])
        return Estimate(share * self.runs, low * self.runs, high * self.runs, len(known))

    def _assisted(self, checks: Sequence[Check], failed: Sequence[bool]) -> tuple[float, float]:
        weights, verdicts = [check.weight for check in checks], [check.verdict for check in checks]
        return assisted(failed, verdicts, weights, self.verdicts)

    def sample(self) -> list[Check]:
        """The checks that represent the stratum: those asked about, or all of them if people chose
        the answered ones or nothing is waiting.
        """
        of = {how: [check for check in self.checks if check.how == how] for how in How}
        if of[How.ASKED] and of[How.WAITING]:
            return represented(self.checks)
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
                replace(check, failed=False)
                if check.failed is not False
                and check.how != How.WAITING
                and (layer in check.flags) != is_flagged
                else check
            )
            for check in self.checks
        ]
        return replace(self, checks=checks)


def represented(checks: Iterable[Check]) -> list[Check]:
    """The checks that people were asked about, with probabilities by which they stand for all drawn
    runs of their time: people who fall behind have answered fewer of the latest ones.
    """
    blocks: list[list[Check]] = [[]]
    asked = 0
    for check in checks:
        if asked >= BLOCK:
            blocks.append([])
            asked = 0
        blocks[-1].append(check)
        asked += check.how == How.ASKED
    if len(blocks) > 1 and sum(check.how == How.ASKED for check in blocks[-1]) < BLOCK:
        blocks[-2:] = [blocks[-2] + blocks[-1]]
    return [check for block in blocks for check in _asked(block)]


def _asked(block: Sequence[Check]) -> list[Check]:
    asked = [check for check in block if check.how == How.ASKED]
    share = sum(check.weight for check in asked) / sum(check.weight for check in block)
    return [replace(check, probability=check.probability * share) for check in asked]


def assisted(
    failed: Sequence[bool], verdicts: Sequence[float], weights: Sequence[float], judged: float
) -> tuple[float, float]:
    """The share of failures, and how many plain checks would know it as well.

    Prediction-powered inference (Angelopoulos et al. 2023) with the power-tuned slope of PPI++
    (2024): a verdict has mean zero over the `judged` runs, of which the checks are a random part,
    so subtracting any multiple of it keeps the mean of the answers and takes away the part of their
    variance that the judge explains. Three things make it hold for few checks and rare failures:
    the slope for an answer is fitted to the other answers, so none decides how much its own verdict
    counts; it is shrunk while the rarer answer was given only a few times; and one unexplained
    answer is added, since a judge that was right about all of a few failures is not known to be
    always right. Without verdicts this is the Hájek mean and Kish's effective size.
    """
    n = effective(weights)
    bad, verdict, weight = (np.array(row, np.float64) for row in (failed, verdicts, weights))
    total = weight.sum()
    share = float(bad @ weight / total)
    spread = share * (1 - share)
    if spread <= 0 or judged <= n:
        return min(1.0, share), n
    own = np.stack([bad, verdict, bad * verdict, verdict**2])
    others = np.maximum(total - weight, 1e-9 * total)
    y, z, yz, zz = ((own @ weight)[:, None] - weight * own) / others
    rarer = np.maximum(0.0, np.minimum(y, 1 - y)) * (n - 1)
    explained = zz - z * z
    slope = np.divide(
        (yz - y * z) * rarer,
        explained * (rarer + 1),
        out=np.zeros_like(bad),
        where=explained > 1e-9,
    )
    residuals = bad - slope * verdict
    mean = float(weight @ residuals / total)
    left = float(weight @ (residuals - mean) ** 2 / total)
    part = min(1.0, left / spread)
    part = min(1.0, part + (1 - part) * n / judged + 1 / (min(share, 1 - share) * n))
    return min(1.0, max(0.0, mean)), n / part


def effective(weights: Sequence[float]) -> float:
    """Kish's effective size: how many equally weighted runs would know as much."""
    return sum(weights) ** 2 / sum(weight**2 for weight in weights)


def above_mean(scores: Sequence[float], weights: Sequence[float]) -> Iterator[float]:
    """The judge's scores minus their weighted mean, both of runs in the order of time, by blocks of
    time: where the budget ended the day, fewer runs of that time were reviewed.
    """
    size = ceil(len(scores) / max(1, len(scores) // VERDICTS)) or 1
    for first in range(0, len(scores), size):
        block, heavy = scores[first : first + size], weights[first : first + size]
        mean = sum(map(mul, block, heavy)) / sum(heavy)
        yield from (score - mean for score in block)


@dataclass(frozen=True)
class Estimate:
    """A number with its 95% interval, from `n` checks."""

    value: float
    low: float
    high: float
    n: int


def strata(
    runs: Mapping[bool, int],
    checks: Iterable[Check],
    verdicts: Mapping[bool, float] = MappingProxyType({}),
) -> list[Stratum]:
    """Group checks into strata. `runs` is the number of runs that the rules flag (True), and of the
    others; `verdicts` the effective number of those in the judge's random share.
    """
    by_rules: dict[bool, list[Check]] = {True: [], False: []}
    for check in checks:
        by_rules[check.by_rules].append(check)
    return [
        Stratum(flagged, n, by_rules[flagged], verdicts.get(flagged, 0.0))
        for flagged, n in runs.items()
        if n > 0
    ]


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


def precision(given: Sequence[Stratum], layer: str) -> Estimate | None:
    """Of the runs that a layer flagged, the share that failed; None if none of them was checked."""
    flagged = [check for check in _known(given) if layer in check.flags]
    return _share(flagged, [check.failed is True for check in flagged])


def false_alarms(given: Sequence[Stratum], layer: str) -> Estimate | None:
    """Of the runs that went well, the share that a layer flagged; None if none was checked."""
    fine = [check for check in _known(given) if check.failed is False]
    return _share(fine, [layer in check.flags for check in fine])


def _known(given: Sequence[Stratum]) -> list[Check]:
    """The checks that represent all runs; those that people are unsure about say nothing here."""
    checks = (check for stratum in given for check in stratum.sample())
    return [check for check in checks if check.failed is not None]


def _share(checks: Sequence[Check], counts: Sequence[bool]) -> Estimate | None:
    """Hájek's share with the interval of Korn and Graubard."""
    if not checks:
        return None
    weights = [check.weight for check in checks]
    share, n = sum(map(mul, weights, counts)) / sum(weights), effective(weights)
    low, high = exact(share * n, n)
    return Estimate(share, min(share, low), max(share, high), len(checks))
