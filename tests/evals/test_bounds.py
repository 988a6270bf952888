"""Bounds that hold without a normal approximation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.evals.bounds import lower_bound, upper_bound


def keyed(values: list[float]) -> dict[str, float]:
    return {str(index): value for index, value in enumerate(values)}


@pytest.mark.parametrize("n", [30, 60, 300])
def test_no_event_is_not_no_risk(n: int) -> None:
    """About ln(1/error)/n of the range, as the exact binomial bound 1 − error^(1/n) has it."""
    exact = 1 - 0.05 ** (1 / n)
    assert exact <= upper_bound(keyed([0.0] * n), 0.05, 0, 1) <= 1.25 * exact + 0.001


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=40), st.booleans())
def test_the_mean_is_between_the_bounds(values: list[float], always: bool) -> None:
    low, high = (
        bound(keyed(values), 0.05, -1, 1, always_valid=always)
        for bound in (lower_bound, upper_bound)
    )
    assert -1 <= low <= np.mean(values) + 1e-3 and np.mean(values) - 1e-3 <= high <= 1


def test_they_cover_rare_events_as_often_as_they_say() -> None:
    rng, missed = np.random.default_rng(5), 0
    for _ in range(200):
        missed += (
            upper_bound(keyed(list(rng.binomial(1, 0.03, 50).astype(float))), 0.05, 0, 1) < 0.03
        )
    assert missed <= 18  # of 200 at 5%: binomial, 99.5%


def test_the_order_of_the_tasks_does_not_matter() -> None:
    values = keyed([0.0, 1.0, 0.5, -1.0] * 10)
    assert upper_bound(values, 0.05, -1, 1) == upper_bound(
        dict(reversed(values.items())), 0.05, -1, 1
    )


@pytest.mark.proof
def test_looking_after_each_task_costs_width_and_stays_right() -> None:
    values = keyed([0.0] * 60)
    assert upper_bound(values, 0.05, 0, 1, always_valid=True) >= 1 - 0.05 ** (1 / 60) - 0.001
    rng, missed = np.random.default_rng(7), 0
    for _ in range(60):
        drawn = rng.binomial(1, 0.3, 60).astype(float)
        missed += any(
            upper_bound(keyed(list(drawn[:n])), 0.1, 0, 1, always_valid=True) < 0.3
            for n in range(5, 61, 5)
        )
    assert missed <= 13  # of 60 at 10%: binomial, 99.5%
