"""Scores single outputs, and measures how much repeated scores of the same output vary."""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from time import perf_counter

from workers.lib.probes.cases import Case
from workers.lib.probes.types import KEEP, Options, Outcome, Scorer, Wish
from workers.lib.program import Stop

FLIPS = 0.05  # maximum share of outputs whose success may change, if the verifier is a model
UNSTEADY = 0.2  # maximum standard deviation of its rewards, as a share of the range
Z = 1.96
T_95 = {
    2: 12.71,
    3: 4.30,
    4: 3.18,
    5: 2.78,
    6: 2.57,
    7: 2.45,
    8: 2.36,
}  # Student's t, two-sided, by n; 2.31 above


def scored(score: Scorer, probe: str, case: Case, wish: Wish, rules: Options) -> Outcome:
    """Score one output, passed as a copy so that a verifier which modifies its input cannot affect
    the next one.
    """
    task, messages = deepcopy(case.task), deepcopy(wish.messages)
    start = perf_counter()
    try:
        got = score(task, messages)
    except Stop:
        raise
    except Exception as error:  # a verifier must not raise; this gets reported
        micros = (perf_counter() - start) * 1e6
        return Outcome(
            probe,
            case.id,
            wish,
            None,
            False,
            False,
            f"{type(error).__name__}: {error}"[:500],
            True,
            micros,
        )
    micros = (perf_counter() - start) * 1e6
    enough = (
        rules.success_at is not None and got.reward is not None and got.reward >= rules.success_at
    )
    success = (bool(got.success) or enough) and not got.masked
    return Outcome(
        probe, case.id, wish, got.reward, success, got.masked, got.mask_reason, False, micros
    )


@dataclass(frozen=True)
class Repeats:
    """Outputs that were scored twice: the pairs that differ, the number of outputs, and the noise
    of one reward.
    """

    pairs: list[tuple[Outcome, Outcome]]
    n: int

    @property
    def noise(self) -> float:
        """Standard deviation of a single reward around its output's mean: √(Σ d² / 2n)."""
        gaps = [
            (one.reward - two.reward) ** 2
            for one, two in self.pairs
            if _finite(one) and _finite(two)
        ]
        return math.sqrt(sum(gaps) / (2 * self.n)) if self.n else 0.0

    def unsteady(self, span: float) -> bool:
        """Whether a model's verdicts vary too much to train on: the success of more than FLIPS of
        the outputs changes (by the lower bound of Wilson's 95% interval), or rewards vary by more
        than UNSTEADY of the range.
        """
        flips = sum(one.success != two.success for one, two in self.pairs)
        return wilson_low(flips, self.n) > FLIPS or self.noise > UNSTEADY * max(span, 1e-9)


def wilson_low(k: int, n: int) -> float:
    """The lower bound of Wilson's 95% interval for k of n."""
    if not n:
        return 0.0
    share, z2 = k / n, Z * Z
    centre, wide = share + z2 / (2 * n), Z * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    return (centre - wide) / (1 + z2 / n)


def again(score: Scorer, item: Outcome, case: Case, rules: Options) -> Outcome:
    """The outcome that `repeats` new scores of the output confirm: for a wrong output the lower
    bound of the mean's 95% interval, for a right one the upper; masked only if it always is,
    successful if it is more often than not.

    The score that made it suspicious is not included, because the highest of many draws is high by
    luck.
    """
    fresh = [
        scored(score, item.probe, case, item.wish, rules) for _ in range(max(2, rules.repeats))
    ]
    rewards = [one.reward for one in fresh if _finite(one)]
    if len(rewards) < 2:
        return (
            fresh[0]
            if all(one.masked or one.raised for one in fresh)
            else replace(fresh[0], masked=False, reward=0.0)
        )
    half = T_95.get(len(rewards), 2.31) * stdev(rewards) / math.sqrt(len(rewards))
    bound = fmean(rewards) + (half if item.wish.limit == KEEP else -half)
    success = 2 * sum(one.success for one in fresh) > len(fresh)
    return replace(item, reward=bound, success=success, masked=False, raised=False, reason="")


def _finite(item: Outcome) -> bool:
    return item.reward is not None and math.isfinite(item.reward)


def equal(first: Outcome, second: Outcome, noise: float) -> bool:
    if (first.success, first.masked, first.raised) != (
        second.success,
        second.masked,
        second.raised,
    ):
        return False
    if first.reward is None or second.reward is None:
        return first.reward is second.reward
    return (
        first.reward == second.reward
        or abs(first.reward - second.reward) <= noise
        or _both_nan(first, second)
    )


def _both_nan(first: Outcome, second: Outcome) -> bool:
    return first.reward != first.reward and second.reward != second.reward


def spaced(items: Sequence, most: int) -> list:
    """At most `most` of the items, evenly spaced."""
    if len(items) <= most:
        return list(items)
    return [items[index * len(items) // most] for index in range(most)]
