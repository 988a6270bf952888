"""Finds the groups: average linkage over representatives, then every failure goes to the nearest
centre.

Linkage is quadratic, so it gets at most `Options.representatives` failures at a time: copies count
as one, frequent ones come first, and the rest are drawn by a hash of their content, so that another
day draws the same. Failures without a group get another round, until a round finds nothing more.
Nothing here is random; the order of the failures does not matter.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import sparse

from apps.failures.clusters.cases import Case
from apps.failures.clusters.features import FIELDS, Space, unit_rows
from apps.failures.clusters.names import names, sentence_of
from apps.failures.clusters.signatures import Signature, nearest_centre

EXAMPLES = 5
LEAST_COHESION = 0.81  # of a pair at `in_words`; united groups may be less alike, and reach no more
# For each group, or failure alone, its different causes in sentences, typical first → its label.
# Groups with the same label have the same cause; an empty one says nothing.
Labeller = Callable[[Sequence[Sequence[str]]], Sequence["Label"]]


@dataclass(frozen=True)
class Options:
    """How similar the members of a group are. The defaults were tuned by bench/clusters.py and, for
    causes in words, by bench/cluster_sentences.py.

    similarity: mean cosine of two members at which groups stop growing
    in_words, reach_in_words: both for causes in words, which say one thing in many ways
    reach: how near the centre a failure must be, as a share of the members' mean cosine with it
    min_size: None is 2, and more from 8,100 failures on, up to 20: there, pairs are chance
    by_mode: no group spans two modes
    """

    similarity: float = 0.55
    in_words: float = 0.3
    reach_in_words: float = 0.7
    reach: float = 0.8
    min_size: int | None = None
    representatives: int = 5000
    rounds: int = 8
    columns_kept: int = 256
    by_mode: bool = False

    def of_words(self) -> Options:
        return replace(self, similarity=self.in_words, reach=self.reach_in_words)

    def smallest(self, failures: int) -> int:
        return self.min_size or int(np.clip(failures**0.5 / 30, 2, 20))


@dataclass(frozen=True)
class Label:
    """What somebody who understands causes said of one: which it is, and what to call it."""

    id: str = ""
    name: str = ""


def unlabelled(units: Sequence[Sequence[str]]) -> list[Label]:
    return [Label() for _ in units]


@dataclass(frozen=True)
class Cluster:
    """`members` are ids, most typical first; `cohesion` is their mean cosine with the centre.
    `label` is that by which groups were united, if they were.
    """

    name: str
    members: tuple[str, ...]
    signature: Signature
    cohesion: float
    label: str = ""

    @property
    def examples(self) -> tuple[str, ...]:
        return self.members[:EXAMPLES]


@dataclass(frozen=True, eq=False)
class Clustering:
    """The groups, largest first, the failures without a group, and the term weights that `assign`
    needs.
    """

    clusters: tuple[Cluster, ...]
    rest: tuple[str, ...]
    space: Space


def cluster(
    cases: Sequence[Case], options: Options = Options(), labeller: Labeller = unlabelled
) -> Clustering:
    """Groups of similar failures; those whose causes, in words or as facts, are one according to
    `labeller` are united. Raises ValueError if two failures have the same id.
    """
    cases = sorted(cases, key=lambda case: case.id)
    if len({case.id for case in cases}) < len(cases):
        raise ValueError("Two failures have the same id.")
    space = Space.fit([case for case in cases if case.has_cause])
    vectors = space.vectors(cases)
    labels = np.full(len(cases), -1)
    for rows, part in _partitions(cases, options):
        found = _labels(cases, vectors, rows, part)
        labels[rows] = np.where(found >= 0, found + labels.max() + 1, -1)
    united = _united(cases, vectors, labels, options.smallest(len(cases)), labeller)
    groups = _described(cases, vectors, labels, options, united)
    return Clustering(groups, _ids(cases, labels == -1), space)


def _united(
    cases: Sequence[Case],
    vectors: sparse.csr_array,
    labels: np.ndarray,
    smallest: int,
    labeller: Labeller,
) -> dict[int, Label]:
    """Changes `labels` as `labeller` says; returns what it says of each group, with an empty id
    where nothing was united.
    """
    members: dict[tuple[int, int], list[int]] = {}
    for row, label in enumerate(labels):
        if cases[row].has_cause:
            members.setdefault((label, row if label < 0 else -1), []).append(row)
    units = sorted(members.values(), key=lambda rows: (-len(rows), rows[0]))
    causes = [_causes(cases, vectors, rows) for rows in units]
    by_id: dict[str, list[int]] = {}
    for unit, said in enumerate(said_of := labeller(causes)):
        by_id.setdefault(said.id or f"alone {unit}", []).append(unit)
    united: dict[int, Label] = {}
    for id, parts in by_id.items():
        said, rows = said_of[parts[0]], [row for unit in parts for row in units[unit]]
        if len(rows) >= smallest:
            label = max(int(labels[row]) for row in rows)
            labels[rows] = label = label if label >= 0 else int(labels.max()) + 1
            is_fact = len(parts) == 1 and not any(cases[row].cause for row in rows)
            united[label] = Label(id if len(parts) > 1 else "", "" if is_fact else said.name)
    return united


def _causes(cases: Sequence[Case], vectors: sparse.csr_array, rows: list[int]) -> list[str]:
    """The different causes of a group in sentences, most typical first."""
    if len(rows) == 1:
        return [sentence_of(cases[rows[0]])]
    centre = unit_rows(means_of(vectors[rows], np.zeros(len(rows), np.int64), np.array([0])))
    cosines = (vectors[rows] @ centre.T).toarray()[:, 0]
    order = np.lexsort((rows, -np.round(cosines, 5)))
    return list(dict.fromkeys(sentence_of(cases[rows[place]]) for place in order))


def _partitions(cases: Sequence[Case], options: Options) -> Iterator[tuple[np.ndarray, Options]]:
    """The failures with a cause in words, and those with a fact alone; of each mode, if no group
    spans two.
    """
    kinds = [
        (bool(case.cause), case.mode if options.by_mode else "") if case.has_cause else None
        for case in cases
    ]
    for kind in sorted(set(kinds) - {None}):
        rows = np.array([row for row, other in enumerate(kinds) if other == kind])
        yield rows, options.of_words() if kind[0] else options


def _ids(cases: Sequence[Case], chosen: np.ndarray) -> tuple[str, ...]:
    return tuple(cases[row].id for row in np.flatnonzero(chosen))


def _labels(
    cases: Sequence[Case], vectors: sparse.csr_array, rows: np.ndarray, options: Options
) -> np.ndarray:
    """A label for each of `rows`, -1 for none."""
    part, smallest = vectors[rows], options.smallest(len(cases))
    keys = [_key(cases[row]) for row in rows]
    means = sparse.csr_array((0, vectors.shape[1]), dtype=np.float32)
    open_rows = np.arange(len(rows))
    for _ in range(options.rounds):
        chosen, counts = _representatives([keys[row] for row in open_rows], options.representatives)
        found = _linked(part[open_rows[chosen]], counts, options)
        found = _large_enough(part[open_rows], found, smallest, options)
        if not found.shape[0]:
            break
        means = sparse.csr_array(sparse.vstack([means, found]))
        open_rows = np.flatnonzero(nearest(part, means, options.reach) == -1)
        if len(open_rows) < smallest:
            break
    return _settled(part, means, smallest, options)


def _key(case: Case) -> bytes:
    """A hash of a failure's content: equal for copies, and an order that is the same in every
    run.
    """
    texts = "\0".join(field.text_of(case) for field in FIELDS)
    return hashlib.blake2b(texts.encode(), digest_size=8).digest()


def _representatives(keys: Sequence[bytes], limit: int) -> tuple[np.ndarray, np.ndarray]:
    """(rows, copies): one row per distinct key; half of the limit is for the most frequent, half
    for a fair draw.
    """
    distinct, first, counts = np.unique(
        np.array(keys, dtype="S8"), return_index=True, return_counts=True
    )
    if len(distinct) <= limit:
        return first, counts
    frequent = np.argsort(-counts, kind="stable")[: limit // 2]
    frequent = frequent[counts[frequent] > 1]
    others = np.setdiff1d(np.arange(len(distinct)), frequent)[: limit - len(frequent)]
    kept = np.sort(np.concatenate([frequent, others]))
    return first[kept], counts[kept]


def _linked(points: sparse.csr_array, counts: np.ndarray, options: Options) -> sparse.csr_array:
    """The means (not normalised) of the groups of two failures or more, copies included."""
    from scipy.cluster import hierarchy  # 0.15 s of each process's start; pages do not need it

    labels = np.zeros(points.shape[0], np.int64)
    if len(labels) > 1:
        tree = hierarchy.linkage(_distances(points), "average")
        labels = hierarchy.fcluster(tree, 1 - options.similarity, "distance")
    sizes = np.bincount(labels, weights=counts)
    return means_of(points, labels, np.flatnonzero(sizes > 1), counts)


def _distances(points: sparse.csr_array) -> np.ndarray:
    """Condensed cosine distances, in the format of scipy's linkage."""
    size, done = points.shape[0], 0
    condensed, transposed = np.empty(size * (size - 1) // 2), points.T.tocsr()
    for start in range(0, size, 1000):
        block = (points[start : start + 1000] @ transposed).toarray()
        for row in range(len(block)):
            upper = block[row, start + row + 1 :]
            condensed[done : done + len(upper)] = np.clip(1 - upper, 0, 1)
            done += len(upper)
    return condensed


def means_of(
    points: sparse.csr_array,
    labels: np.ndarray,
    wanted: np.ndarray,
    counts: np.ndarray | None = None,
) -> sparse.csr_array:
    """(wanted, COLUMNS): the mean vector of each label in `wanted`; a mean's length measures the
    similarity of its members.
    """
    place_of = np.full(
        max(labels.max(initial=0), wanted.max(initial=0)) + 2, -1
    )  # the last is where index -1 points
    place_of[wanted] = np.arange(len(wanted))
    places = place_of[labels]
    inside = np.flatnonzero(places >= 0)
    weights = np.ones(len(inside)) if counts is None else counts[inside].astype(np.float64)
    totals = np.bincount(places[inside], weights, minlength=len(wanted))
    shares = weights / totals[places[inside]]
    chooser = sparse.csr_array(
        (shares, (places[inside], inside)), shape=(len(wanted), points.shape[0])
    )
    return sparse.csr_array(chooser.astype(np.float32) @ points)


def _lengths(means: sparse.csr_array) -> np.ndarray:
    return np.sqrt(means.multiply(means).sum(axis=1))


def nearest(points: sparse.csr_array, means: sparse.csr_array, reach: float) -> np.ndarray:
    """The index of the nearest mean for every point, -1 if none is within reach."""
    return nearest_centre(points, unit_rows(means), reach * _lengths(means))


def _large_enough(
    points: sparse.csr_array, means: sparse.csr_array, smallest: int, options: Options
) -> sparse.csr_array:
    places = nearest(points, means, options.reach)
    sizes = np.bincount(places[places >= 0], minlength=means.shape[0])
    return sparse.csr_array(means[np.flatnonzero(sizes >= smallest)])


def _settled(
    points: sparse.csr_array, means: sparse.csr_array, smallest: int, options: Options
) -> np.ndarray:
    """Labels after joining groups found in parts by several rounds, one more assignment, and
    dropping small groups.
    """
    if not means.shape[0]:
        return np.full(points.shape[0], -1)
    places = nearest(points, means, options.reach)
    joined = _joined(
        means, np.bincount(places[places >= 0], minlength=means.shape[0]), options.similarity
    )
    labels = np.where(places >= 0, joined[places], -1)
    means = means_of(points, labels, np.unique(labels[labels >= 0]))
    means = _large_enough(points, means, smallest, options)
    return nearest(points, means, options.reach)


def _joined(means: sparse.csr_array, sizes: np.ndarray, similarity: float) -> np.ndarray:
    """A label for each mean: average linkage continued from the groups (the mean cosine of two is
    their dot product).
    """
    dots, sizes = (means @ means.T).toarray(), np.maximum(sizes, 1).astype(np.float64)
    labels = np.arange(len(sizes))
    np.fill_diagonal(dots, -1)
    while len(sizes) > 1 and dots.max() >= similarity:
        one, other = sorted(np.unravel_index(dots.argmax(), dots.shape))
        merged = (sizes[one] * dots[one] + sizes[other] * dots[other]) / (sizes[one] + sizes[other])
        dots[one], dots[:, one] = merged, merged
        dots[other], dots[:, other], dots[one, one] = -1, -1, -1
        sizes[one] += sizes[other]
        labels[labels == other] = one
    return labels


def _described(
    cases: Sequence[Case],
    vectors: sparse.csr_array,
    labels: np.ndarray,
    options: Options,
    united: Mapping[int, Label],
) -> tuple[Cluster, ...]:
    wanted = np.unique(labels[labels >= 0])
    if not len(wanted):
        return ()
    means = means_of(vectors, labels, wanted)
    centres, lengths = unit_rows(means), _lengths(means)
    groups = []
    for place, label in enumerate(wanted):
        rows = np.flatnonzero(labels == label)
        cosines = (vectors[rows] @ centres[[place]].T).toarray()[:, 0]
        rows = rows[np.lexsort((rows, -np.round(cosines, 5)))]
        mode = cases[rows[0]].mode if options.by_mode else ""
        part = options.of_words() if cases[rows[0]].cause else options
        radius = max(lengths[place], LEAST_COHESION) * part.reach
        signature = Signature.of(centres[[place]], radius, mode, options.columns_kept)
        said = united.get(int(label), Label())
        groups.append((rows, signature, float(lengths[place]), said))
    groups.sort(key=lambda group: (-len(group[0]), cases[group[0][0]].id))
    called = names([(said.name, [cases[row] for row in rows]) for rows, _, _, said in groups])
    return tuple(
        Cluster(name, tuple(cases[row].id for row in rows), signature, cohesion, said.id)
        for name, (rows, signature, cohesion, said) in zip(called, groups, strict=True)
    )
