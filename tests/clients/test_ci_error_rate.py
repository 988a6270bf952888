"""How often the CI step is wrong: equal code passes at most as often as the gate's error rate says,
a planted regression fails.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from flywheel_eval.command import EXIT

from apps.promotion.gate import Policy, compare
from tests.amounts import amount
from tests.promotion.test_gate import evaluation

RUNS, TASKS, SAMPLES = 200, 60, 2
PROMOTED = 0.025  # at most, of comparisons without a true difference (docs/gate.md)


def statuses(drop: float, runs: int = RUNS) -> Counter[int]:
    """The exit statuses of so many CI steps, each on answers of its own: tasks differ in how hard
    they are, and the new code succeeds `drop` less often on each."""
    rng, found = np.random.default_rng(7), Counter[int]()
    for _ in range(runs):
        rates = rng.uniform(0.3, 0.9, TASKS)
        before, after = (
            rng.binomial(SAMPLES, share).tolist() for share in (rates, np.clip(rates - drop, 0, 1))
        )
        verdict = compare(evaluation(before, SAMPLES), evaluation(after, SAMPLES), Policy()).verdict
        found[EXIT[verdict]] += 1
    return found


@pytest.mark.proof
def test_equal_code_passes_at_most_as_often_as_the_error_rate() -> None:
    found = statuses(0.0)
    assert found[EXIT["promote"]] <= PROMOTED * RUNS, found
    assert found[EXIT["reject"]] <= 0.05 * RUNS, found


@pytest.mark.more
def test_a_planted_regression_fails_the_step() -> None:
    runs = amount(40, RUNS)
    found = statuses(0.35, runs)
    assert found[EXIT["promote"]] == 0 and found[EXIT["reject"]] >= 0.9 * runs, found
