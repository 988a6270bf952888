"""The search for the step whose correction changes the end: what is tried, and what is found."""

from __future__ import annotations

import random

import pytest

from workers.lib.step_search import FEW, Found, Tried, found, most_tries, next_try


def searched(
    values: list[float], each: int = 8, *, every: bool = False, seed: int = 0, masked: int = -1
) -> tuple[dict[int, Tried], int]:
    """Plays a search in which a continuation from the nth step succeeds with the nth value."""
    chance, steps, tried, played = random.Random(seed), list(range(len(values))), {}, 0
    while wanted := next_try(steps, tried, each, every=every):
        known = tried.get(wanted.step, Tried())
        if wanted.step == masked:
            tried[wanted.step] = Tried(known.successes, known.n, known.masked + wanted.n)
        else:
            won = sum(chance.random() < values[wanted.step] for _ in range(wanted.n))
            tried[wanted.step] = Tried(known.successes + won, known.n + wanted.n, known.masked)
        played += wanted.n
    return tried, played


@pytest.mark.parametrize("every", [False, True])
@pytest.mark.parametrize("steps", [1, 2, 5, 16, 33])
def test_the_last_step_from_which_it_can_succeed_is_found(steps: int, every: bool) -> None:
    for planted in range(steps):
        values = [1.0] * (planted + 1) + [0.0] * (steps - planted - 1)
        tried, played = searched(values, every=every)
        after = planted + 1 if planted + 1 < steps else None
        assert found(range(steps), tried) == Found(planted, after)
        assert played <= most_tries(steps, 8, every=every)
        sides = [tried[step].n for step in (planted, planted + 1) if step in tried]
        assert set(sides) == {16}, "both sides are tried twice"


def test_halving_tries_few_of_many_steps() -> None:
    tried, played = searched([1.0] * 40 + [0.0] * 60)
    assert len(tried) <= 9 and played <= most_tries(100, 8) == 8 * 10
    assert len(searched([1.0] * FEW)[0]) == FEW, "of few all are tried"


def test_noise_moves_it_rarely_and_little() -> None:
    right = 0
    for seed in range(200):
        tried, _ = searched([0.8] * 9 + [0.05] * 11, seed=seed)
        right += found(range(20), tried) == Found(8, 9)
    assert right > 180


def test_without_a_success_nothing_is_found_and_little_is_spent() -> None:
    tried, played = searched([0.0] * 50)
    assert found(range(50), tried) is None and played == 8
    tried, played = searched([0.0] * 5, every=True)
    assert found(range(5), tried) is None and played == 40


def test_where_the_chance_recovers_the_earlier_mistake_was_repaired() -> None:
    tried, _ = searched([1.0, 0.0, 1.0, 1.0, 0.0, 0.0], every=True)
    assert found(range(6), tried) == Found(3, 4)


def test_a_step_that_cannot_be_scored_is_left_out() -> None:
    tried, _ = searched([1.0, 1.0, 1.0, 0.0, 0.0, 0.0], masked=2)
    assert found(range(6), tried) == Found(1, 3)
    tried, _ = searched([1.0, 1.0, 0.0, 0.0, 0.0, 0.0], masked=0)
    assert found(range(6), tried) == Found(1, 2)


def test_an_interrupted_search_continues_where_it_was() -> None:
    steps = range(16)
    tried = {0: Tried(5, 5)}
    assert next_try(steps, tried, 8).n == 3
    tried = {0: Tried(8, 8), 8: Tried(0, 2, 1)}
    wanted = next_try(steps, tried, 8)
    assert (wanted.step, wanted.n) == (8, 5)
