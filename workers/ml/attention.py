"""Attention of new tokens to segments of keys and values that several rows share (workers.ml.branches).

Weights (tokens × what they see, for each head) are the second largest thing in an update. They are computed for a chunk
of the new tokens at a time, not kept, and computed again in the backward pass, which costs one matrix product of about
ten; a chunk of a causal level does not look at the keys after it, which saves half of the prompt's own part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import AttentionInterface

from workers.lib.errors import JobError

NAME = "flywheel_branches"
CHUNK = {"cpu": 2**21, "cuda": 2**27}  # weights at a time; 8 and 512 MiB in float32


@dataclass
class Segment:
    """Keys and values of one level for every layer, [kv_heads, b, s, head_dim], and which of the s are real, [b, s].

    b divides the number of rows that attend to it; `real` is None where all are.
    """

    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)
    real: Tensor | None = None


@dataclass
class Pass:
    """One forward pass: which segments stand above the new tokens, and where the new ones go.

    `store(layer, keys, values)` keeps the new keys and values [kv_heads, rows, new, head_dim] and returns those that the
    new tokens attend to among themselves, up to the last new one. `mask` [rows or 1, new, seen] says which (True: may
    attend), never a later one; None for all.
    """

    above: list[Segment]
    store: Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor]]
    mask: Tensor | None


class Part(NamedTuple):
    """Keys and values [kv, b, s, d] that R rows attend to (b divides R), and which of the s are hidden from them,
    [1 or b, 1 or new, s]; None for none."""

    keys: Tensor
    values: Tensor
    hidden: Tensor | None


def attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    branch: Pass | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """query [R, heads, U, d], key and value [R, kv_heads, U, d] → [R, U, heads, d]. `branch` is passed to the model."""
    assert branch is not None, "this model was switched to branch attention; call it through workers.ml.branches"
    if softcap is not None or s_aux is not None:
        raise NotImplementedError("capped attention scores and attention sinks")
    layer = module.layer_idx
    own_keys, own_values = branch.store(layer, key.transpose(0, 1), value.transpose(0, 1))
    keys = [*(segment.keys[layer] for segment in branch.above), own_keys]
    values = [*(segment.values[layer] for segment in branch.above), own_values]
    if sliding_window and sum(part.shape[2] for part in keys) > sliding_window:
        raise JobError(f"The prompts are longer than this model's attention window of {sliding_window} tokens.")
    hidden = [None if segment.real is None else ~segment.real[:, None] for segment in branch.above]
    hidden.append(None if branch.mask is None else ~branch.mask)
    return _Attention.apply(query, scaling, hidden, *keys, *values), None


class _Attention(torch.autograd.Function):
    """query [R, heads, U, d]; parts: the keys of every segment, then the values, the new tokens' own last."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, scaling: float, hidden: list[Tensor | None], *parts: Tensor) -> Tensor:
        rows, heads, new, d = query.shape
        q = _grouped(query * scaling, len(parts[0]))
        output = query.new_empty(rows, new, heads, d)
        for chunk, seen in _chunks(q, hidden, parts):
            weights = _weights(q[:, :, :, chunk], seen).to(q.dtype)
            found = sum(_product(weight, part.values) for weight, part in _split(weights, seen))
            output[:, chunk] = found.permute(1, 3, 0, 2, 4).reshape(rows, -1, heads, d)
        ctx.save_for_backward(query, output, *parts)
        ctx.scaling, ctx.hidden = scaling, hidden
        return output

    @staticmethod
    def backward(ctx: Any, wanted: Tensor) -> tuple[Tensor | None, ...]:
        """Of softmax: gradient of a score = weight × (gradient of the weight − their mean by weight)."""
        query, output, *parts = ctx.saved_tensors
        kv = len(parts[0])
        q = _grouped(query * ctx.scaling, kv)
        wanted, output = (_grouped(x.transpose(1, 2), kv) for x in (wanted, output))
        mean = (wanted * output).sum(-1, keepdim=True, dtype=torch.float32)
        q_gradient, gradients = torch.empty_like(q), [torch.zeros_like(part) for part in parts]
        keys_gradients, values_gradients = gradients[: len(parts) // 2], gradients[len(parts) // 2 :]
        for chunk, seen in _chunks(q, ctx.hidden, parts):
            queries, arriving = q[:, :, :, chunk], wanted[:, :, :, chunk]
            found = []
            for (weight, part), keys_gradient, values_gradient in zip(
                _split(_weights(queries, seen), seen), keys_gradients, values_gradients, strict=True
            ):
                b, size = part.keys.shape[1:3]
                scores = _product(arriving, part.values.transpose(-1, -2)) - mean[:, :, :, chunk]
                scores = (scores * weight).to(q.dtype)
                found.append(_product(scores, part.keys))
                weight = _fold(weight.to(q.dtype), b).transpose(-1, -2)
                values_gradient[:, :, :size] += weight @ _fold(arriving, b)
                keys_gradient[:, :, :size] += _fold(scores, b).transpose(-1, -2) @ _fold(queries, b)
            q_gradient[:, :, :, chunk] = sum(found)
        back = q_gradient.transpose(0, 1).reshape(query.shape) * ctx.scaling
        return back, None, None, *gradients


def _chunks(q: Tensor, hidden: list[Tensor | None], parts: Sequence[Tensor]) -> Iterator[tuple[slice, list[Part]]]:
    """Slices of the new tokens, each small enough for its weights to fit in CHUNK, and what each of them sees."""
    kv, rows, g, new, _ = q.shape
    keys, values = parts[: len(parts) // 2], parts[len(parts) // 2 :]
    above = [Part(*part) for part in zip(keys[:-1], values[:-1], hidden[:-1], strict=True)]
    total = sum(part.shape[2] for part in keys)
    size = max(1, CHUNK.get(q.device.type, CHUNK["cpu"]) // (kv * rows * g * total))
    for at in range(0, new, size):
        chunk = slice(at, min(at + size, new))
        last = keys[-1].shape[2] - (new - chunk.stop)  # no token sees a later one
        mask = None if hidden[-1] is None else hidden[-1][:, chunk, :last]
        yield chunk, [*above, Part(keys[-1][:, :, :last], values[-1][:, :, :last], mask)]


def _weights(q: Tensor, parts: list[Part]) -> Tensor:
    """[kv, R, g, U, all that is seen], float32; they add up to 1."""
    scores = []
    for part in parts:
        found = _product(q, part.keys.transpose(-1, -2))
        if part.hidden is not None:
            blocks = found.view(len(found), len(part.hidden), -1, *found.shape[2:])
            blocks.masked_fill_(part.hidden[:, None, None], float("-inf"))
        scores.append(found)
    return torch.cat(scores, dim=-1).softmax(dim=-1, dtype=torch.float32)


def _split(weights: Tensor, parts: list[Part]) -> Iterator[tuple[Tensor, Part]]:
    return zip(weights.split([part.keys.shape[2] for part in parts], dim=-1), parts, strict=True)


def _grouped(x: Tensor, kv: int) -> Tensor:
    """[R, heads, U, d] → [kv, R, g, U, d]: in this order rows that share keys are one matrix without a copy."""
    rows, heads, new, d = x.shape
    return x.reshape(rows, kv, heads // kv, new, d).transpose(0, 1).contiguous()


def _fold(x: Tensor, b: int) -> Tensor:
    """[kv, R, g, U, n] → [kv, b, R/b × g × U, n]."""
    return x.reshape(len(x), b, -1, x.shape[-1])


def _product(x: Tensor, matrices: Tensor) -> Tensor:
    """x [kv, R, g, U, n] times each row's matrix [kv, b, n, m]: [kv, R, g, U, m]."""
    return (_fold(x, matrices.shape[1]) @ matrices).view(*x.shape[:-1], matrices.shape[-1])


AttentionInterface.register(NAME, attention)
