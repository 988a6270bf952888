"""Lets TRL's DPO and KTO trainers use a model that computes shared prompts once (workers.ml.tree).
Heavy: imports TRL.

Their losses need the log-probability of each label, for which they call the model with
`fused_lm_head=True`. That call is replaced by one over the tree of the batch's rows: the two
answers of a pair share their prompt, and the pairs of a task share the beginning of theirs. Losses,
metrics and references are TRL's own.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
from torch import Tensor

from workers.lib.token_rows import TokenRow
from workers.ml.tree import scored_parts, use_tree


def share_prompts(
    trainer: Any, *, recompute: bool = False, check: Callable[[], None] = lambda: None
) -> None:
    """Patch the model of a trainer, after its creation, since TRL inspects the original model.
    `recompute`: gradient checkpointing, as in `scored_parts`; `check` is called for each part, and
    may raise. Raises JobError for an unsupported model.
    """
    use_tree(trainer.model)
    causal = (
        trainer.model.get_base_model()
        if hasattr(trainer.model, "get_base_model")
        else trainer.model
    )
    causal.recomputes, causal.check = recompute, check
    causal.forward = MethodType(_forward, causal)


def _forward(
    causal: Any,
    *,
    input_ids: Tensor,
    attention_mask: Tensor,
    labels: Tensor,
    fused_lm_head: bool,
    use_cache: bool = False,
    return_dict: bool | None = None,
    **other: Any,
) -> Any:
    """input_ids, attention_mask and labels [B, L] → the output of TRL's fused head, each [B, L −
    1]. The mean of the logits is NaN, because no loss needs it and nobody reports it.
    """
    from trl.trainer.utils import FusedCausalLMOutput

    wanted = [name for name, value in other.items() if value is not None]
    assert fused_lm_head and not use_cache and not wanted, (
        f"the trainer wants more than log-probabilities: {wanted}"
    )
    real, learnt = attention_mask.bool(), labels != -100
    rows = [
        TokenRow(ids[mask].tolist(), learns[mask].tolist())
        for ids, mask, learns in zip(input_ids, real, learnt, strict=True)
    ]
    empty = torch.zeros(0, device=input_ids.device)
    found = [(empty, empty, empty.bool()) for _ in rows]
    for some in scored_parts(causal, rows, recompute=causal.recomputes, together=True):
        causal.check()
        for number, used, *values in zip(some.rows.tolist(), some.real, *some.tokens, strict=True):
            found[number] = tuple(value[used] for value in values)
    mask = learnt[:, 1:]
    logprobs, entropies, likeliest = (
        torch.zeros(mask.shape, dtype=values[0].dtype, device=mask.device).masked_scatter(
            mask, torch.cat(values)
        )
        for values in zip(*found, strict=True)
    )
    return FusedCausalLMOutput(
        loss=-logprobs.sum() / mask.sum().clamp(min=1),
        log_probs=logprobs,
        entropy=entropies,
        mean_logits=torch.full_like(entropies, torch.nan),
        is_top1=likeliest,
        label_mask=mask,
    )
