"""Correction for a sampler that differs from the trainer: the weight of each sampled token, and
metrics of how far apart the two are.

The sampler's distribution differs if it was truncated (top_p), or computed elsewhere, with other
arithmetic, or with older weights. Its samples are weighted by π_trainer / π_sampler: truncated
(TIS, fengyao.notion.site/off-policy-rl), masked outside bounds (MIS), or masked token by token
within wide bounds (IcePop 2510.18855).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from workers.lib.specs.grpo import GrpoConfig
from workers.lib.token_rows import TokenRow
from workers.ml.policy_loss import summed


def correction_of(config: GrpoConfig, *, same: bool) -> str:
    """The correction to use: off, tis, mis or icepop. `same`: sampler and trainer are the same
    model with the same arithmetic.
    """
    if config.correction != "auto":
        return config.correction
    return "off" if same and config.top_p == 1 else "tis"


def sampler_logprobs(rows: Sequence[TokenRow], like: Tensor) -> Tensor:
    """The sampler's log-probabilities of the rows' learned tokens, [R, U] like `like`; 0 after the
    end of each row.
    """
    values = [
        [value for value, learnt in zip(row.logprobs, row.learnt, strict=True) if learnt]
        for row in rows
    ]
    width = like.shape[1]
    return torch.tensor([row + [0.0] * (width - len(row)) for row in values], dtype=like.dtype).to(
        like.device
    )


def ratios(
    trainer: Tensor,
    sampler: Tensor,
    real: Tensor,
    level: str = "token",
    episode: Tensor | None = None,
) -> Tensor:
    """π_trainer / π_sampler from log-probabilities [R, U]: [R, U], or [R, 1] for whole completions;
    1 where nothing is real. `episode` [R] says which rows form one completion; without it, each row
    is one.
    """
    gap = (trainer - sampler) * real
    if level == "token":
        return gap.exp()
    sums = gap.sum(-1)
    return (sums if episode is None else summed(sums, episode)).exp()[:, None]


def weights(ratio: Tensor, kind: str, config: GrpoConfig) -> Tensor:
    """The weight of each ratio. tis: clamped to the bounds; mis and icepop: 0 outside of them."""
    least, most = config.correction_min, config.correction_max
    if kind == "tis":
        return ratio.clamp(least, most)
    return ratio.masked_fill((ratio < least) | (ratio > most), 0.0)


def first_rows(episode: Tensor) -> Tensor:
    """[R]: whether a row is the first of its episode."""
    return (episode[:, None] == episode).long().argmax(-1) == torch.arange(
        len(episode), device=episode.device
    )


def correction_metrics(
    trainer: Tensor,
    sampler: Tensor,
    real: Tensor,
    kind: str,
    config: GrpoConfig,
    episode: Tensor | None = None,
) -> dict[str, float]:
    """Metrics of a whole batch: smallest, mean and largest ratio, and the share of tokens or
    sequences whose weight differs from their ratio. `effective_samples` is (Σw)² / (n Σw²) of the
    ratios, a share of n.
    """
    ratio = ratios(trainer, sampler, real, config.correction_level, episode)
    here = real.any(-1, keepdim=True) if config.correction_level == "sequence" else real
    if config.correction_level == "sequence" and episode is not None:
        here = here & first_rows(episode)[:, None]
    found = ratio[here].double()
    if not len(found):
        return {}
    squares = float((found**2).sum())
    cut = 0.0 if kind == "off" else float((weights(found, kind, config) != found).double().mean())
    return {
        "train/ratio_min": float(found.min()),
        "train/ratio_mean": float(found.mean()),
        "train/ratio_max": float(found.max()),
        "train/effective_samples": (
            float(found.sum()) ** 2 / (len(found) * squares) if squares else 0.0
        ),
        "train/corrected_share": cut,
    }
