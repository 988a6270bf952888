"""How far a trainer's log-probabilities are from the sampler's, for the same tokens and weights.
Pure.

Within one process and in float32 it is 0 up to rounding; between an inference engine and a trainer
it shows whether they compute the same model. Names and definitions are from NeMo RL (gen_kl_error,
token_mult_prob_error) and veRL's rollout correction (the rest).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, pstdev

MOST = 20.0  # bound of a log-ratio, as in veRL


def gap_metrics(rows: Sequence[Sequence[tuple[float, float]]]) -> dict[str, float]:
    """`rows`: for each sampled sequence, (trainer's, sampler's) log-probability of its tokens.
    Importance weights are those of whole sequences.
    """
    gaps = [trained - sampled for row in rows for trained, sampled in row]
    if not gaps:
        return {}
    sums = [sum(trained - sampled for trained, sampled in row) for row in rows if row]
    weights = [math.exp(max(-MOST, min(MOST, one))) for one in sums]
    bounded = [max(-MOST, min(MOST, gap)) for gap in gaps]
    return {
        "train/logp_diff_mean": fmean(abs(gap) for gap in gaps),
        "train/logp_diff_max": max(abs(gap) for gap in gaps),
        "train/gen_kl_error": fmean(math.exp(gap) - gap - 1 for gap in bounded),
        "train/token_mult_prob_error": fmean(math.exp(abs(gap)) for gap in bounded),
        "train/rollout_kl": abs(fmean(bounded)),
        "train/is_mean": fmean(weights),
        "train/is_std": pstdev(weights) if len(weights) > 1 else 0.0,
        "train/ess": (
            sum(weights) ** 2 / (len(weights) * sum(weight * weight for weight in weights))
        ),
    }
