"""Advantages within a group of rollouts: what `workers.grpo` trains with and what a rollout's page shows. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev

EPSILON = 1e-4  # TRL's, in the denominator
OVERLONG = "overlong"  # name of the component of a score that shapes the reward, but is not part of it


def group_advantages(rewards: Sequence[float | None], scale: str = "group", baseline: str = "mean") -> list[float]:
    """(r − mean) / (std + ε) over the unmasked of a group's rewards; 0 for a masked one (None), and for all of a group that
    has fewer than two or whose rewards are equal.

    `scale="none"` leaves the division out (Dr. GRPO 2503.20783). `baseline="leave_one_out"`: each reward is compared with the
    mean of the others (RLOO 2402.14740).
    """
    known = [reward for reward in rewards if reward is not None]
    if len(known) < 2 or min(known) == max(known):
        return [0.0] * len(rewards)
    mean, by = fmean(known), stdev(known) + EPSILON if scale == "group" else 1.0
    if baseline == "leave_one_out":
        by *= (len(known) - 1) / len(known)  # r − mean of the others = (r − mean) · n / (n − 1)
    return [0.0 if reward is None else (reward - mean) / by for reward in rewards]


def overlong_shaping(tokens: int, longest: int, buffer: int, penalty: float = 1.0) -> float:
    """What a completion of so many tokens loses: nothing up to longest − buffer, then linearly more, up to `penalty` at the
    longest (soft overlong punishment, DAPO 2503.14476, equation 13). At most 0."""
    if not buffer:
        return 0.0
    return penalty * max(-1.0, min(0.0, (longest - buffer - tokens) / buffer))
