"""How the soak tells growth from a day's ups and downs."""

from __future__ import annotations

import random

import pytest

from tests.chaos.soak import busyness, growth

HOURS = [6 + 18 * number / 200 for number in range(200)]


@pytest.mark.parametrize(
    ("an_hour", "noise", "verdict"),
    [(0.0, 1.0, "flat"), (1.0, 1.0, "grows"), (-1.0, 1.0, "flat"), (0.0, 400.0, "undecided")],
)
def test_growth_is_what_the_shape_of_the_day_does_not_explain(
    an_hour: float, noise: float, verdict: str
) -> None:
    rng = random.Random(3)
    traffic = [busyness(hour) for hour in HOURS]
    values = [
        100 + 40 * busy + an_hour * hour + rng.gauss(0, noise)
        for hour, busy in zip(HOURS, traffic, strict=True)
    ]
    assert growth("memory", HOURS, values, traffic).verdict == verdict


def test_what_never_changes_is_flat() -> None:
    traffic = [busyness(hour) for hour in HOURS]
    assert growth("files", HOURS, [12.0] * 200, traffic).verdict == "flat"
