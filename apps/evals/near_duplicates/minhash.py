"""MinHash: small sets of numbers that say how alike large sets are, and the bands that find the
alike ones. Pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np

PERMUTATIONS, BANDS, ROWS = 128, 32, 4
CHUNK = 4_000_000  # hashes processed at a time


@lru_cache(maxsize=1)
def _coefficients() -> tuple[np.ndarray, np.ndarray]:
    """Odd multipliers and offsets of the PERMUTATIONS hash functions, drawn from BLAKE2b."""
    drawn = [
        hashlib.blake2b(f"flywheel neardup 1 {index}".encode(), digest_size=16).digest()
        for index in range(PERMUTATIONS)
    ]
    both = np.frombuffer(b"".join(drawn), dtype="<u8").reshape(PERMUTATIONS, 2).astype(np.uint64)
    return both[:, 0] | np.uint64(1), both[:, 1]


def minhashes(features: Sequence[np.ndarray]) -> np.ndarray:
    """(n, PERMUTATIONS) uint32: the smallest hash of each set under each function; all ones for an
    empty set.
    """
    out = np.full((len(features), PERMUTATIONS), 0xFFFFFFFF, dtype=np.uint32)
    rows = [index for index, row in enumerate(features) if len(row)]
    for chunk in chunks(rows, [len(features[index]) for index in rows], CHUNK // PERMUTATIONS):
        flat = np.concatenate([features[index] for index in chunk])
        starts = np.cumsum([0] + [len(features[index]) for index in chunk[:-1]])
        out[chunk] = np.minimum.reduceat(_permuted(flat), starts, axis=0)
    return out


def _permuted(flat: np.ndarray) -> np.ndarray:
    """(len(flat), PERMUTATIONS) uint32: the upper half of a·x + b modulo 2⁶⁴, x itself a
    cryptographic hash.
    """
    multiply, add = _coefficients()
    mixed = flat[:, None] * multiply[None, :] + add[None, :]
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(
        0xBF58476D1CE4E5B9
    )  # the second step of SplitMix64, so that the order is not an arithmetic progression
    return (mixed >> np.uint64(32)).astype(np.uint32)


def chunks(rows: Sequence[int], sizes: Sequence[int], most: int) -> Iterator[list[int]]:
    """The rows in order, in lists whose sizes add up to at most `most`; a larger row is alone."""
    chunk: list[int] = []
    total = 0
    for row, size in zip(rows, sizes, strict=True):
        if chunk and total + size > most:
            yield chunk
            chunk, total = [], 0
        chunk.append(row)
        total += size
    if chunk:
        yield chunk


def bands_of(hashes: np.ndarray) -> np.ndarray:
    """(n, BANDS) int64: a hash of each band's ROWS values and of the band's number."""
    rows = hashes[:, : BANDS * ROWS].reshape(len(hashes), BANDS, ROWS).astype(np.uint64)
    mixed = np.broadcast_to(
        np.arange(1, BANDS + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15), rows.shape[:2]
    )
    for index in range(ROWS):
        mixed = (mixed ^ rows[:, :, index]) * np.uint64(0x94D049BB133111EB)
        mixed = mixed ^ (mixed >> np.uint64(31))
    return mixed.view(np.int64)
