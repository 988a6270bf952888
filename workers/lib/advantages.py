"""Advantages within a group of rollouts: what `workers.grpo` trains with and what a rollout's page shows. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev

EPSILON = 1e-4  # TRL's, in the denominator


def group_advantages(rewards: Sequence[float | None], scale: str = "group") -> list[float]:
    """(r − mean) / (std + ε) over the unmasked of a group's rewards; 0 for a masked one (None), and for all of a group that
    has fewer than two or whose rewards are equal. `scale="none"` leaves the division out (Dr. GRPO)."""
    known = [reward for reward in rewards if reward is not None]
    if len(known) < 2 or min(known) == max(known):
        return [0.0] * len(rewards)
    mean, by = fmean(known), stdev(known) + EPSILON if scale == "group" else 1.0
    return [0.0 if reward is None else (reward - mean) / by for reward in rewards]
