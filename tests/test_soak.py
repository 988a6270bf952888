"""How the soak tells growth from warming up and from a day's ups and downs."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from tests.chaos.growth import growth
from tests.chaos.soak import busyness


def days(level: Callable[[float], float], noise: float = 1.0) -> list[list[float]]:
    """Of eight: `level` of the time in days, and what the traffic of the hour adds."""
    rng = random.Random(3)
    return [
        [
            level(day + hour / 24) + 40 * busyness(hour) + rng.gauss(0, noise)
            for hour in range(24)
            for _ in range(4)
        ]
        for day in range(8)
    ]


@pytest.mark.parametrize(
    ("level", "noise", "verdict"),
    [
        (lambda day: 100, 1.0, "flat"),
        (lambda day: 100 + 10 * day, 1.0, "grows"),
        (lambda day: 100 - 10 * day, 1.0, "flat"),
        (lambda day: 100 + 60 * (1 - math.exp(-day)), 1.0, "flat"),
        (lambda day: 100, 300.0, "undecided"),
    ],
    ids=["steady", "leaks", "shrinks", "warms up", "noisy"],
)
def test_growth_is_what_a_later_day_has_more_than_the_one_before(
    level: Callable[[float], float], noise: float, verdict: str
) -> None:
    assert growth("memory", days(level, noise)).verdict == verdict


def test_what_never_changes_is_flat() -> None:
    assert growth("files", [[12.0] * 20] * 8).verdict == "flat"


def test_a_file_a_day_is_no_leak_and_three_are() -> None:
    assert growth("files", [[12.0 + day] * 20 for day in range(8)]).verdict == "flat"
    assert growth("files", [[12.0 + 3 * day] * 20 for day in range(8)]).verdict == "grows"
