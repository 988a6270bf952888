"""When two tasks are near-duplicates: MinHash/LSH over normalised words, then the exact comparison.
Pure.

What is compared. The system message is the harness's and left out. The words of the other messages
(text, and names and values of tool calls) are brought into one spelling, fillers dropped (`text`).
A feature is (word, how often it has come); a slot, that is a number, date, time or identifier,
counts twice. Text similarity t is the Jaccard index of the two feature sets. Words and not n-grams
of them, because a request of ten words loses most of its 3-grams when its parts change places, and
because n-grams of letters make Monday and Tuesday alike and drown a changed slot in its template.

What counts as the same. Requests made from one template share most words and are still different
tasks: “book Anna for 3 May” is not “book Bob for 7 June”. So the expected calls (or the answer)
have a say, with similarity c, the Jaccard index of their (tool, argument, word) triples. A pair
scores t·c; but t alone where t ≥ NEARLY_IDENTICAL, unless values were filled in otherwise and the
calls differ with them: a held-out request with another answer beside it is still that request.
Where calls cannot be compared (none on one side, calls here and an answer there) the pair scores t,
or 0 where values (numbers, days, names) were filled in otherwise, as do two different answers. A
near-duplicate scores THRESHOLD or more.

What it cannot see: a paraphrase in other words (a synonym for each), a translation, a misspelling
in a very short request. Groups keep those on one side of a split.

Finding candidates. 128 MinHash values in BANDS bands of ROWS (Broder 1997; Leskovec, Rajaraman and
Ullman, Mining of Massive Datasets, 3.4). Two texts of similarity t share no band, and so are
missed, with probability (1 − t⁴)³²: 1.5·10⁻⁴ at 0.70, 5.4·10⁻⁶ at 0.75, 5.0·10⁻⁸ at 0.80, 0 at 1.
Hashes are BLAKE2b: the same on every machine, in every process.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable, Iterator
from typing import TypeVar

import numpy as np

from apps.evals.near_duplicates.calls import Document
from apps.evals.near_duplicates.join import Overlap, candidates
from apps.evals.near_duplicates.minhash import bands_of, minhashes
from apps.evals.near_duplicates.text import TURNING

THRESHOLD = 0.7
NEARLY_IDENTICAL = 0.95
Id = TypeVar("Id", bound=Hashable)


# Similarity


def similarity(a: Document, b: Document) -> float:
    """In [0, 1]; see the module."""
    return _decide(_jaccard(a.features, b.features), a, b)


def _jaccard(a: np.ndarray, b: np.ndarray) -> float:
    both = len(np.intersect1d(a, b, assume_unique=True))
    either = len(a) + len(b) - both
    return both / either if either else 0.0


def _decide(t: float, a: Document, b: Document) -> float:
    """The score of a pair whose texts have similarity t."""
    c = call_similarity(a, b)
    if c is None:
        return 0.0 if _filled_otherwise(a, b) else t
    if c < 1 and _kind(a) == 1 and _filled_otherwise(a, b):
        return 0.0
    if t >= NEARLY_IDENTICAL and not (c < 1 and (_filled_otherwise(a, b) or _swapped(a, b))):
        return t
    return t * c


def call_similarity(a: Document, b: Document) -> float | None:
    """Jaccard index of the expected triples; None if one side has none, or one has calls and the
    other an answer.
    """
    if not _kind(a) or _kind(a) != _kind(b):
        return None
    if a.calls == b.calls:
        return 1.0
    return len(a.calls & b.calls) / len(a.calls | b.calls)


def _kind(document: Document) -> int:
    """0 where nothing is expected, 1 for an answer or a constraint, 2 for calls (or that none is
    made).
    """
    if document.calls is None:
        return 0
    return 2 if not document.calls or any(tool for tool, _, _ in document.calls) else 1


def _filled_otherwise(a: Document, b: Document) -> bool:
    """Whether each text has a value that the other lacks: then they are two instances of a
    template. So they are if only one says “not”, “off” or another word that turns a wish round."""
    mine, theirs = a.words - b.words, b.words - a.words
    if not TURNING.isdisjoint(mine | theirs):
        return True
    return not (a.values.isdisjoint(mine) or b.values.isdisjoint(theirs))


def _swapped(a: Document, b: Document) -> bool:
    """Whether the calls have the same values in other arguments, and the texts say them in another
    order behind other words: from Oslo to Rome, from Rome to Oslo. Turned round, “to Rome from
    Oslo” is the same wish."""
    if _kind(a) != 2 or _kind(b) != 2:
        return False
    mine, theirs = (
        {word for _, path, word in some if path} for some in (a.calls - b.calls, b.calls - a.calls)
    )
    if mine != theirs or len(mine) < 2:
        return False
    (first, before), (second, other) = (_values_in_order(document, mine) for document in (a, b))
    return first != second and before != other


def _values_in_order(document: Document, values: set[str]) -> tuple[list[str], dict[str, str]]:
    """The values in the order in which the text says them, and the word before each."""
    order = document.order
    return [word for word in order if word in values], {
        word: before for before, word in zip(("", *order), order, strict=False) if word in values
    }


# Many against many


def pairs(
    left: Iterable[tuple[Id, Document]],
    right: Iterable[tuple[Id, Document]] | None = None,
    threshold: float = THRESHOLD,
    most: int | None = 20,
) -> list[tuple[Id, Id, float]]:
    """(left id, right id, similarity) of all near-duplicates, best first; without `right`, within
    `left`, each pair once.

    Of a left id the `most` best partners are told; None tells all. Texts that are alike by
    THRESHOLD or more are missed with the probability given above (a lower `threshold` misses more);
    what is told is exact.
    """
    mine = _Bulk(left)
    theirs = mine if right is None else _Bulk(right)
    within = right is None
    told = _expanded(_scored(mine, theirs, threshold, within), mine, theirs, within, most)
    return [(mine.ids[i][k], theirs.ids[j][m], score) for i, k, j, m, score in _best(told, most)]


class _Bulk:
    """Many documents, equal ones once: `ids[row]` are the ids that share a document."""

    def __init__(self, given: Iterable[tuple[Id, Document]]) -> None:
        rows: dict[tuple, int] = {}
        self.ids: list[list] = []
        self.documents: list[Document] = []
        for identity, one in given:
            row = rows.setdefault((one.features.tobytes(), one.calls), len(self.ids))
            if row == len(self.ids):
                self.ids.append([])
                self.documents.append(one)
            self.ids[row].append(identity)
        self.sizes = np.array([len(one.features) for one in self.documents], dtype=np.int64)
        self.bands = bands_of(minhashes([one.features for one in self.documents]))

    @property
    def calls(self) -> list[frozenset[tuple[str, str, str]]]:
        return [one.calls or frozenset() for one in self.documents]


Pair = tuple[int, int, float]


def _scored(a: _Bulk, b: _Bulk, threshold: float, within: bool) -> Iterator[Pair]:
    """(row of a, row of b, score) of all pairs of different documents that share a band and score
    enough, each once.
    """
    texts = Overlap(
        [one.features.tolist() for one in a.documents],
        [one.features.tolist() for one in b.documents],
    )
    calls = Overlap(a.calls, b.calls)
    kinds = [np.array([_kind(one) for one in bulk.documents], dtype=np.int8) for bulk in (a, b)]
    for i, j in candidates(a, b, threshold, within):
        t = texts.jaccard(i, j)
        i, j, t = i[t >= threshold], j[t >= threshold], t[t >= threshold]
        comparable = (kinds[0][i] == kinds[1][j]) & (kinds[0][i] > 0)
        c = np.where(comparable, calls.jaccard(i, j), 1.0)
        for row in np.flatnonzero((t * c >= threshold) | (t >= NEARLY_IDENTICAL)):
            score = _decide(float(t[row]), a.documents[i[row]], b.documents[j[row]])
            if score >= threshold:
                yield int(i[row]), int(j[row]), score


Told = tuple[int, int, int, int, float]


def _expanded(
    scored: Iterable[Pair], a: _Bulk, b: _Bulk, within: bool, most: int | None
) -> Iterator[Told]:
    """(row of a, place among its ids, row of b, place, score); of one row of b at most `most`
    places for each of a.
    """
    if within:
        for row in np.flatnonzero(a.sizes).tolist():
            for k in range(len(a.ids[row])):
                yield from ((row, k, row, m, 1.0) for m in _places(a.ids[row], k + 1, most))
    for i, j, score in scored:
        for k in range(len(a.ids[i])):
            yield from ((i, k, j, m, score) for m in _places(b.ids[j], 0, most))


def _places(ids: list, start: int, most: int | None) -> range:
    return range(start, len(ids) if most is None else min(len(ids), start + most))


def _best(told: Iterable[Told], most: int | None) -> list[Told]:
    """The best, in order; at most `most` for each id of the left side."""
    if most is None:
        return sorted(told, key=_rank)
    heaps: dict[tuple[int, int], list[tuple[float, int, int]]] = {}
    for i, k, j, m, score in told:
        heap = heaps.setdefault((i, k), [])
        (heapq.heappush if len(heap) < most else heapq.heappushpop)(heap, (score, -j, -m))
    return sorted(
        ((i, k, -j, -m, score) for (i, k), heap in heaps.items() for score, j, m in heap), key=_rank
    )


def _rank(told: Told) -> tuple:
    return -told[4], *told[:4]


def components(ids: Iterable[Id], found: Iterable[tuple[Id, Id, float]]) -> dict[Id, Id]:
    """For each id the smallest of those it hangs together with: near-duplicates of near-duplicates
    are one group.

    A split that keeps these groups whole has no near-duplicate across it. Take `found` from
    `pairs(…, most=None)`.
    """
    parent = {identity: identity for identity in ids}

    def root(identity: Id) -> Id:
        while parent[identity] != identity:
            parent[identity] = parent[parent[identity]]
            identity = parent[identity]
        return identity

    for one, other, _ in found:
        low, high = sorted((root(one), root(other)), key=str)
        parent[high] = low
    return {identity: root(identity) for identity in parent}
