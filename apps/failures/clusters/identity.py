"""Matches today's groups with yesterday's: by shared members, or by content if they share none."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field

import numpy as np

from apps.failures.clusters.find import Cluster
from apps.failures.clusters.signatures import Signature, centres_of

LEAST_OVERLAP = 0.5  # of the smaller group, counted over the failures that both runs saw
LEAST_JACCARD = 0.1
LEAST_PART = 0.1  # minimum share of a group's failures to be reported as part of a split or a merge
LEAST_COSINE = 0.8


@dataclass(frozen=True)
class Known:
    """What is stored of a group to recognise it."""

    members: Set[str]
    signature: Signature

    @classmethod
    def of(cls, group: Cluster) -> Known:
        return cls(frozenset(group.members), group.signature)


@dataclass(frozen=True)
class Matching:
    """Which id each current group has, and what happened to the known ones.

    ids: one for each current group, in their order; kept, born and gone are ids, too
    splits: a known id → the ids of its parts, first the one that kept the id
    merges: a current id → the known ids that were merged into it
    """

    ids: tuple[str, ...]
    kept: tuple[str, ...] = ()
    born: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    splits: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    merges: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def id_of(group: Cluster) -> str:
    """An id for a new group, from its members: 12 hexadecimal digits."""
    return hashlib.blake2b("\0".join(sorted(group.members)).encode(), digest_size=6).hexdigest()


def match(
    previous: Mapping[str, Known], now: Sequence[Cluster], new_id: Callable[[Cluster], str] = id_of
) -> Matching:
    """Each known id goes to at most one group, so that as many failures as possible keep the id of
    their group.

    `new_id` must return neither an id of `previous` nor the same id twice: ValueError.
    """
    keys = sorted(previous)
    known = [previous[key] for key in keys]
    shared = _shared(known, now)
    pairs = _by_members(shared) | _by_words(known, now, shared)
    ids = [
        keys[pairs[place]] if place in pairs else new_id(group) for place, group in enumerate(now)
    ]
    born = [id for place, id in enumerate(ids) if place not in pairs]
    if len(set(ids)) < len(ids) or any(id in previous for id in born):
        raise ValueError("A new group got an id that is taken.")
    return Matching(
        ids=tuple(ids),
        kept=tuple(sorted(set(ids) - set(born))),
        born=tuple(sorted(born)),
        gone=tuple(sorted(set(keys) - set(ids))),
        splits=_splits(shared, keys, ids),
        merges=_merges(shared, keys, ids),
    )


def _shared(known: Sequence[Known], now: Sequence[Cluster]) -> np.ndarray:
    """(known, current): how many failures are in both."""
    places = {id: place for place, group in enumerate(now) for id in group.members}
    shared = np.zeros((len(known), len(now)), np.int64)
    for row, group in enumerate(known):
        inside = [places[id] for id in group.members if id in places]
        shared[row] += np.bincount(inside, minlength=len(now)) if inside else 0
    return shared


def _by_members(shared: np.ndarray) -> dict[int, int]:
    """Current index → known index, by Hungarian assignment. Failures that only one of the runs
    grouped do not count.
    """
    before, after = shared.sum(axis=1, keepdims=True), shared.sum(axis=0, keepdims=True)
    overlap = shared / np.maximum(np.minimum(before, after), 1)
    jaccard = shared / np.maximum(before + after - shared, 1)
    fits = (overlap >= LEAST_OVERLAP) & (jaccard >= LEAST_JACCARD)
    return _assigned(np.where(fits, shared, 0))


def _by_words(known: Sequence[Known], now: Sequence[Cluster], shared: np.ndarray) -> dict[int, int]:
    """The same by centre, for groups that share no failure with any other, for example if the old
    ones are no longer stored.
    """
    rows, columns = np.flatnonzero(shared.sum(axis=1) == 0), np.flatnonzero(shared.sum(axis=0) == 0)
    if not len(rows) or not len(columns):
        return {}
    old, new = [known[row].signature for row in rows], [now[column].signature for column in columns]
    cosines = (centres_of(old) @ centres_of(new).T).toarray()
    modes = np.array([[one.mode == other.mode for other in new] for one in old])
    pairs = _assigned(np.where((cosines >= LEAST_COSINE) & modes, cosines, 0))
    return {int(columns[column]): int(rows[row]) for column, row in pairs.items()}


def alike(parts: Sequence[Signature], others: Sequence[Signature]) -> list[bool]:
    """Whether each of the others has nearly the same centre as one of the parts."""
    if not parts or not others:
        return [False] * len(others)
    cosines = (centres_of(others) @ centres_of(parts).T).toarray()
    return [bool(best >= LEAST_COSINE) for best in cosines.max(axis=1)]


def _assigned(gains: np.ndarray) -> dict[int, int]:
    """Column → row of the assignment with the greatest sum, if there is any gain."""
    from scipy.optimize import (
        linear_sum_assignment,
    )  # a seventh of what every process imports; pages do not need it

    rows, columns = linear_sum_assignment(gains, maximize=True)
    return {
        int(column): int(row)
        for row, column in zip(rows, columns, strict=True)
        if gains[row, column] > 0
    }


def _splits(
    shared: np.ndarray, keys: Sequence[str], ids: Sequence[str]
) -> dict[str, tuple[str, ...]]:
    """Known groups that became two or more groups."""
    before, after = shared.sum(axis=1, keepdims=True), shared.sum(axis=0, keepdims=True)
    made_of = (shared > LEAST_OVERLAP * after) & (shared >= LEAST_PART * before)
    parts = {
        key: [ids[place] for place in np.flatnonzero(row)]
        for key, row in zip(keys, made_of, strict=True)
    }
    return {
        key: tuple(sorted(found, key=lambda id: id != key))
        for key, found in parts.items()
        if len(found) > 1
    }


def _merges(
    shared: np.ndarray, keys: Sequence[str], ids: Sequence[str]
) -> dict[str, tuple[str, ...]]:
    """Groups into which two or more known ones were merged."""
    before, after = shared.sum(axis=1, keepdims=True), shared.sum(axis=0, keepdims=True)
    went_into = (shared > LEAST_OVERLAP * before) & (shared >= LEAST_PART * after)
    sources = {
        id: [keys[place] for place in np.flatnonzero(column)]
        for id, column in zip(ids, went_into.T, strict=True)
    }
    return {id: tuple(found) for id, found in sources.items() if len(found) > 1}
