"""From scores to probabilities: what the fit and the threshold say, against scikit-free formulas of
their own.
"""

from __future__ import annotations

import math
import random

import pytest

from workers.lib.calibration import brier, fit, threshold


@pytest.mark.proof
def test_probabilities_are_those_that_the_scores_were_drawn_with() -> None:
    draw = random.Random(7)
    chosen, rejected = [], []
    for _ in range(20_000):
        score = draw.uniform(-4, 4)
        (chosen if draw.random() < 1 / (1 + math.exp(-(1.7 * score - 0.6))) else rejected).append(
            score
        )
    found = fit(chosen, rejected)
    assert found.slope == pytest.approx(1.7, abs=0.06) and found.intercept == pytest.approx(
        -0.6, abs=0.06
    )


def test_at_the_optimum_the_gradient_is_zero() -> None:
    """Platt's smoothed targets: (n₊ + 1) / (n₊ + 2) and 1 / (n₋ + 2)."""
    chosen, rejected = [2.0, 3.5, -0.5, 1.0], [-2.0, 0.5, -1.0]
    found = fit(chosen, rejected)
    errors = [(found.probability(s) - 5 / 6, s) for s in chosen] + [
        (found.probability(s) - 1 / 5, s) for s in rejected
    ]
    assert sum(error for error, _ in errors) == pytest.approx(0, abs=1e-8)
    assert sum(error * score for error, score in errors) == pytest.approx(0, abs=1e-8)


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e6, 1e200])
def test_perfectly_parted_scores_of_any_size_stay_finite(scale: float) -> None:
    found = fit([scale * x for x in (2.0, 3.0)], [scale * x for x in (-1.0, -2.0)])
    assert math.isfinite(found.slope) and found.probability(
        3 * scale
    ) > 0.7 > 0.3 > found.probability(-2 * scale)


def test_a_model_that_ranks_the_wrong_way_round_says_nothing() -> None:
    found = fit([-1.0, -2.0], [1.0, 2.0, 3.0])
    assert found.slope == 0 and found.probability(5) == found.probability(-5)


def test_the_threshold_parts_the_sides_and_prefers_to_fail() -> None:
    assert threshold([2.0, 3.0], [0.0, 1.0]) == 1.5
    assert threshold([1.0, 3.0], [2.0, 0.0]) == 2.5  # 0.5 parts them as well, and passes a bad one
    assert threshold([1.0], [1.0]) == 1.0


def test_brier_is_of_folds_that_were_not_fitted() -> None:
    draw = random.Random(1)
    noise = [(draw.random(), draw.random()) for _ in range(500)]
    assert brier(noise) == pytest.approx(0.25, abs=0.01)
    assert brier([(5.0 + draw.random(), -5.0) for _ in range(50)]) < 0.01
    assert (
        brier([(1.0, 0.0), (0.0, 1.0)]) > 0.3
    )  # each by a fit on the other; fitted together all would get one half
    assert brier([(1.0, 0.0)]) is None
