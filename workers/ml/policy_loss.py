"""The clipped policy loss of GRPO and its relatives: a pure function of log-probabilities and
advantages.

Sources: GRPO 2402.03300, DAPO 2503.14476, Dr. GRPO 2503.20783, GSPO 2507.18071, RLOO 2402.14740.
The formulas are in docs/training-methods.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from workers.lib.specs.grpo import GrpoConfig

OF_SEQUENCE = ("gspo", "rloo")  # losses with one ratio per completion


@dataclass(frozen=True)
class Completions:
    """How the rows of a batch make up completions. An episode that was split into several rows is
    one completion.
    """

    episode: Tensor  # [r]: number of the row's episode
    lengths: Tensor  # [r]: tokens of the row's whole episode
    row_tokens: Tensor  # [R of the whole batch]
    # [R of the whole batch]: a row's share of its completion; the shares add up to the number of
    # completions.
    share: Tensor

    @classmethod
    def of(cls, real: Tensor, episode: Tensor | None = None) -> Completions:
        """From a whole batch's tokens [R, U]; without `episode`, each row is a completion."""
        row_tokens = real.sum(-1)
        if episode is None:
            episode = torch.arange(len(real), device=real.device)
        rows = summed(torch.ones_like(row_tokens), episode)
        return cls(episode, summed(row_tokens, episode).clamp(min=1), row_tokens, 1 / rows)

    def only(self, rows: Any) -> Completions:
        """For a part of the batch."""
        return replace(self, episode=self.episode[rows], lengths=self.lengths[rows])


def summed(values: Tensor, episode: Tensor) -> Tensor:
    """For each row [r], the sum of the values [r] over the rows of its episode."""
    numbers, where = episode.unique(return_inverse=True)
    if len(numbers) == len(episode):
        return values
    return values.new_zeros(len(numbers)).index_add(0, where, values)[where]


def policy_loss(
    logprobs: Tensor,
    old: Tensor,
    reference: Tensor | None,
    advantage: Tensor,
    real: Tensor,
    config: GrpoConfig,
    completions: Completions | None = None,
    *,
    informative: Tensor | None = None,
    weight: Tensor | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """The clipped loss of a batch, and how much was clipped. All tensors are [R, U]; advantage is
    [R] or [R, U].

    For a part of a batch, pass `completions` of the whole batch: the parts' losses and metrics then
    add up to the batch's. A loss with one ratio per completion needs all rows of a completion at
    once.

    grpo: mean over completions of the mean over tokens. dapo: mean over all tokens. dr_grpo: sum
    over tokens / (completions × the maximum length). gspo, rloo: like grpo, with one ratio per
    completion: the geometric mean or the product of its tokens' ratios. KL to the reference: the k3
    estimator × the ratio; without beta it is only measured, and without a reference not even that.

    `informative` [R of the whole batch]: rows of groups whose rewards differ. The policy term is a
    mean over them alone, so that its size does not depend on how many groups had no reward spread;
    the KL term is a mean over all rows. `weight` [R, U] or [R, 1] multiplies the policy term: the
    correction for a sampler that differs from the trainer.
    """
    of = completions or Completions.of(real)
    log_ratio = (logprobs - old) * real
    if config.loss_type in OF_SEQUENCE:
        # The value is the completion's ratio, but the gradient reaches each token (GSPO-token with
        # equal advantages).
        by = of.lengths if config.loss_type == "gspo" else 1
        log_ratio = (summed(log_ratio.sum(-1), of.episode) / by)[:, None].expand_as(logprobs)
    if advantage.dim() == 1:
        advantage = advantage[:, None]
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
    each = -torch.minimum(ratio * advantage, clipped * advantage)
    if weight is not None:
        each = each * weight

    def mean(values: Tensor, over: Tensor) -> Tensor:
        """The loss's average of values [R, U]; `over` [R of the whole batch]: the rows whose
        completions are averaged.
        """
        number = (of.share * over).sum().clamp(min=1)
        if config.loss_type == "dapo":
            return (values * real).sum() / (of.row_tokens * over).sum().clamp(min=1)
        if config.loss_type == "dr_grpo":
            return (values * real).sum() / (number * config.max_new_tokens)
        return ((values * real).sum(-1) / of.lengths).sum() / number

    everything, tokens = torch.ones_like(of.row_tokens), of.row_tokens.sum().clamp(min=1)
    loss = mean(each, everything if informative is None else informative)
    measured: dict[str, float] = {}
    if reference is not None:
        gap = reference - logprobs
        kl = gap.exp() - gap - 1
        measured["train/kl"] = float((kl.detach() * real).sum() / tokens)
        if config.beta and config.advantages != "gae":  # PPO's penalty is part of its rewards
            # Multiplied by the ratio (1 on policy): without its gradient, that of the KL is biased
            # (DeepSeek-V3.2 2512.02556).
            loss = loss + config.beta * mean(ratio * kl, everything)
    low = ((ratio < 1 - config.clip_low) & (advantage < 0) & real).sum() / tokens
    high = ((ratio > 1 + config.clip_high) & (advantage > 0) & real).sum() / tokens
    return loss, measured | {"train/clip_low": float(low), "train/clip_high": float(high)}
