"""Attention of new tokens to segments of keys and values: those of a tree (workers.ml.tree), or of
rows being generated.

In a tree, a part's tokens attend to earlier tokens of their own rows, within the part and in the
parts above it. They do so in blocks of a few tokens. Keys that no token of a block may see are left
out, so that hardly any masked score is computed, and the weights (tokens × visible keys, for each
head) exist only for a few tokens of one head at a time, in the forward and the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from transformers import AttentionInterface

from workers.lib.errors import JobError
from workers.ml import flex

NAME = "flywheel_tree"
BLOCK = {"cpu": 64, "cuda": 1024}  # new tokens at a time
FLASH = {
    "cpu"
}  # devices for which torch has a kernel that returns the sums needed by its backward pass


@dataclass
class Segment:
    """Keys and values of some tokens for every layer, [kv_heads, b, s, head_dim]; b divides the
    number of rows that attend.

    If the tokens are part of a tree (workers.lib.prefixes), `numbers` [s] and `ends` [s] are
    theirs.
    """

    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)
    numbers: np.ndarray = field(default_factory=lambda: np.empty(0, int))
    ends: np.ndarray = field(default_factory=lambda: np.empty(0, int))


Attend = Callable[[Tensor, float, list[Tensor], list[Tensor]], Tensor]
"""(query [R, heads, U, d], scaling, keys of each segment, values of each, the new tokens' own last)
→ [R, U, heads, d]
"""


@dataclass
class Pass:
    """One forward pass: the segments above the new tokens, how the new tokens attend, and where
    their keys and values go.

    `store(layer, keys, values)` keeps the new keys and values [kv_heads, rows, new, head_dim] and
    returns those that the new tokens attend to among themselves. `longest` is the number of tokens
    of the longest row.
    """

    above: list[Segment]
    store: Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor]]
    attend: Attend
    longest: int


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
    """query [R, heads, U, d], key and value [R, kv_heads, U, d] → [R, U, heads, d]. `branch` is
    passed as an argument of the model.
    """
    assert branch is not None, (
        "this model was switched to attention over a tree; call it through workers.ml.tree"
    )
    if softcap is not None or s_aux is not None:
        raise NotImplementedError("capped attention scores and attention sinks")
    if sliding_window and branch.longest > sliding_window:
        raise JobError(
            f"The prompts are longer than this model's attention window of {sliding_window} tokens."
        )
    layer = module.layer_idx
    own_keys, own_values = branch.store(layer, key.transpose(0, 1), value.transpose(0, 1))
    keys = [*(segment.keys[layer] for segment in branch.above), own_keys]
    values = [*(segment.values[layer] for segment in branch.above), own_values]
    return branch.attend(query, scaling, keys, values), None


# A tree's tokens


class Block(NamedTuple):
    """Some of the new tokens, the slices of segments that they attend to, and a mask of 0 or −inf
    for each pair, [1, 1, tokens × g, keys], where g query heads share their keys.
    """

    tokens: slice
    keys: list[tuple[int, slice]]  # (index of the segment, its tokens)
    mask: Tensor


def tree_attention(new: Segment, above: list[Segment]) -> Attend:
    """The attention function for the new tokens of a tree: in blocks, or with FlexAttention on a
    GPU that supports it.
    """

    @cache  # shared by all layers
    def mask(device: torch.device) -> Any:
        segments = [*above, new]
        numbers, ends = (
            np.concatenate([getattr(one, name) for one in segments]) for name in ("numbers", "ends")
        )
        return flex.block_mask(new.numbers, numbers, ends, device)

    @cache
    def blocks(group: int, dtype: torch.dtype, device: torch.device) -> list[Block]:
        return blocks_of(new, above, group, torch.empty(0, dtype=dtype, device=device))

    def attend(query: Tensor, scaling: float, keys: list[Tensor], values: list[Tensor]) -> Tensor:
        group = query.shape[1] // len(keys[0])
        if flex.usable(query.shape[-1], group, query.dtype, query.device):
            return flex.attend(query, scaling, keys, values, mask(query.device))
        return _Blocks.apply(
            query, scaling, blocks(group, query.dtype, query.device), *keys, *values
        )

    return attend


def blocks_of(new: Segment, above: list[Segment], group: int, like: Tensor) -> list[Block]:
    """`group` query heads share their keys; the masks have device and dtype of `like`."""
    segments, size = [*above, new], BLOCK.get(like.device.type, BLOCK["cpu"])
    found = []
    for at in range(0, len(new.numbers), size):
        numbers = new.numbers[at : at + size, None]
        keys, seen = [], []
        for index, segment in enumerate(segments):
            near = np.flatnonzero((segment.numbers <= numbers[-1]) & (numbers[0] < segment.ends))
            if not len(near):
                continue
            near = slice(near[0], near[-1] + 1)
            sees = (segment.numbers[near] <= numbers) & (numbers < segment.ends[near])
            edges = np.flatnonzero(np.diff(sees.any(0), prepend=False, append=False)).tolist()
            for first, last in zip(edges[::2], edges[1::2], strict=True):
                keys.append((index, slice(near.start + first, near.start + last)))
                seen.append(sees[:, first:last])
        hidden = torch.from_numpy(~np.concatenate(seen, axis=1)).to(like.device)
        mask = like.new_zeros(hidden.shape).masked_fill_(hidden, float("-inf"))
        mask = mask[:, None].expand(-1, group, -1).reshape(1, 1, -1, mask.shape[1])
        found.append(Block(slice(at, at + len(numbers)), keys, mask))
    return found


class _Blocks(torch.autograd.Function):
    """query [1, heads, U, d]; segments: the keys of each [kv, 1, s, d], then the values. Stores
    neither weights nor copies of keys.
    """

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, scaling: float, blocks: list[Block], *segments: Tensor
    ) -> Tensor:
        q = _folded(query.transpose(1, 2), len(segments[0]))
        output, sums = torch.empty_like(q), []
        for tokens, slices, mask in blocks:
            keys, values = _chosen(slices, segments)
            found, total = _forward(_rows(q, tokens), keys, values, mask, scaling)
            output[:, tokens] = found.view_as(output[:, tokens])
            sums.append(total)
        output = _unfolded(output)
        ctx.save_for_backward(query, output, *sums, *segments)
        ctx.scaling, ctx.blocks = scaling, blocks
        return output

    @staticmethod
    def backward(ctx: Any, arriving: Tensor) -> tuple[Tensor | None, ...]:
        query, output, *rest = ctx.saved_tensors
        sums, segments = rest[: len(ctx.blocks)], rest[len(ctx.blocks) :]
        half = len(segments) // 2
        q, output, arriving = (
            _folded(x, len(segments[0])) for x in (query.transpose(1, 2), output, arriving)
        )
        of_query, of_segments = (
            torch.empty_like(q),
            [torch.zeros_like(segment) for segment in segments],
        )
        for (tokens, slices, mask), total in zip(ctx.blocks, sums, strict=True):
            keys, values = _chosen(slices, segments)
            rows = (_rows(x, tokens) for x in (arriving, q, output))
            found, *of_chosen = _backward(*rows, keys, values, total, mask, ctx.scaling)
            of_query[:, tokens] = found.view_as(of_query[:, tokens])
            for gradients, into in zip(
                of_chosen, (of_segments[:half], of_segments[half:]), strict=True
            ):
                pieces = gradients[0].split(
                    [where.stop - where.start for _, where in slices], dim=1
                )
                for (index, where), piece in zip(slices, pieces, strict=True):
                    into[index][:, 0, where] += piece
        return _unfolded(of_query).transpose(1, 2), None, None, *of_segments


def _forward(
    q: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scaling: float
) -> tuple[Tensor, Tensor]:
    """(attention output for q [1, kv, n, d], log-sum-exp of each softmax)."""
    if q.device.type in FLASH:
        attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        return attend(q, keys, values, 0.0, False, attn_mask=mask, scale=scaling)
    found = functional.scaled_dot_product_attention(q, keys, values, attn_mask=mask, scale=scaling)
    return found, q.new_empty(0)


def _backward(
    arriving: Tensor,
    q: Tensor,
    output: Tensor,
    keys: Tensor,
    values: Tensor,
    total: Tensor,
    mask: Tensor,
    scaling: float,
) -> Sequence[Tensor]:
    """The gradients of q, keys and values."""
    if q.device.type in FLASH:
        backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
        return backward(
            arriving, q, keys, values, output, total, 0.0, False, attn_mask=mask, scale=scaling
        )
    leaves = [x.detach().requires_grad_() for x in (q, keys, values)]
    with torch.enable_grad():
        found = functional.scaled_dot_product_attention(*leaves, attn_mask=mask, scale=scaling)
    return torch.autograd.grad(found, leaves, arriving)


def _chosen(slices: list[tuple[int, slice]], segments: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """The keys and values of these slices, [1, kv, n, d]."""
    half = len(segments) // 2
    keys, values = (
        torch.cat([some[index][:, 0, where] for index, where in slices], dim=1)[None]
        for some in (segments[:half], segments[half:])
    )
    return keys, values


def _folded(x: Tensor, kv: int) -> Tensor:
    """[1, U, heads, d] → [kv, U, g, d]: the tokens of all heads that share keys form one matrix."""
    _, new, heads, d = x.shape
    return x.reshape(new, kv, heads // kv, d).transpose(0, 1).contiguous()


def _unfolded(x: Tensor) -> Tensor:
    kv, new, group, d = x.shape
    return x.transpose(0, 1).reshape(1, new, kv * group, d)


def _rows(x: Tensor, tokens: slice) -> Tensor:
    """[kv, U, g, d] → [1, kv, tokens × g, d]"""
    return x[:, tokens].flatten(1, 2)[None]


# Rows being generated, without gradients


class Look(NamedTuple):
    """A segment that rows attend to: its index, and a mask of its tokens that are hidden from them,
    [1 or b, 1 or new, s]; None if none are.
    """

    segment: int
    hidden: Tensor | None


def row_attention(looks: list[Look]) -> Attend:
    """The attention function of R rows that attend to segments shared by some or all of them."""

    def attend(query: Tensor, scaling: float, keys: list[Tensor], values: list[Tensor]) -> Tensor:
        rows, heads, new, d = query.shape
        q = (query * scaling).reshape(rows, len(keys[0]), -1, new, d).transpose(0, 1).contiguous()
        weights = torch.cat([_scores(q, keys[at], hidden) for at, hidden in looks], dim=-1)
        weights = weights.softmax(dim=-1, dtype=torch.promote_types(q.dtype, torch.float32)).to(
            q.dtype
        )
        split = weights.split([keys[at].shape[2] for at, _ in looks], dim=-1)
        found = sum(
            _product(weight, values[at]) for weight, (at, _) in zip(split, looks, strict=True)
        )
        return found.permute(1, 3, 0, 2, 4).reshape(rows, new, heads, d)

    return attend


def _scores(q: Tensor, keys: Tensor, hidden: Tensor | None) -> Tensor:
    """[kv, R, g, U, s]"""
    found = _product(q, keys.transpose(-1, -2))
    if hidden is not None:
        found.view(len(found), len(hidden), -1, *found.shape[2:]).masked_fill_(
            hidden[:, None, None], float("-inf")
        )
    return found


def _product(x: Tensor, matrices: Tensor) -> Tensor:
    """x [kv, R, g, U, n] times each row's matrix [kv, b, n, m]: [kv, R, g, U, m]. Rows that share a
    matrix are multiplied together.
    """
    folded = x.reshape(len(x), matrices.shape[1], -1, x.shape[-1])
    return (folded @ matrices).view(*x.shape[:-1], matrices.shape[-1])


AttentionInterface.register(NAME, attention)
