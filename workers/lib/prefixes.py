"""Token sequences as a prefix tree, cut into parts that are computed one after the other. Pure.

    system prompt ─┬─ task 1 ─┬─ first answer ─┬─ result, second answer
                   │          │                └─ another second answer
                   │          └─ another first answer
                   └─ task 2 ── …

Each distinct token is in the tree once, however many sequences go through it. Tokens are numbered
depth first, so that the tokens below one are those numbered from its own number up to its `end`:
one token precedes another in some sequence if and only if number ≤ the other's number < end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise

import numpy as np


@dataclass(eq=False)
class Node:
    """A run of tokens that no sequence leaves or enters in the middle; `depth` is the position of
    the first.
    """

    ids: Sequence[int]
    depth: int = 0
    children: dict[int, Node] = field(default_factory=dict)  # by their first token
    number: int = 0
    end: int = 0

    @property
    def size(self) -> int:
        """The number of tokens in its subtree."""
        return self.end - self.number

    @property
    def numbers(self) -> range:
        return range(self.number, self.number + len(self.ids))

    def split(self, length: int) -> None:
        """Keep `length` tokens here and move the rest into a child."""
        rest = Node(self.ids[length:], self.depth + length, self.children)
        self.ids, self.children = self.ids[:length], {rest.ids[0]: rest}


@dataclass(eq=False)
class Tokens:
    """Tokens that are computed together; all arrays are [n], by their numbers."""

    ids: Sequence[int]
    positions: np.ndarray
    numbers: np.ndarray
    ends: np.ndarray

    def some(self, which: np.ndarray) -> Tokens:
        ids = [self.ids[at] for at in which]
        return Tokens(ids, self.positions[which], self.numbers[which], self.ends[which])


@dataclass(eq=False)
class Part:
    """Nodes that are computed together, each after its parent, which is in this part or in one
    above; and the parts below.
    """

    nodes: list[Node]
    below: list[Part] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.nodes.sort(key=lambda node: node.number)
        self.ids = list(chain.from_iterable(node.ids for node in self.nodes))
        self.positions = _ranges((node.depth, len(node.ids)) for node in self.nodes)
        self.numbers = _ranges((node.number, len(node.ids)) for node in self.nodes)
        self.ends = np.repeat(
            [node.end for node in self.nodes], [len(node.ids) for node in self.nodes]
        )


class Tree:
    def __init__(self, sequences: Sequence[Sequence[int]]) -> None:
        self.root = Node([])
        for sequence in sequences:
            self._add(sequence)
        self._number()
        self.paths = [
            self._path(sequence) for sequence in sequences
        ]  # the numbers of each sequence's tokens

    def __len__(self) -> int:
        """The number of distinct tokens."""
        return self.root.size

    @property
    def shared(self) -> int:
        """The number of tokens that all sequences have in common at the beginning; these have the
        first numbers.
        """
        return len(self._only.ids) if self._only else 0

    def tokens(self) -> Tokens:
        """All tokens."""
        whole = Part([*_below(self.root.children.values())])
        return Tokens(whole.ids, whole.positions, whole.numbers, whole.ends)

    @property
    def _only(self) -> Node | None:
        first = list(self.root.children.values())
        return first[0] if len(first) == 1 else None

    def parts(self, most: int) -> list[Part]:
        """Parts of about `most` tokens each; a single node may have more."""
        return _parts(self.root.children.values(), most)

    def _add(self, ids: Sequence[int]) -> None:
        node, at = self.root, 0
        while at < len(ids):
            child = node.children.get(ids[at])
            if child is None:
                node.children[ids[at]] = Node(ids[at:], at)
                return
            same = _same(child.ids, ids, at)
            if same < len(child.ids):
                child.split(same)
            node, at = child, at + same

    def _number(self) -> None:
        ordered, waiting, next_number = [], [self.root], 0
        while waiting:
            node = waiting.pop()
            node.number, next_number = next_number, next_number + len(node.ids)
            ordered.append(node)
            waiting += reversed(node.children.values())
        for node in reversed(ordered):
            own = node.number + len(node.ids)
            node.end = max((child.end for child in node.children.values()), default=own)

    def _path(self, ids: Sequence[int]) -> np.ndarray:
        node, at, found = self.root, 0, []
        while at < len(ids):
            node = node.children[ids[at]]
            found.append((node.number, min(len(node.ids), len(ids) - at)))
            at += len(node.ids)
        return _ranges(found)


def shares(sequences: Sequence[Sequence[int]], count: int) -> list[list[int]]:
    """The indices of the sequences in `count` shares. Sequences with a common beginning stay
    together; subject to that, the largest share has as few distinct tokens as possible.
    """
    if count == 1 or not sequences:
        return [list(range(len(sequences))), *([] for _ in range(count - 1))]
    order = sorted(range(len(sequences)), key=lambda number: list(sequences[number]))
    same = [_same(sequences[one], sequences[other], 0) for one, other in pairwise(order)]

    def cut(most: int) -> list[list[int]]:
        found, room = [[order[0]]], most - len(sequences[order[0]])
        for number, common in zip(order[1:], same, strict=True):
            room -= len(sequences[number]) - common
            if room < 0:
                found.append([])
                room = most - len(sequences[number])
            found[-1].append(number)
        return found

    low, high = max(map(len, sequences)), sum(map(len, sequences))
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if len(cut(middle)) <= count else (middle + 1, high)
    found = [sorted(share) for share in cut(low)]
    return found + [[] for _ in range(count - len(found))]


def count_tokens(sequences: Sequence[Sequence[int]], size: int = 0) -> dict[str, float]:
    """Of an update over these sequences, `size` of them in a tree (0: all), as metrics of the run:
    all tokens, and the distinct ones, which are computed."""
    size, every, distinct = size or max(1, len(sequences)), sum(map(len, sequences)), 0
    for start in range(0, len(sequences), size):
        ordered = sorted(map(list, sequences[start : start + size]))
        distinct += sum(map(len, ordered)) - sum(
            _common(one, other) for one, other in pairwise(ordered)
        )
    return {"train/tokens": float(every), "train/distinct_tokens": float(distinct)}


def _parts(nodes: Iterable[Node], most: int) -> list[Part]:
    """Subtrees: small ones are combined, a large one is cut into its top and the parts below it."""
    found: list[Part] = []
    together: list[Node] = []
    room = 0
    for node in nodes:
        if node.size > most:
            found.append(_top(node, most))
        elif node.size <= room:
            together.append(node)
            room -= node.size
        else:
            found += _whole(together)
            together, room = [node], most - node.size
    return found + _whole(together)


def _whole(nodes: list[Node]) -> list[Part]:
    """One part with all these nodes' subtrees; [] for no nodes."""
    return [Part([*_below(nodes)])] if nodes else []


