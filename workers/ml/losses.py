"""What a causal LM says of given tokens, from hidden states, without logits of all of them at once.

Logits of a whole batch (tokens × vocabulary) are the largest thing in an update: 300 MB for 1,500 tokens of a small
model, several times over with their gradients. Here they exist for a chunk of tokens at a time. A token's
log-probability depends on its own hidden state alone, so its gradient is one vector of that state's size, computed
while the chunk's logits are there and scaled in the backward pass: nothing is computed twice.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

CHUNK = {"cpu": 2**21, "cuda": 2**27}  # logits at a time; 8 and 512 MiB in float32


class Tokens(NamedTuple):
    """Of n tokens, each [n]: log-probability (with its gradient), entropy in nats, whether it was the likeliest."""

    logprobs: Tensor
    entropies: Tensor
    likeliest: Tensor


def token_logprobs(head: Any, hidden: Tensor, ids: Tensor, temperature: float = 1.0) -> Tokens:
    """Tokens `ids` [n] as `hidden` [n, h] predicts them; `head` gives logits, computed with in float32."""
    frozen = not any(parameter.requires_grad for parameter in head.parameters())
    if frozen and hidden.requires_grad and torch.is_grad_enabled():
        return Tokens(*_FrozenHead.apply(hidden, ids, head, temperature))
    chunk = chunk_size(head)
    pieces = zip(hidden.split(chunk), ids.split(chunk), strict=True)
    if torch.is_grad_enabled() and not frozen:
        found = [checkpoint(_chunk, head, *piece, temperature, use_reentrant=False) for piece in pieces]
    else:
        found = [_chunk(head, *piece, temperature) for piece in pieces]
    return Tokens(*map(torch.cat, zip(*found, strict=True)))


def chunk_size(head: Any) -> int:
    return max(1, CHUNK.get(head.weight.device.type, CHUNK["cpu"]) // head.weight.shape[0])


def _chunk(head: Any, hidden: Tensor, ids: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    logits = head(hidden)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    logprobs = (logits if temperature == 1 else logits / temperature).log_softmax(-1)
    chosen = logprobs.gather(-1, ids[:, None])[:, 0]
    with torch.no_grad():
        entropies = -(logprobs.exp() * logprobs).sum(-1)
        return chosen, entropies, chosen == logprobs.amax(-1)


class _FrozenHead(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, ids: Tensor, head: Any, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
        chunk = chunk_size(head)
        gradients, found = [], []
        for states, tokens in zip(hidden.split(chunk), ids.split(chunk), strict=True):
            with torch.enable_grad():
                leaf = states.detach().requires_grad_()
                logprobs, *rest = _chunk(head, leaf, tokens, temperature)
                gradients += torch.autograd.grad(logprobs.sum(), leaf)
            found.append((logprobs.detach(), *rest))
        ctx.save_for_backward(torch.cat(gradients))
        logprobs, entropies, likeliest = map(torch.cat, zip(*found, strict=True))
        ctx.mark_non_differentiable(entropies, likeliest)
        return logprobs, entropies, likeliest

    @staticmethod
    def backward(ctx: Any, wanted: Tensor, *_: Any) -> tuple[Tensor, None, None, None]:
        (gradients,) = ctx.saved_tensors
        return gradients * wanted[:, None].to(gradients.dtype), None, None, None
