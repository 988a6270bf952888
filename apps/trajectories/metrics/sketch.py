"""Percentiles of numbers that are counted and forgotten: counts by logarithmic bucket, which can be
added and taken away again.

The buckets are those of DDSketch (Masson, Rim and Lee, VLDB 2019): a percentile is off by at most
ACCURACY of its value. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

ACCURACY = 0.02
_GAMMA = (1 + ACCURACY) / (1 - ACCURACY)
LOG_GAMMA = math.log(_GAMMA)
ZERO = -1000  # the bucket of 0, below that of the least number
LEAST, LARGEST = 1e-15, 1e15

Sketch = dict[int, int]  # bucket -> how many numbers


def bucket_of(value: float) -> int:
    """Of a number that is not negative; what is smaller than anything that is measured counts
    as 0.
    """
    if value <= LEAST:
        return ZERO
    return math.ceil(math.log(min(value, LARGEST)) / LOG_GAMMA)


def value_of(bucket: int) -> float:
    return 0.0 if bucket == ZERO else 2 * _GAMMA**bucket / (_GAMMA + 1)


def merge(sketch: Sketch, other: Mapping[int, int]) -> None:
    for bucket, n in other.items():
        sketch[bucket] = sketch.get(bucket, 0) + n


def percentiles(sketch: Mapping[int, int], shares: tuple[float, ...]) -> list[float | None]:
    """The values below which these shares lie, in the order of `shares`, which must rise; None for
    an empty sketch.
    """
    counted = sorted((bucket, n) for bucket, n in sketch.items() if n > 0)
    total = sum(n for _, n in counted)
    if not total:
        return [None] * len(shares)
    found: list[float | None] = []
    steps, seen, bucket = iter(counted), 0, ZERO
    for share in shares:
        while seen <= share * (total - 1):
            bucket, n = next(steps)
            seen += n
        found.append(value_of(bucket))
    return found


def as_json(sketch: Mapping[int, int]) -> dict[str, int]:
    return {str(bucket): n for bucket, n in sketch.items() if n}


def from_json(given: Mapping[str, int]) -> Sketch:
    return {int(bucket): n for bucket, n in given.items()}
