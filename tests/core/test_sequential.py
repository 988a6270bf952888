"""Evidence that a rate has risen above a limit, whenever one looks."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from apps.core.sequential import above
from tests.amounts import amount

LIMIT, ENOUGH = 0.1, 500
pytestmark = pytest.mark.more


def seen(seed: int, *parts: tuple[int, float]) -> Iterator[tuple[bool, float]]:
    """Observations of (how many, their rate), the ones after the others."""
    chance = random.Random(seed)
    for n, rate in parts:
        yield from ((chance.random() < rate, 1.0) for _ in range(n))


def noticed(*parts: tuple[int, float]) -> float:
    """The share of simulations in which a rise is noticed."""
    many = amount(60, 400)
    return sum(above(LIMIT, seen(seed, *parts)).value >= ENOUGH for seed in range(many)) / many


def test_a_rise_is_noticed_soon_however_long_all_was_well() -> None:
    assert noticed((25, 0.45)) >= 0.8
    assert noticed((300, 0.04), (25, 0.45)) >= 0.8
    assert noticed((300, 0.04), (120, 0.2)) >= 0.8


def test_a_rate_within_the_limit_is_rarely_taken_for_a_rise() -> None:
    assert noticed((300, 0.04)) <= 0.02
    assert noticed((300, 0.05)) <= 0.05
    assert noticed((100, LIMIT)) <= 0.2  # 100 of the 500 that pass on average, looked at each time


def test_it_says_since_when() -> None:
    found = above(LIMIT, [(False, 1.0)] * 50 + [(True, 1.0)] * 8)
    assert found.value > ENOUGH and found.since == 50
    assert above(LIMIT, []).value == 0


def test_rarely_drawn_observations_count_more() -> None:
    """A third of what was drawn is a hit, but each of them was drawn ten times as often."""
    often = [(True, 0.1), (False, 1.0), (False, 1.0)] * 60
    assert above(LIMIT, often).value < ENOUGH
    assert above(LIMIT, [(hit, 1.0) for hit, _ in often]).value > ENOUGH
