"""Log-probabilities, entropies and accuracies of given tokens from hidden states, without
materializing all logits.

The logits of a whole batch (tokens × vocabulary) are the largest tensor of an update: 300 MB for
1,500 tokens of a small model, several times that with their gradients. Here they exist for one
slice of the vocabulary at a time, and the softmax is assembled from the slices. A token's
log-probability depends only on its own hidden state, so its gradient is one vector of that state's
size: the id's output row minus the mean of all output rows weighted by probability. That mean is
accumulated while a slice's logits exist, and scaled in the backward pass. Nothing is computed
twice.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from workers.ml.products import product

CHUNK = {"cpu": 2**20, "cuda": 2**27}  # logits at a time; 4 and 512 MiB in float32


class Tokens(NamedTuple):
    """For n tokens, each [n]: log-probability (with gradient), entropy in nats, whether the token
    was the likeliest.
    """

    logprobs: Tensor
    entropies: Tensor
    likeliest: Tensor


def token_logprobs(head: Any, hidden: Tensor, ids: Tensor, temperature: float = 1.0) -> Tokens:
    """The tokens `ids` [n] as predicted from `hidden` [n, h]; `head` projects to logits, computed
    in float32.
    """
    frozen = not any(parameter.requires_grad for parameter in head.parameters())
    if frozen and type(head) is torch.nn.Linear:
        return Tokens(*_FrozenHead.apply(hidden, ids, head.weight, head.bias, temperature))
    chunk = chunk_size(head)
    pieces = zip(hidden.split(chunk), ids.split(chunk), strict=True)
    if torch.is_grad_enabled():
        found = [
            checkpoint(_chunk, head, *piece, temperature, use_reentrant=False) for piece in pieces
        ]
    else:
        found = [_chunk(head, *piece, temperature) for piece in pieces]
    return Tokens(*map(torch.cat, zip(*found, strict=True)))


def chunk_size(head: Any) -> int:
    return max(1, CHUNK.get(head.weight.device.type, CHUNK["cpu"]) // head.weight.shape[0])


def _chunk(
    head: Any, hidden: Tensor, ids: Tensor, temperature: float
) -> tuple[Tensor, Tensor, Tensor]:
    logits = head(hidden)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    logprobs = (logits if temperature == 1 else logits / temperature).log_softmax(-1)
    chosen = logprobs.gather(-1, ids[:, None])[:, 0]
    with torch.no_grad():
        entropies = -(logprobs.exp() * logprobs).sum(-1)
        return chosen, entropies, chosen == logprobs.amax(-1)


class _FrozenHead(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        ids: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        temperature: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Online softmax over slices: its sum, and everything weighted by it, is rescaled when a
        larger logit comes.
        """
        wide = torch.promote_types(hidden.dtype, torch.float32)
        n, width = (
            len(hidden),
            max(1, CHUNK.get(hidden.device.type, CHUNK["cpu"]) // max(1, len(hidden))),
        )
        top = hidden.new_full((n, 1), torch.finfo(wide).min, dtype=wide)
        total, moment, chosen = (torch.zeros_like(top) for _ in range(3))
        mean = torch.zeros_like(hidden, dtype=wide) if ctx.needs_input_grad[0] else None
        for at in range(0, len(weight), width):
            rows = weight[at : at + width]
            logits = product(hidden, rows, None if bias is None else bias[at : at + width]).to(wide)
            if temperature != 1:
                logits /= temperature
            here = (ids - at)[:, None]
            inside = (here >= 0) & (here < len(rows))
            chosen = torch.where(inside, logits.gather(1, here.clamp(0, len(rows) - 1)), chosen)
            higher = torch.maximum(top, logits.amax(1, keepdim=True))
            scale = (top - higher).exp_()
            weights = logits.sub_(higher).exp()
            moment = (moment + total * (top - higher)) * scale + logits.mul_(weights).sum(
                1, keepdim=True
            )
            total = total * scale + weights.sum(1, keepdim=True)
            if mean is not None:
                mean.mul_(scale).add_(product(weights.to(rows.dtype), rows.t()))
            top = higher
        if mean is not None:
            ctx.save_for_backward(
                (weight[ids].to(wide) - mean.div_(total)).div_(temperature).to(hidden.dtype)
            )
        found = (chosen - top - total.log(), total.log() - moment / total, chosen == top)
        logprobs, entropies, likeliest = (each[:, 0] for each in found)
        ctx.mark_non_differentiable(entropies, likeliest)
        return logprobs, entropies, likeliest

    @staticmethod
    def backward(ctx: Any, wanted: Tensor, *_: Any) -> tuple[Tensor, None, None, None, None]:
        (gradients,) = ctx.saved_tensors
        return gradients * wanted[:, None].to(gradients.dtype), None, None, None, None
