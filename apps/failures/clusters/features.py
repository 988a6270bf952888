"""Hashed TF-IDF vectors of failures. The cosine of two vectors is the weighted agreement of their
fields.

Terms are hashed to columns (no vocabulary), so a vector means the same in every run; only the
weights of the terms (IDF) are learned, and they fit in a few kilobytes of JSON.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
from scipy import sparse

from apps.failures.clusters.cases import Case, arguments_of, cause_of, error_of, fact_of

COLUMNS_PER_FIELD = 1 << 15
GRAM = 4  # characters; inflections and compounds of a word share most of them
IDF_STEP = 1 / 16  # IDFs are stored as one byte: 0 … 15.9
INFORMATIVE_IDF = 0.7  # ln 2: the mean IDF from which a row has full weight
MIN_INFORMATIVENESS = 0.4


@dataclass(frozen=True)
class Field:
    """What is compared of a failure. `weight` is for failures of which a fact is known, `in_words`
    for those with a cause in words: there two causes in one tool and mode are still two causes.
    """

    name: str
    weight: float
    in_words: float
    text_of: Callable[[Case], str]


FIELDS = (
    Field("mode", 0.10, 0.05, lambda case: f"<{case.mode}>" if case.mode else ""),
    Field("tool", 0.20, 0.10, lambda case: case.tool.lower()),
    Field("arguments", 0.05, 0, arguments_of),
    Field("fact", 0.25, 0, fact_of),
    Field("error", 0.20, 0.05, error_of),
    Field("cause", 0, 0.80, cause_of),
)
COLUMNS = COLUMNS_PER_FIELD * len(FIELDS)


@lru_cache(maxsize=250_000)
def _column(term: str) -> int:
    return zlib.crc32(term.encode()) % COLUMNS_PER_FIELD


@lru_cache(maxsize=100_000)
def _word_columns(word: str) -> tuple[int, ...]:
    """A word, its parts if it is a compound (`gift_card`), and its character n-grams; of a name in
    angle brackets only itself.
    """
    if word[0] == "<":
        return (_column(word),)
    padded = f" {word} "
    grams = [padded[start : start + GRAM] for start in range(len(padded) - GRAM + 1)]
    parts = [part for part in word.replace(".", "_").split("_") if part]
    return tuple({_column(term) for term in (word, *parts, *grams)})


def _columns(text: str) -> list[int]:
    """Words, pairs of neighbours and character n-grams; each counts once, however often it
    occurs.
    """
    found: set[int] = set()
    for line in text.splitlines():
        words = line.split()
        for word in words:
            found.update(_word_columns(word))
        found.update(_column(f"{first} {second}") for first, second in pairwise(words))
    return sorted(found)


def _presence(texts: Sequence[str]) -> sparse.csr_array:
    """(texts, COLUMNS_PER_FIELD), 1 if a text contains a term."""
    rows = [np.array(_columns(text), dtype=np.int32) for text in texts]
    starts = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int32)
    columns = np.concatenate([*rows, np.empty(0, np.int32)])
    ones = np.ones(len(columns), np.float32)
    return sparse.csr_array((ones, columns, starts), shape=(len(texts), COLUMNS_PER_FIELD))


def _distinct(texts: Iterable[str]) -> tuple[list[str], np.ndarray]:
    """The distinct texts in order of appearance, and the index of every text among them."""
    places: dict[str, int] = {}
    inverse = [places.setdefault(text, len(places)) for text in texts]
    return list(places), np.array(inverse, dtype=np.int64)


def unit_rows(matrix: sparse.csr_array) -> sparse.csr_array:
    """Rows of length 1; empty rows stay empty."""
    norms = np.sqrt(matrix.multiply(matrix).sum(axis=1))
    scale = np.divide(1, norms, out=np.zeros_like(norms), where=norms > 0)
    return sparse.csr_array(sparse.diags_array(scale.astype(np.float32)) @ matrix)


@dataclass(frozen=True, eq=False)
class Space:
    """The weights of the terms: `idf`, (COLUMNS,) of uint8 in steps of IDF_STEP."""

    idf: np.ndarray

    @classmethod
    def fit(cls, cases: Sequence[Case]) -> Space:
        """Smoothed IDF, ln((1 + n) / (1 + df)), over failures."""
        parts = []
        for field in FIELDS:
            texts, inverse = _distinct(map(field.text_of, cases))
            counts = np.bincount(inverse, minlength=len(texts)).astype(np.float32) @ _presence(
                texts
            )
            parts.append(np.log((1 + len(cases)) / (1 + counts)))
        return cls(np.clip(np.rint(np.concatenate(parts) / IDF_STEP), 1, 255).astype(np.uint8))

    def vectors(self, cases: Sequence[Case]) -> sparse.csr_array:
        """(cases, COLUMNS), float32, rows of length 1."""
        blocks = []
        for number, field in enumerate(FIELDS):
            texts, inverse = _distinct(map(field.text_of, cases))
            block = sparse.csr_array(self._weighted(_presence(texts), number))[inverse]
            weights = [field.in_words if case.cause else field.weight for case in cases]
            scale = np.sqrt(np.array(weights, np.float32))
            blocks.append(sparse.csr_array(sparse.diags_array(scale) @ block))
        return unit_rows(sparse.csr_array(sparse.hstack(blocks, format="csr", dtype=np.float32)))

    def _weighted(self, presence: sparse.csr_array, number: int) -> sparse.csr_array:
        """Rows whose length is their informativeness: 1 if the mean term is in half of the failures
        or fewer.

        Otherwise what all failures say (“the run is marked as failed”) would outweigh what
        distinguishes them.
        """
        idf = (
            self.idf[number * COLUMNS_PER_FIELD : (number + 1) * COLUMNS_PER_FIELD].astype(
                np.float32
            )
            * IDF_STEP
        )
        rows = sparse.csr_array(presence @ sparse.diags_array(idf))
        mean = rows.sum(axis=1) / np.maximum(np.diff(rows.indptr), 1)
        informativeness = np.clip(mean / INFORMATIVE_IDF, MIN_INFORMATIVENESS, 1).astype(np.float32)
        return sparse.csr_array(sparse.diags_array(informativeness) @ unit_rows(rows))

    def as_json(self) -> str:
        return base64.b64encode(zlib.compress(self.idf.tobytes(), 9)).decode()

    @classmethod
    def from_json(cls, text: str) -> Space:
        """Raises ValueError for data that `as_json` did not write."""
        try:
            idf = np.frombuffer(zlib.decompress(base64.b64decode(text, validate=True)), np.uint8)
        except (ValueError, zlib.error) as error:
            raise ValueError("These are not the term weights of a clustering.") from error
        if idf.shape != (COLUMNS,):
            raise ValueError(
                f"The term weights are for {idf.size} columns, not {COLUMNS}; cluster again."
            )
        return cls(idf)
