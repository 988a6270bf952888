"""The tree of what token sequences begin with: every distinct token once, cut into parts without a
gap.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.lib.prefixes import Node, Part, Tree, count_tokens

tokens = st.integers(0, 2)  # few, so that sequences share their beginnings
sequences = st.lists(st.lists(tokens, max_size=12), max_size=12)
sizes = st.integers(1, 40)


def nodes(node: Node) -> Iterator[Node]:
    yield node
    for child in node.children.values():
        yield from nodes(child)


def flat(
    parts: list[Part], above: tuple[Part, ...] = ()
) -> Iterator[tuple[Part, tuple[Part, ...]]]:
    """Each part with those above it."""
    for part in parts:
        yield part, above
        yield from flat(part.below, (*above, part))


@given(sequences)
def test_every_distinct_beginning_is_one_token(rows: list[list[int]]) -> None:
    tree = Tree(rows)
    assert len(tree) == len({tuple(row[: at + 1]) for row in rows for at in range(len(row))})
    ids, positions = np.zeros(len(tree), int), np.zeros(len(tree), int)
    for node in nodes(tree.root):
        ids[list(node.numbers)] = node.ids
        positions[list(node.numbers)] = node.depth + np.arange(len(node.ids))
    for row, path in zip(rows, tree.paths, strict=True):
        assert ids[path].tolist() == row and positions[path].tolist() == list(range(len(row)))


@given(sequences)
def test_a_token_comes_before_another_where_its_number_and_end_say_so(
    rows: list[list[int]],
) -> None:
    tree = Tree(rows)
    end = {number: node.end for node in nodes(tree.root) for number in node.numbers}
    before = {
        (int(a), int(b)) for path in tree.paths for at, b in enumerate(path) for a in path[: at + 1]
    }
    assert before == {(a, b) for a in end for b in end if a <= b < end[a]}


@given(sequences)
def test_a_run_of_tokens_ends_only_where_rows_part_or_one_ends(rows: list[list[int]]) -> None:
    ending = {tuple(row) for row in rows}
    for node in list(nodes(Tree(rows).root))[1:]:
        assert node.ids
        if len(node.children) == 1:
            assert any(len(row) == node.depth + len(node.ids) for row in ending)


@given(sequences, sizes)
def test_parts_hold_every_token_once_and_below_what_comes_before_it(
    rows: list[list[int]], most: int
) -> None:
    tree = Tree(rows)
    found = list(flat(tree.parts(most)))
    assert sorted(number for part, _ in found for number in part.numbers) == list(range(len(tree)))
    for part, above in found:
        assert part.numbers.tolist() == sorted(part.numbers) and len(part.nodes) > 0
        there = {number for one in (*above, part) for number in one.numbers.tolist()}
        for path in tree.paths:
            for at in np.flatnonzero(np.isin(path, part.numbers)):
                assert set(path[:at].tolist()) <= there


@given(sequences, sizes)
def test_a_part_has_at_most_so_many_tokens_unless_it_begins_with_one_long_run(
    rows: list[list[int]], most: int
) -> None:
    for part, _ in flat(Tree(rows).parts(most)):
        assert len(part.ids) <= max(most, len(part.nodes[0].ids))
        assert len(part.ids) == len(part.positions) == len(part.numbers) == len(part.ends)


def test_small_subtrees_go_together_and_a_large_one_is_cut_along_its_nodes() -> None:
    prefix = list(range(100, 110))
    rows = [
        [*prefix, task, task, answer, answer, answer] for task in (1, 2) for answer in (3, 4, 5)
    ]
    tree = Tree(rows)
    [top] = tree.parts(16)
    # The prefix and both tasks' own words; no answer has room. The answers go together, whatever
    # task they are of.
    assert [len(node.ids) for node in top.nodes] == [10, 2, 2]
    assert [len(part.ids) for part in top.below] == [15, 3]
    [whole] = tree.parts(1000)
    assert len(whole.ids) == len(tree) == 10 + 4 + 18 and not whole.below


@pytest.mark.parametrize(
    ("rows", "shared"),
    [
        ([[1, 2, 3]], 3),
        ([[1, 2, 3], [1, 2, 4]], 2),
        ([[1, 2], [1, 2, 3]], 2),
        ([[5], [6]], 0),
        ([], 0),
        ([[]], 0),
    ],
)
def test_what_all_begin_with(rows: list[list[int]], shared: int) -> None:
    assert Tree(rows).shared == shared


@pytest.mark.proof
def test_rows_that_each_begin_with_the_last_one_need_no_deep_recursion() -> None:
    rows = [list(range(length)) for length in range(1, 1200)]
    tree = Tree(rows)
    assert len(tree) == 1199 and sum(len(part.ids) for part, _ in flat(tree.parts(256))) == 1199


@pytest.mark.parametrize("size", [0, 1, 2, 3])
def test_the_tokens_of_an_update_are_counted_as_the_tree_has_them(size: int) -> None:
    draw = random.Random(7)
    shared = [draw.randrange(4) for _ in range(600)]  # more than are compared at a time
    rows = [
        [*shared[: draw.randrange(601)], *(draw.randrange(3) for _ in range(draw.randrange(4)))]
        for _ in range(9)
    ]
    rows += [rows[0], []]
    parts = [rows[at : at + (size or 99)] for at in range(0, len(rows), size or 99)]
    expected = {
        "train/tokens": sum(map(len, rows)),
        "train/distinct_tokens": sum(len(Tree(part)) for part in parts),
    }
    assert count_tokens(rows, size) == expected
