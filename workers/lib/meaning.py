"""Finds the texts of two collections that are most similar in meaning, by their vectors. Pure:
NumPy only.

Raw hidden states of causal models all lie in one narrow cone: any two are nearly parallel. Three
techniques make them distinguish texts, each measured by `python -m bench.meaning`:
- `discriminating`: subtract the mean and divide every direction by its spread (whitening: Su et al.
  2021, “Whitening Sentence Representations”), with shrinkage, since there are seldom more texts
  than dimensions;
- CSLS (Conneau et al. 2018, “Word Translation Without Parallel Data”): a cosine counts by how much
  it exceeds those of each text with its nearest neighbours, since all tasks of one domain are
  alike;
- pairs that share much of their wording are left out. Models find two tasks of one template, which
  differ in a value, more similar than any paraphrase; those were already handled, and better, by
  the comparison of words (`near_duplicates`).
"""

from __future__ import annotations

import math
import re
import zlib
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

NEIGHBOURS = 10
AT_ONCE = 500  # held-out texts compared at a time, to keep memory small
EACH = 3  # maximum pairs per held-out task, so that one task cannot take all places
SHRINKAGE = 1.0  # added to each direction's variance, as a multiple of their mean
SAMPLE = 5_000  # texts from which the directions are computed
WIDTH = 1_024  # dimensions of a wording vector
SAME_WORDING = 0.35  # cosine of two wording vectors from which a pair is left out
LETTERS = 4
_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class Pair:
    """Positions of the held-out text, the task, and the task's text. `score` is CSLS; 0 means only
    as similar as the neighbours.
    """

    held: int
    other: int
    text: int
    score: float


def discriminating(vectors: np.ndarray) -> np.ndarray:
    """[n, d] → [n, at most d] unit vectors: centred, and whitened with shrinkage."""
    found = vectors.astype(np.float32) - vectors.mean(axis=0, dtype=np.float64).astype(np.float32)
    sample = found[np.unique(np.linspace(0, len(found) - 1, min(len(found), SAMPLE)).astype(int))]
    _, spread, directions = np.linalg.svd(sample, full_matrices=False)
    variance = spread**2 / len(sample)
    found = (found @ directions.T) / np.sqrt(variance + SHRINKAGE * variance.mean() + 1e-12)
    return unit(found)


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def wording(texts: Sequence[str]) -> np.ndarray:
    """[n, WIDTH] unit vectors of words and character n-grams, with higher weights for rare ones
    (tf-idf, hashed with signs).
    """
    counts = [Counter(_parts(text)) for text in texts]
    frequency = Counter(part for count in counts for part in count)
    places = {part: zlib.crc32(part.encode()) for part in frequency}
    found = np.zeros((len(texts), WIDTH), dtype=np.float32)
    for row, count in zip(found, counts, strict=True):
        for part in count:
            place = places[part]
            row[place % WIDTH] += (1 if place >> 31 else -1) * math.log(
                1 + len(texts) / frequency[part]
            )
    return unit(found)


def _parts(text: str) -> Iterator[str]:
    words = _WORD.findall(text.lower())
    yield from words
    joined = f" {' '.join(words)} "
    yield from (joined[at : at + LETTERS] for at in range(len(joined) - LETTERS + 1))


def most_alike(
    vectors: np.ndarray,
    words: np.ndarray,
    held: int,
    owners: Sequence[int],
    known: Collection[tuple[int, int]],
    most: int,
) -> list[Pair]:
    """The `most` most similar pairs, best first.

    The first `held` rows of `vectors` and `words` (unit vectors of meaning and wording) are the
    held-out texts, the others texts that could train. `owners` are the tasks of the latter, of
    which only the most similar text counts. `known` pairs (held, task) are left out.
    """
    ours, theirs = vectors[:held], vectors[held:]
    if not len(ours) or not len(theirs):
        return []
    near_theirs = np.concatenate(
        [_near(theirs[at : at + AT_ONCE] @ ours.T) for at in range(0, len(theirs), AT_ONCE)]
    )
    owner, found = np.asarray(owners), []
    skip: dict[int, list[int]] = {}
    for one, other in known:
        skip.setdefault(one, []).append(other)
    for begin in range(0, held, AT_ONCE):
        cosines = ours[begin : begin + AT_ONCE] @ theirs.T
        scores = 2 * cosines - _near(cosines)[:, None] - near_theirs[None, :]
        scores[words[begin : min(held, begin + AT_ONCE)] @ words[held:].T >= SAME_WORDING] = -np.inf
        for at, row in enumerate(scores, begin):
            if at in skip:
                row[np.isin(owner, skip[at])] = -np.inf
            found += [
                Pair(at, int(owner[text]), text, float(row[text])) for text in _best(row, owner)
            ]
    found.sort(key=lambda pair: (-pair.score, pair.held, pair.other))
    return found[:most]


def _best(row: np.ndarray, owner: np.ndarray) -> list[int]:
    """The best texts of the EACH best tasks."""
    chosen: dict[int, int] = {}
    for text in np.argsort(-row, kind="stable").tolist():
        if len(chosen) == EACH or row[text] == -np.inf:
            break
        chosen.setdefault(int(owner[text]), text)
    return list(chosen.values())


def _near(cosines: np.ndarray) -> np.ndarray:
    """The mean of each row's NEIGHBOURS largest values."""
    k = min(NEIGHBOURS, cosines.shape[1])
    return np.partition(cosines, -k, axis=1)[:, -k:].mean(axis=1)
