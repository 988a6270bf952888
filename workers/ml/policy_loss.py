"""The clipped policy loss of GRPO and its relatives: a pure function of log-probabilities and advantages.

Sources: GRPO 2402.03300, DAPO 2503.14476, Dr. GRPO 2503.20783, GSPO 2507.18071.
"""

from __future__ import annotations

import torch
from torch import Tensor

from workers.lib.specs import GrpoConfig


def policy_loss(
    logprobs: Tensor,
    old: Tensor,
    reference: Tensor | None,
    advantage: Tensor,
    real: Tensor,
    config: GrpoConfig,
    whole: Tensor | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """The clipped loss of a batch, all tensors [R, U] and advantage [R], and what was clipped. For a part of a batch, say
    with `whole` [R, U] which tokens of all of it are real: the parts' losses and metrics add up to the batch's.

    grpo: mean over completions of the mean over tokens. dapo: mean over all tokens. dr_grpo: sum over tokens / (R × the
    longest length allowed). gspo: as grpo, with one ratio a sequence. KL to the reference: the k3 estimator × the ratio;
    without beta it is measured only, and without a reference not even that.
    """
    whole = real if whole is None else whole
    tokens, lengths = whole.sum().clamp(min=1), real.sum(-1).clamp(min=1)
    log_ratio = (logprobs - old) * real
    if config.loss_type == "gspo":
        # The value is the sequence's ratio, the gradient reaches each token (GSPO-token with equal advantages).
        log_ratio = (log_ratio.sum(-1) / lengths)[:, None].expand_as(logprobs)
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
    each = -torch.minimum(ratio * advantage[:, None], clipped * advantage[:, None])
    measured: dict[str, float] = {}
    if reference is not None:
        gap = reference - logprobs
        kl = gap.exp() - gap - 1
        measured["train/kl"] = float((kl.detach() * real).sum() / tokens)
        if config.beta:
            # Times the ratio (1 on policy): without its gradient the KL's is biased (DeepSeek-V3.2 2512.02556).
            each = each + config.beta * ratio * kl
    if config.loss_type in ("grpo", "gspo"):
        loss = ((each * real).sum(-1) / lengths).sum() / len(whole)
    elif config.loss_type == "dapo":
        loss = (each * real).sum() / tokens
    else:
        loss = (each * real).sum() / (len(whole) * config.max_new_tokens)
    low = ((ratio < 1 - config.clip_low) & (advantage[:, None] < 0) & real).sum() / tokens
    high = ((ratio > 1 + config.clip_high) & (advantage[:, None] > 0) & real).sum() / tokens
    return loss, measured | {"train/clip_low": float(low), "train/clip_high": float(high)}
