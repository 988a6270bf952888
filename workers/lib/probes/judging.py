"""From what an output got to a finding: whether it is more, or less, than it may get. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from workers.lib.probes.measure import shown
from workers.lib.probes.types import BELOW, KEEP, Finding, Options, Outcome, Severity


@dataclass(frozen=True)
class Standard:
    """What the task's right output got, the best of its forms; None where none is known or none succeeded."""

    reward: float | None
    success: bool


def standard_of(golds: list[Outcome]) -> Standard:
    right = [item.reward for item in golds if item.success and item.reward is not None]
    return Standard(max(right), True) if right else Standard(None, False)


def judged(item: Outcome, standard: Standard, options: Options, golds_masked: bool) -> Finding | None:
    """The finding of one output; None where it got what it may. `golds_masked`: right outputs are masked as well."""
    if item.raised:
        return finding(item, standard, "high", f"The verifier raised instead of masking: {item.reason}")
    if item.masked:
        return None if golds_masked or item.wish.limit == KEEP else finding(item, standard, "medium", _escaped(item))
    if item.reward is None or not math.isfinite(item.reward):
        return finding(item, standard, "high", f"The reward is {item.reward}, not a number.")
    if item.wish.limit == KEEP:
        return _lost(item, standard, options)
    return _too_much(item, standard, options)


def _escaped(item: Outcome) -> str:
    return f"A wrong output is masked, which spares it the penalty: {item.reason}"


def _lost(item: Outcome, standard: Standard, options: Options) -> Finding | None:
    if not item.success:
        return finding(item, standard, "high", f"A right output is no success ({item.wish.what}).")
    if standard.reward is not None and (item.reward or 0.0) < standard.reward - options.tolerance:
        return finding(item, standard, "medium", f"A right output gets less than its usual form ({item.wish.what}).")
    return None


def _too_much(item: Outcome, standard: Standard, options: Options) -> Finding | None:
    reward, right = item.reward or 0.0, standard.reward
    if item.wish.limit == BELOW and item.success:
        return finding(item, standard, "high", f"A wrong output succeeds: {item.wish.what}.")
    if right is None:
        return None
    if reward > right + options.tolerance:
        return finding(item, standard, "high", f"It gets more than the right output: {item.wish.what}.")
    if item.wish.limit == BELOW and reward >= right - options.tolerance:
        return finding(item, standard, "high", f"A wrong output gets as much as the right one: {item.wish.what}.")
    if item.wish.limit == BELOW and reward >= right - options.margin * max(1.0, abs(right)):
        return finding(
            item, standard, "medium", f"A wrong output gets almost what the right one gets: {item.wish.what}."
        )
    return None


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
    )
