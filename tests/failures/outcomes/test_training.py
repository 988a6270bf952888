"""What is learned from decisions replaces what is in use only if it is better on held-out ones."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from apps.failures.outcomes.model import FALSE_ALARMS
from apps.failures.outcomes.training import (
    NEWEST,
    SURE,
    Example,
    TooFew,
    _Data,
    auc_difference,
    limit_of,
    platt,
    threshold,
    train,
)
from bench.outcomes import World, example, life


def world(n: int, seed: int = 0, learnable: float = 1.0) -> list[Example]:
    chance = random.Random(seed)
    return [example(chance, f"g{at}", World(learnable)) for at in range(n)]


@pytest.mark.proof
def test_it_learns_in_several_languages_what_failure_is_here() -> None:
    trained = train(world(200, learnable=0.9))
    assert not trained.why_not
    assert trained.measured["auc"] > 0.8 and trained.measured["auc_gain"][0] > 0.1
    assert trained.measured["found"] > 0.4 * trained.measured["failed"]
    new = world(400, seed=9, learnable=0.9)
    flagged = [trained.weights.score(item.run) >= trained.weights.threshold for item in new]
    alarms = sum(flag and not item.failed for flag, item in zip(flagged, new, strict=True))
    assert alarms <= FALSE_ALARMS * sum(not item.failed for item in new)


@pytest.mark.more(rows=1)
@pytest.mark.parametrize("seed", range(20))
def test_noise_replaces_nothing(seed: int) -> None:
    trained = train(world(120, seed, learnable=0.0))
    assert "better" in trained.why_not or "limit" in trained.why_not


@pytest.mark.proof
def test_a_model_in_use_is_replaced_only_by_a_better_one() -> None:
    known = world(120, seed=1, learnable=0.7)
    in_use, more = train(known).weights, known + world(150, seed=2, learnable=0.7)
    more = [replace(item, group=f"h{at}") if at >= 120 else item for at, item in enumerate(more)]
    assert "for certain" in train(more, in_use).why_not
    wrong = replace(in_use, slope=-in_use.slope)
    assert not train(more, wrong).why_not
    assert "not learned from" in train(known, wrong).why_not


def test_false_alarms_among_random_checks_decide_the_threshold() -> None:
    """People triage what is easy to tell; among runs drawn at random many look like failures."""
    easy = [replace(item, drawn=False) for item in world(150, seed=3)]
    hard = world(150, seed=4, learnable=0.3)
    hard = [replace(item, group=f"h{at}") for at, item in enumerate(hard)]
    drawn, all_alike = (
        train(examples).weights.threshold
        for examples in (easy + hard, [replace(item, drawn=False) for item in easy + hard])
    )
    assert drawn > all_alike


@pytest.mark.parametrize("failed", [0, 9, 60])
def test_too_few_decisions_are_said_to_be(failed: int) -> None:
    examples = [replace(item, failed=at < failed) for at, item in enumerate(world(60))]
    with pytest.raises(TooFew, match=f"So far: {failed} failed"):
        train(examples)


def test_a_request_is_never_on_both_sides() -> None:
    data = _Data([replace(item, group=f"g{at // 3}") for at, item in enumerate(world(90))])
    for among, held in data.folds(np.arange(90), 0):
        assert not set(data.requests[among]) & set(data.requests[held])


@pytest.mark.proof
def test_a_number_is_a_probability_if_random_checks_agree_with_it() -> None:
    examples = world(300, seed=8, learnable=0.6)
    assert train(examples).measured["calibrated"]
    assert not train([replace(item, drawn=False) for item in examples]).measured["calibrated"]
    # people triage the runs that failed: the checks show that fewer did
    chosen = [
        replace(item, drawn=False, group=f"h{at}", failed=True)
        for at, item in enumerate(world(200, seed=9, learnable=0.6))
    ]
    assert not train(examples + chosen).measured["calibrated"]


@pytest.mark.proof
@pytest.mark.parametrize("drift", [False, True])
def test_what_is_in_use_keeps_the_limit_and_drift_switches_it_off(drift: bool) -> None:
    """Over a project's life, from 20 decisions to 400 (`bench.outcomes`)."""
    world = World(0.8, noise=0.05, drift=drift)
    lives = [life(world, seed) for seed in range(5)]
    steps = [step for one in lives for step in one["steps"] if not drift or step["n"] <= 200]
    assert steps and sum(step["alarms"] > FALSE_ALARMS for step in steps) <= 0.05 * len(steps)
    if drift:
        assert all(one["steps"][-1]["alarms"] <= FALSE_ALARMS or not one["on"] for one in lives)
    else:
        assert all(one["on"] and one["recall"] > 0.4 for one in lives)


@pytest.mark.proof
def test_the_threshold_keeps_the_limit_in_98_of_100_draws() -> None:
    chance = np.random.default_rng(2)
    for n, requests in ((50, 50), (200, 200), (600, 200)):
        scores = np.repeat(chance.uniform(size=(1000, requests)), n // requests, axis=1)
        of = np.repeat(np.arange(requests), n // requests)
        share = [1 - threshold(row, of, SURE) for row in scores]
        assert np.mean(np.array(share) > FALSE_ALARMS) < 0.03
    assert threshold(np.zeros(30), np.arange(30), SURE) > 1  # too few to say


def test_the_threshold_keeps_the_limit_among_the_newest_runs_too() -> None:
    chance = np.random.default_rng(5)
    scores, requests = chance.uniform(size=300), np.arange(300)
    assert limit_of(scores, requests) < 0.99
    scores[-NEWEST:] += 1  # traffic has changed
    assert limit_of(scores, requests) > np.sort(scores[-NEWEST:])[int(0.9 * NEWEST)]


def test_the_interval_of_a_difference_in_auc() -> None:
    failed = np.array([1.0] * 40 + [0.0] * 60)
    good, same = np.concatenate([np.linspace(1, 2, 40), np.linspace(0, 1.2, 60)]), np.zeros(100)
    alone, together = (
        auc_difference(good, same, failed, np.arange(100) // size) for size in (1, 10)
    )
    assert 0.3 < alone[0] < alone[1] < 0.6
    assert together[1] - together[0] > 1.5 * (alone[1] - alone[0])
    assert auc_difference(good, good, failed, np.arange(100) % 2) == (0.0, 0.0)


def test_platt_finds_the_slope_that_made_the_answers() -> None:
    chance = np.random.default_rng(1)
    scores = chance.normal(size=4000)
    failed = (chance.random(4000) < 1 / (1 + np.exp(-(0.5 * scores - 1)))).astype(float)
    assert platt(scores, failed) == pytest.approx((0.5, -1.0), abs=0.15)
