"""Learning from a team's decisions: it stays what it was where they say nothing new, and calibrates
what it says.
"""

from __future__ import annotations

import random

import numpy as np
import pytest

from apps.failures.outcomes.features import Features
from apps.failures.outcomes.model import PRIOR
from apps.failures.outcomes.training import (
    Example,
    TooFew,
    _fit,
    _folds,
    _spread,
    _table,
    _threshold,
    auc_difference,
    platt,
    train,
)
from tests.amounts import amount


def example(
    at: int,
    failed: bool,
    dense: dict[str, float] | None = None,
    hashed: dict[int, float] | None = None,
) -> Example:
    return Example(Features([], dense or {}, hashed or {}), failed, f"g{at // 2}")


def world(n: int, seed: int = 0, noise: float = 0.05) -> list[Example]:
    """Runs that fail where they have the word of bucket 7: the shipped weights know nothing of
    it.
    """
    chance = random.Random(seed)
    made = []
    for at in range(n):
        has = chance.random() < 0.4
        failed = has if chance.random() > noise else not has
        made.append(
            example(
                at,
                failed,
                {"agent_refuses": float(chance.random() < 0.3)},
                {7: 1.0} if has else {9: 1.0},
            )
        )
    return made


def test_it_learns_what_failure_is_here() -> None:
    trained = train(world(200))
    assert trained.measured["learned"] and trained.measured["auc"] > 0.85
    assert trained.measured["brier_fitted"] < trained.measured["brier_shipped"]
    assert trained.weights.hashed[7] > 0.3 > trained.weights.hashed[9]


@pytest.mark.more
@pytest.mark.parametrize("seed", range(amount(3, 8)))
def test_what_is_no_better_than_chance_replaces_nothing(seed: int) -> None:
    """The shipped weights rank these runs well. Fitted ones, pulled towards a hundred decisions'
    noise, do not rank them better.
    """
    chance, examples = random.Random(seed), []
    for at in range(100):
        failed = chance.random() < 0.29
        dense = {"agent_refuses": float(chance.random() < (0.5 if failed else 0.3))}
        hashed = {chance.randrange(4096): 1.0 for _ in range(20)}
        examples.append(example(at * 2, failed, dense, hashed))
    trained = train(examples)
    low, high = trained.measured["auc_difference"]
    assert not trained.measured["learned"] and low <= 0 and low < high
    assert trained.measured["false_alarms"] <= 0.2 * (100 - trained.measured["failed"])


def test_the_interval_of_a_difference_in_auc() -> None:
    failed = np.array([1.0] * 40 + [0.0] * 60)
    good, same = np.concatenate([np.linspace(1, 2, 40), np.linspace(0, 1.2, 60)]), np.zeros(100)
    alone, together = (
        auc_difference(good, same, failed, [str(at // size) for at in range(100)])
        for size in (1, 10)
    )
    assert 0.3 < alone[0] < alone[1] < 0.6
    assert together[1] - together[0] > 1.5 * (
        alone[1] - alone[0]
    )  # runs of a request resemble each other
    assert auc_difference(good, good, failed, list("ab" * 50)) == (0.0, 0.0)


def test_noise_leaves_the_shipped_weights() -> None:
    chance = random.Random(3)
    examples = [
        example(at, chance.random() < 0.3, {"agent_refuses": 1.0}, {at % 50: 1.0})
        for at in range(120)
    ]
    trained = train(examples)
    assert not trained.measured["learned"]
    assert trained.weights.dense == PRIOR.dense and not trained.weights.hashed
    mean = np.mean([trained.weights.probability(item.run) for item in examples])
    assert mean == pytest.approx(np.mean([item.failed for item in examples]), abs=0.01)


@pytest.mark.parametrize("failed", [[], [True] * 30, [False] * 30, [True] * 4 + [False] * 30])
def test_too_few_decisions_are_said_to_be(failed: list[bool]) -> None:
    with pytest.raises(TooFew, match="are needed"):
        train([example(at * 2, bad) for at, bad in enumerate(failed)])


def test_ten_decisions_move_little() -> None:
    trained = train([example(at * 2, at % 2 == 0, {"agent_refuses": 1.0}) for at in range(10)])
    assert abs(trained.weights.dense["agent_refuses"] - PRIOR.dense["agent_refuses"]) < 0.1
    assert 0.3 < trained.weights.probability(Features([], {"agent_refuses": 1.0})) < 0.7


def test_a_shipped_weight_from_few_runs_moves_further_than_one_from_many() -> None:
    """Both signs stand in the same runs, which went well."""
    both = {"choice_not_asked": 1.0, "agent_refuses": 1.0}
    trained = train([example(at * 2, at % 2 == 0, {} if at % 2 == 0 else both) for at in range(60)])
    few, many = (PRIOR.dense[name] - trained.weights.dense[name] for name in both)
    assert trained.measured["learned"] and few > 2 * many > 0


def test_contradictory_decisions_give_no_certainty() -> None:
    """The same runs, decided both ways."""
    examples = [example(at, at % 2 == 0, {"user_repeats": 1.0}, {3: 1.0}) for at in range(80)]
    found = train(examples).weights.probability(examples[0].run)
    assert found == pytest.approx(0.5, abs=0.1)


def test_a_request_is_never_on_both_sides() -> None:
    examples = world(60)
    failed = np.array([item.failed for item in examples], dtype=float)
    for among, held in _folds(examples, failed, 0):
        assert not {examples[at].group for at in among} & {examples[at].group for at in held}


def test_probabilities_are_calibrated_out_of_fold() -> None:
    trained = train(world(400, seed=8, noise=0.2))
    for part in trained.measured["bins"]:
        assert part["failed"] / part["n"] == pytest.approx(part["said"], abs=0.15)


def test_false_alarms_stay_within_a_tenth_of_the_fine_runs() -> None:
    measured = train(world(300, seed=4, noise=0.3)).measured
    assert measured["false_alarms"] <= 0.1 * (measured["n"] - measured["failed"])


def test_the_threshold_lies_between_fine_and_failed_runs_and_not_at_the_edge_of_the_fine_ones() -> (
    None
):
    scores = np.array([-4.0] * 30 + [3.0] * 10)
    assert _threshold(scores, np.array([0.0] * 30 + [1.0] * 10)) == pytest.approx(
        (0.018 + 0.953) / 2, abs=0.01
    )


def test_the_fit_is_the_minimum() -> None:
    """No small step in any direction lowers the loss: the gradient there is 0."""
    examples = world(80)
    names = ["agent_refuses"]
    failed = np.array([item.failed for item in examples], dtype=float)
    table, offset = _table(examples, names), np.zeros(80)
    fitted = _fit(table, offset, failed, _spread(names))
    wrong = 1 / (1 + np.exp(-(fitted[0] + table @ fitted[1:]))) - failed
    assert wrong.sum() + fitted[0] / 9 == pytest.approx(0, abs=0.02)
    assert (table.T @ wrong)[0] + fitted[1] / 0.04 == pytest.approx(0, abs=0.02)


def test_platt_finds_the_slope_that_made_the_answers() -> None:
    chance = np.random.default_rng(1)
    scores = chance.normal(size=4000)
    failed = (chance.random(4000) < 1 / (1 + np.exp(-(0.5 * scores - 1)))).astype(float)
    assert platt(scores, failed) == pytest.approx((0.5, -1.0), abs=0.15)