def _below(nodes: Iterable[Node]) -> Iterator[Node]:
    """All nodes of their subtrees."""
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        yield node
        waiting += node.children.values()


def _top(node: Node, most: int) -> Part:
    """The part at the top of a subtree: its nodes level by level as long as they fit, so that short
    nodes are computed together. Only nodes with children, because the whole part is kept until
    everything below has been computed.
    """
    taken, left, waiting, room = [], [], [node], most
    for one in waiting:
        if one is node or (one.children and len(one.ids) <= room):
            taken.append(one)
            room -= len(one.ids)
            waiting += one.children.values()
        else:
            left.append(one)
    return Part(taken, _parts(left, most))


def _common(first: list[int], second: list[int], at_once: int = 256) -> int:
    """How many tokens both begin with."""
    at = 0
    while (
        first[at : at + at_once] == second[at : at + at_once]
        and at < len(first)
        and at < len(second)
    ):
        at += at_once
    at = min(at, len(first), len(second))
    return at + _same(first[at:], second, at)


def _same(first: Sequence[int], second: Sequence[int], at: int) -> int:
    """The number of tokens that `first` has in common with `second[at:]` at the beginning."""
    longest = min(len(first), len(second) - at)
    return next((n for n in range(longest) if first[n] != second[at + n]), longest)


def _ranges(found: Iterable[tuple[int, int]]) -> np.ndarray:
    """The numbers in ranges (first, length), concatenated."""
    return np.concatenate(
        [np.empty(0, int), *(np.arange(first, first + length) for first, length in found)]
    )
