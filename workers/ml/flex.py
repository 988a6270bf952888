"""Attention over a tree with FlexAttention: on a GPU, neither the scores nor a mask of tokens ×
tokens is ever stored.

The blocks of 128 × 128 that the kernel has to visit, and those of them that need no mask, are
computed here from the tokens' numbers, one row of blocks at a time. In all other blocks, each pair
is checked by its numbers.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

SIZE = 128


def block_mask(
    numbers: np.ndarray, key_numbers: np.ndarray, key_ends: np.ndarray, device: torch.device
) -> BlockMask:
    """The mask for new tokens with these numbers [U] and the keys [S]."""
    rows, columns = -(-len(numbers) // SIZE), -(-len(key_numbers) // SIZE)
    last = np.iinfo(np.int32).max
    asked = _padded(numbers, rows, last)
    first, end = _padded(key_numbers, columns, last), _padded(key_ends, columns, 0)
    partial, whole = np.zeros((rows, columns), bool), np.zeros((rows, columns), bool)
    for row in range(rows):
        some = numbers[row * SIZE : (row + 1) * SIZE, None]
        sees = ((first <= some) & (some < end)).reshape(len(some), columns, SIZE)
        whole[row], partial[row] = sees.all((0, 2)), sees.any((0, 2))
    asked, first, end = (torch.from_numpy(x).to(device) for x in (asked, first, end))

    def seen(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (first[key] <= asked[query]) & (asked[query] < end[key])

    return BlockMask.from_kv_blocks(
        *_listed(partial & ~whole, device),
        *_listed(whole, device),
        BLOCK_SIZE=SIZE,
        mask_mod=seen,
        seq_lengths=(len(numbers), len(key_numbers)),
    )


def _padded(x: np.ndarray, blocks: int, fill: int) -> np.ndarray:
    return np.concatenate([x, np.full(blocks * SIZE - len(x), fill)]).astype(np.int32)


def _listed(chosen: np.ndarray, device: torch.device) -> tuple[Tensor, Tensor]:
    """(number of chosen blocks per row, [1, 1, rows]; their columns first, [1, 1, rows,
    columns]).
    """
    order = np.argsort(~chosen, axis=1, kind="stable").astype(np.int32)
    counts = chosen.sum(1).astype(np.int32)
    return torch.from_numpy(counts)[None, None].to(device), torch.from_numpy(order)[None, None].to(
        device
    )


def attend(
    query: Tensor, scaling: float, keys: list[Tensor], values: list[Tensor], mask: BlockMask
) -> Tensor:
    """query [1, heads, U, d], keys and values [kv, 1, s, d] of each segment → [1, U, heads, d]."""
    k, v = (torch.cat(some, dim=2).transpose(0, 1) for some in (keys, values))
    run = compiled() if query.device.type == "cuda" else flex_attention
    return run(
        query, k, v, block_mask=mask, scale=scaling, enable_gqa=query.shape[1] != k.shape[1]
    ).transpose(1, 2)


@cache
def compiled() -> Any:
    return torch.compile(flex_attention, dynamic=True)


@cache
def usable(d: int, group: int, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether the forward and backward kernels can be built here for heads of this size."""
    if device.type != "cuda":
        return False
    try:
        numbers, ends = np.arange(SIZE + 1), np.full(SIZE + 1, SIZE + 1)
        q, k, v = (
            torch.randn(*shape, SIZE + 1, d, device=device, dtype=dtype, requires_grad=True)
            for shape in ((1, group), (1, 1), (1, 1))
        )
        attend(q, 1.0, [k], [v], block_mask(numbers, numbers, ends, device)).sum().backward()
    except Exception:  # no Triton, no compiler, or an unsupported head size
        return False
    return True
