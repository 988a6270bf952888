"""Attention of new tokens to segments of keys and values that several rows share (workers.ml.tree).

Weights (tokens × what they see, for each head) are the second largest thing in an update. They are computed for a chunk
of the new tokens at a time, not kept, and computed again in the backward pass, which costs one matrix product of about
ten; a chunk of a causal level does not look at the keys after it, which saves half of the prompt's own part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import AttentionInterface

from workers.lib.errors import JobError

NAME = "flywheel_tree"
CHUNK = {"cpu": 2**21, "cuda": 2**27}  # weights at a time; 8 and 512 MiB in float32


@dataclass
class Segment:
    """Keys and values of some tokens for every layer, [kv_heads, b, s, head_dim]; b divides the number of rows that attend.

    Where tokens are those of a tree (workers.lib.prefixes), their `numbers` [s] and `ends` [s].
    """

    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)
    numbers: np.ndarray = field(default_factory=lambda: np.empty(0, int))
    ends: np.ndarray = field(default_factory=lambda: np.empty(0, int))


class Look(NamedTuple):
    """What some of the new tokens attend to: `keys` of the segment of that index (the new tokens' own is the last), less those
    that are hidden, [1 or b, 1 or new, s]; None for none."""

    segment: int
    keys: slice
    hidden: Tensor | None


Chunk = tuple[slice, list[Look]]  # of the new tokens, and what they attend to


@dataclass
class Pass:
    """One forward pass: which segments are above the new tokens, what these attend to, and where the new ones go.

    `store(layer, keys, values)` keeps the new keys and values [kv_heads, rows, new, head_dim] and returns those that the
    new tokens attend to among themselves. `longest` is the number of tokens of the longest row.
    """

    above: list[Segment]
    store: Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor]]
    chunks: list[Chunk]
    longest: int


def view(new: Segment, above: list[Segment], heads: int, device: torch.device) -> list[Chunk]:
    """What the new tokens of a tree attend to: those before them in their own rows. In chunks whose weights fit in CHUNK;
    keys that none of a chunk sees are not looked at, and a mask is there only for those that not all of it see."""
    segments = [*above, new]
    total = sum(len(segment.numbers) for segment in segments)
    size = max(1, CHUNK.get(device.type, CHUNK["cpu"]) // (heads * total))
    chunks = []
    for at in range(0, len(new.numbers), size):
        numbers = new.numbers[at : at + size, None]
        looks = []
        for index, segment in enumerate(segments):
            seen = (segment.numbers <= numbers) & (numbers < segment.ends)
            by = seen.sum(0)
            kinds = np.where(by == len(seen), 2, by > 0)  # seen by all, by some, by none
            edges = np.flatnonzero(np.diff(kinds, prepend=-1, append=-1)).tolist()
            for keys in (slice(*pair) for pair in pairwise(edges)):
                if kinds[keys.start]:
                    hidden = torch.from_numpy(~seen[:, keys])[None] if kinds[keys.start] == 1 else None
                    looks.append(Look(index, keys, None if hidden is None else hidden.to(device)))
        chunks.append((slice(at, at + len(seen)), looks))
    return chunks


class Part(NamedTuple):
    """Keys and values [kv, b, s, d] that R rows attend to (b divides R), and which of the s are hidden from them."""

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
    assert branch is not None, "this model was switched to attention over a tree; call it through workers.ml.tree"
    if softcap is not None or s_aux is not None:
        raise NotImplementedError("capped attention scores and attention sinks")
    if sliding_window and branch.longest > sliding_window:
        raise JobError(f"The prompts are longer than this model's attention window of {sliding_window} tokens.")
    layer = module.layer_idx
    own_keys, own_values = branch.store(layer, key.transpose(0, 1), value.transpose(0, 1))
    keys = [*(segment.keys[layer] for segment in branch.above), own_keys]
    values = [*(segment.values[layer] for segment in branch.above), own_values]
    return _Attention.apply(query, scaling, branch.chunks, *keys, *values), None


class _Attention(torch.autograd.Function):
    """query [R, heads, U, d]; segments: the keys of each, then the values, the new tokens' own last."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, scaling: float, chunks: list[Chunk], *segments: Tensor) -> Tensor:
        rows, heads, new, d = query.shape
        q = _grouped(query * scaling, len(segments[0]))
        output = query.new_empty(rows, new, heads, d)
        for chunk, looks in chunks:
            seen = _parts(looks, segments)
            weights = _weights(q[:, :, :, chunk], seen).to(q.dtype)
            found = sum(_product(weight, part.values) for weight, part in _split(weights, seen))
            output[:, chunk] = found.permute(1, 3, 0, 2, 4).reshape(rows, -1, heads, d)
        ctx.save_for_backward(query, output, *segments)
        ctx.scaling, ctx.chunks = scaling, chunks
        return output

    @staticmethod
    def backward(ctx: Any, wanted: Tensor) -> tuple[Tensor | None, ...]:
        """Of softmax: gradient of a score = weight × (gradient of the weight − their mean by weight)."""
        query, output, *segments = ctx.saved_tensors
        kv = len(segments[0])
        q = _grouped(query * ctx.scaling, kv)
        wanted, output = (_grouped(x.transpose(1, 2), kv) for x in (wanted, output))
        mean = (wanted * output).sum(-1, keepdim=True, dtype=_wide(q))
        q_gradient, gradients = torch.empty_like(q), [torch.zeros_like(segment) for segment in segments]
        for chunk, looks in ctx.chunks:
            queries, arriving = q[:, :, :, chunk], wanted[:, :, :, chunk]
            seen, into, found = _parts(looks, segments), _parts(looks, gradients), []
            for (weight, part), gradient in zip(_split(_weights(queries, seen), seen), into, strict=True):
                b = part.keys.shape[1]
                scores = _product(arriving, part.values.transpose(-1, -2)) - mean[:, :, :, chunk]
                scores = (scores * weight).to(q.dtype)
                found.append(_product(scores, part.keys))
                weight = _fold(weight.to(q.dtype), b).transpose(-1, -2)
                gradient.values.add_(weight @ _fold(arriving, b))
                gradient.keys.add_(_fold(scores, b).transpose(-1, -2) @ _fold(queries, b))
            q_gradient[:, :, :, chunk] = sum(found)
        back = q_gradient.transpose(0, 1).reshape(query.shape) * ctx.scaling
        return back, None, None, *gradients


def _parts(looks: list[Look], segments: Sequence[Tensor]) -> list[Part]:
    """Views of the segments' keys and values."""
    keys, values = segments[: len(segments) // 2], segments[len(segments) // 2 :]
    return [Part(keys[at][:, :, where], values[at][:, :, where], hidden) for at, where, hidden in looks]


def _weights(q: Tensor, parts: list[Part]) -> Tensor:
    """[kv, R, g, U, all that is seen], float32 or wider; they add up to 1."""
    scores = []
    for part in parts:
        found = _product(q, part.keys.transpose(-1, -2))
        if part.hidden is not None:
            blocks = found.view(len(found), len(part.hidden), -1, *found.shape[2:])
            blocks.masked_fill_(part.hidden[:, None, None], float("-inf"))
        scores.append(found)
    return torch.cat(scores, dim=-1).softmax(dim=-1, dtype=_wide(q))


def _wide(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


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
