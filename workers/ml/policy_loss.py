"""The clipped policy loss of GRPO and its relatives: a pure function of log-probabilities and advantages.

Sources: GRPO 2402.03300, DAPO 2503.14476, Dr. GRPO 2503.20783, GSPO 2507.18071, RLOO 2402.14740. The formulas are in
docs/training-methods.md.
"""

from __future__ import annotations

import torch
from torch import Tensor

from workers.lib.specs import GrpoConfig

OF_SEQUENCE = ("gspo", "rloo")  # losses with one ratio per completion


def policy_loss(
    logprobs: Tensor,
    old: Tensor,
    reference: Tensor | None,
    advantage: Tensor,
    real: Tensor,
    config: GrpoConfig,
    whole: Tensor | None = None,
    *,
    informative: Tensor | None = None,
    weight: Tensor | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """The clipped loss of a batch, all tensors [R, U] and advantage [R], and what was clipped. For a part of a batch, say
    with `whole` [R, U] which tokens of all of it are real: the parts' losses and metrics add up to the batch's.

    grpo: mean over completions of the mean over tokens. dapo: mean over all tokens. dr_grpo: sum over tokens / (R × the
    longest length allowed). gspo, rloo: as grpo, with one ratio per sequence, of its geometric mean or of its product. KL to
    the reference: the k3 estimator × the ratio; without beta it is measured only, and without a reference not even that.

    `informative` [R of the whole]: completions of groups whose rewards differ. The policy's term is a mean over them alone, so
    that its size does not depend on how many groups were flat; the KL's is over all. `weight` [R, U] or [R, 1] multiplies the
    policy's term: the correction for a sampler that is not the trainer.
    """
    whole = real if whole is None else whole
    lengths, row_tokens = real.sum(-1).clamp(min=1), whole.sum(-1)
    log_ratio = (logprobs - old) * real
    if config.loss_type in OF_SEQUENCE:
        # The value is the sequence's ratio, the gradient reaches each token (GSPO-token with equal advantages).
        by = lengths if config.loss_type == "gspo" else 1
        log_ratio = (log_ratio.sum(-1) / by)[:, None].expand_as(logprobs)
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
    each = -torch.minimum(ratio * advantage[:, None], clipped * advantage[:, None])
    if weight is not None:
        each = each * weight

    def mean(values: Tensor, over: Tensor) -> Tensor:
        """Of [R, U], as the loss averages; `over` [R of the whole]: the completions that the average is taken of."""
        if config.loss_type == "dapo":
            return (values * real).sum() / (row_tokens * over).sum().clamp(min=1)
        if config.loss_type == "dr_grpo":
            return (values * real).sum() / (over.sum().clamp(min=1) * config.max_new_tokens)
        return ((values * real).sum(-1) / lengths).sum() / over.sum().clamp(min=1)

    everything, tokens = torch.ones_like(row_tokens), row_tokens.sum().clamp(min=1)
    loss = mean(each, everything if informative is None else informative)
    measured: dict[str, float] = {}
    if reference is not None:
        gap = reference - logprobs
        kl = gap.exp() - gap - 1
        measured["train/kl"] = float((kl.detach() * real).sum() / tokens)
        if config.beta:
            # Times the ratio (1 on policy): without its gradient the KL's is biased (DeepSeek-V3.2 2512.02556).
            loss = loss + config.beta * mean(ratio * kl, everything)
    low = ((ratio < 1 - config.clip_low) & (advantage[:, None] < 0) & real).sum() / tokens
    high = ((ratio > 1 + config.clip_high) & (advantage[:, None] > 0) & real).sum() / tokens
    return loss, measured | {"train/clip_low": float(low), "train/clip_high": float(high)}
