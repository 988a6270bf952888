"""The interval of a difference of two shares that are paired by run."""

from __future__ import annotations

import random

import pytest

from apps.core.intervals import newcombe_paired


def test_it_is_newcombes() -> None:
    """Table II of Newcombe 1998: 36 both, 12 before only, 2 after only, none neither."""
    low, high = newcombe_paired(36, 12, 2, 0)
    assert (low, high) == pytest.approx((-0.3404, -0.0569), abs=1e-4)
    assert newcombe_paired(36, 2, 12, 0) == pytest.approx((-high, -low))


def test_it_says_something_where_all_agree_and_where_none_does() -> None:
    low, high = newcombe_paired(30, 0, 0, 0)
    assert low == -high < 0
    assert newcombe_paired(0, 0, 12, 0)[0] > 0.5


@pytest.mark.parametrize(
    ("n", "shares"), [(20, (0.5, 0.1, 0.2, 0.2)), (40, (0.6, 0.02, 0.08, 0.3))]
)
def test_it_covers_the_truth(n: int, shares: tuple[float, ...]) -> None:
    draws, covered = random.Random(1), 0
    for _ in range(1000):
        drawn = draws.choices(range(4), shares, k=n)
        low, high = newcombe_paired(*(drawn.count(cell) for cell in range(4)))
        covered += low <= shares[2] - shares[1] <= high
    assert covered >= 935
