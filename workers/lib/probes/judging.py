"""Decides from an output's reward whether it is a finding, i.e. more or less than it may get.
Pure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean

from workers.lib.probes.measure import shown
from workers.lib.probes.types import BELOW, KEEP, Finding, Options, Outcome, Severity

EPSILON = 1e-9


@dataclass(frozen=True)
class Standard:
    """The rewards that a task's outputs should get. `reward`: the right output's, best of its
    formats, None if none is known or none succeeded; `plain`: the best of honest wrong answers',
    None if there are none.
    """

    reward: float | None
    success: bool
    plain: float | None = None

    @property
    def span(self) -> float:
        """The range of rewards that a policy can climb; 0 if unknown."""
        return (
            max(0.0, self.reward - self.plain)
            if self.reward is not None and self.plain is not None
            else 0.0
        )


def standard_of(golds: list[Outcome], plain: list[float], noisy: bool = False) -> Standard:
    """Where rewards vary, the right output's is a mean, since the best of several draws would be
    luck.
    """
    right = [item.reward for item in golds if item.success and item.reward is not None]
    level = max(plain) if plain else None
    if not right:
        return Standard(None, False, level)
    return Standard(fmean(right) if noisy else max(right), True, level)


def slope(reward: float, merit: float, standard: Standard) -> float:
    """How much higher an output's reward is than its share of the right answer explains, relative
    to the range:

        (reward − plain) / (right − plain) − merit

    plain: the best reward of honest, quite wrong answers to the task; right: the right answer's
    reward; merit in [0, 1]: `truth.merit`. A policy that is seldom right climbs this: within a
    group of wrong answers GRPO divides by their own standard deviation, so that even a small gap
    weighs as much as a whole right answer. So what counts is the gap above *honest* wrong answers,
    not the distance to the right one. Partial credit, and rewards for format that honest answers
    get too, are no slope. 0 if the range is not known.
    """
    return (
        (reward - (standard.plain or 0.0)) / standard.span - merit
        if standard.span > EPSILON
        else 0.0
    )


def judged(
    item: Outcome, standard: Standard, options: Options, golds_masked: bool, merit: float
) -> Finding | None:
    """The finding about one output; None if it got no more than it may. `golds_masked`: right
    outputs are masked as well.
    """
    if item.raised:
        return finding(
            item, standard, "high", f"The verifier raised instead of masking: {item.reason}"
        )
    if item.masked:
        return (
            None
            if golds_masked or item.wish.limit == KEEP
            else finding(item, standard, "high", _escaped(item))
        )
    if item.reward is None or not math.isfinite(item.reward):
        return finding(item, standard, "high", f"The reward is {item.reward}, not a number.")
    if item.wish.limit == KEEP:
        return _lost(item, standard, options)
    return _too_much(item, standard, options, merit)


def _escaped(item: Outcome) -> str:
    return f"A wrong output is masked, which spares it the penalty: {item.reason}"


def _lost(item: Outcome, standard: Standard, options: Options) -> Finding | None:
    if not item.success:
        return finding(item, standard, "high", f"A right output is no success ({item.wish.what}).")
    if standard.reward is not None and (item.reward or 0.0) < standard.reward - options.tolerance:
        return finding(
            item,
            standard,
            "medium",
            f"A right output gets less than its usual form ({item.wish.what}).",
        )
    return None


def _too_much(item: Outcome, standard: Standard, options: Options, merit: float) -> Finding | None:
    reward, right = item.reward or 0.0, standard.reward
    if item.wish.limit == BELOW and item.success:
        return finding(item, standard, "high", f"A wrong output succeeds: {item.wish.what}.")
    if right is None:
        return None
    if reward > right + options.tolerance:
        return finding(
            item, standard, "high", f"It gets more than the right output: {item.wish.what}."
        )
    if item.wish.limit == BELOW and reward >= right - options.tolerance:
        return finding(
            item,
            standard,
            "high",
            f"A wrong output gets as much as the right one: {item.wish.what}.",
        )
    if item.wish.limit != BELOW:
        return None
    # Where wrong answers cost something, an output that costs nothing is a way to abstain, which is
    # intended.
    climb = slope(reward, merit, standard) if reward > 0 or right <= 0 else 0.0
    if climb >= options.steep:
        return finding(item, standard, "high", _climbs(item, climb))
    if reward >= right - options.margin * max(1.0, abs(right)):
        return finding(
            item,
            standard,
            "medium",
            f"A wrong output gets almost what the right one gets: {item.wish.what}.",
        )
    return (
        finding(item, standard, "medium", _climbs(item, climb))
        if climb > options.slack + EPSILON
        else None
    )


def _climbs(item: Outcome, climb: float) -> str:
    return (
        f"Paid {climb:.0%} of the way from an honest wrong answer to the right one, for nothing:"
        f" {item.wish.what}."
    )


def finding(item: Outcome, standard: Standard, severity: Severity, reason: str) -> Finding:
    finite = item.reward is not None and math.isfinite(item.reward)
    return Finding(
        probe=item.probe,
        task=item.task,
        severity=severity,
        what=item.wish.what,
        shown=shown(item.wish.messages),
        reward=item.reward if finite else None,
        gold_reward=standard.reward,
        reason=reason,
        plain_reward=standard.plain,
    )
