"""FlexAttention over a tree, uncompiled on a CPU, against attention in blocks; and which blocks its
kernels look at.
"""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from workers.lib.prefixes import Tree
from workers.ml import flex
from workers.ml.attention import Segment, tree_attention


def segments(seed: int, length: int, cut: int) -> tuple[Segment, list[Segment], np.ndarray]:
    """New tokens of a random tree, those above, and what the new ones see, [new, all]."""
    draw = random.Random(seed)
    rows: list[list[int]] = [[1] * length]
    for _ in range(5):
        before = draw.choice(rows)
        rows.append(
            before[: draw.randint(1, len(before))]
            + [draw.randrange(9) for _ in range(draw.randint(1, length))]
        )
    tokens = Tree(rows).tokens()
    made = []
    for where in (slice(0, cut // 2), slice(cut // 2, cut), slice(cut, None)):
        numbers, ends = tokens.numbers[where], tokens.ends[where]
        keys, values = ([torch.randn(2, 1, len(numbers), 16)] for _ in range(2))
        made.append(Segment(keys, values, numbers, ends))
    asked = tokens.numbers[cut:, None]
    return made[2], made[:2], (tokens.numbers <= asked) & (asked < tokens.ends)


@pytest.mark.more(rows=1)
@pytest.mark.parametrize(
    ("seed", "length", "cut"), [(0, 3, 2), (1, 60, 40), (2, 200, 130), (3, 300, 0)]
)
def test_it_attends_as_blocks_do(seed: int, length: int, cut: int) -> None:
    torch.manual_seed(seed)
    new, above, seen = segments(seed, length, cut)
    query = torch.randn(1, 4, len(new.numbers), 16)
    keys, values = ([getattr(one, name)[0] for one in (*above, new)] for name in ("keys", "values"))
    expected = tree_attention(new, above)(query, 0.3, keys, values)
    numbers, ends = (
        np.concatenate([getattr(one, name) for one in (*above, new)])
        for name in ("numbers", "ends")
    )
    mask = flex.block_mask(new.numbers, numbers, ends, torch.device("cpu"))
    torch.testing.assert_close(flex.attend(query, 0.3, keys, values, mask), expected)
    scores = (
        torch.einsum("hud,hsd->hus", query[0], torch.cat(keys, 2)[:, 0].repeat_interleave(2, 0))
        * 0.3
    )
    weights = scores.masked_fill(~torch.from_numpy(seen), float("-inf")).softmax(-1)
    plain = torch.einsum(
        "hus,hsd->uhd", weights, torch.cat(values, 2)[:, 0].repeat_interleave(2, 0)
    )
    torch.testing.assert_close(expected[0], plain)


def test_kernels_look_at_no_block_that_is_hidden_and_ask_no_pair_of_one_that_is_seen() -> None:
    """Two rows of 256 tokens after a beginning of 256."""
    numbers = np.arange(3 * 256)
    ends = np.repeat([768, 512, 768], 256)
    mask = flex.block_mask(numbers[256:], numbers, ends, torch.device("cpu"))
    assert mask.kv_num_blocks.tolist() == [[[1, 1, 1, 1]]]  # the diagonal
    assert mask.full_kv_num_blocks.tolist() == [[[2, 3, 2, 3]]]
    assert (
        mask.full_kv_indices[0, 0, 3, :3].tolist() == [0, 1, 4] and mask.kv_indices[0, 0, 3, 0] == 5
    )


def test_it_is_not_used_without_a_gpu() -> None:
    assert not flex.usable(16, 2, torch.float32, torch.device("cpu"))
