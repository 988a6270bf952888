"""The always-valid comparison: exact in what it computes, and right about as often as it
promises.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.promotion.trials.deciding import FIRST
from apps.promotion.trials.sequential import (
    BETS,
    Block,
    Tally,
    bounds,
    canary_block,
    capital,
    difference,
    paired_block,
)

ALPHA = 0.05
SHARES = (0.05, 0.25, 0.5)
tallies = st.builds(Tally, st.integers(0, 40), st.integers(0, 40))
shares = st.sampled_from([0.001, 0.05, 0.3, 0.5, 0.9])


def session_scores(share: float, centre: float, lane: np.ndarray, good: np.ndarray) -> np.ndarray:
    """One for each session, in the words of the paper."""
    return (good - centre) * np.where(lane, 1 / share, -1 / (1 - share))


def path(
    share: float, centre: float, lane: np.ndarray, good: np.ndarray, m: float, side: str
) -> np.ndarray:
    """[sessions, bets]: the logs of the factors by which the capital grows after each session."""
    scores = session_scores(share, centre, lane, good)
    extremes = [(y - centre) * f for y in (0, 1) for f in (1 / share, -1 / (1 - share))]
    room, sign = (max(extremes) - m, -1) if side == "high" else (m - min(extremes), 1)
    return np.log1p(sign * BETS[None, :] * ((scores - m) / room)[:, None])


@given(
    share=shares,
    centre=st.sampled_from([0.0, 0.3, 0.9, 1.0]),
    current=tallies,
    candidate=tallies,
    m=st.sampled_from([-0.6, -0.05, 0.0, 0.4]),
    side=st.sampled_from(["low", "high"]),
)
def test_the_capital_is_the_product_over_all_sessions(
    share: float, centre: float, current: Tally, candidate: Tally, m: float, side: str
) -> None:
    lane = np.array([True] * candidate.n + [False] * current.n, dtype=bool)
    good = np.array(
        [1] * candidate.good + [0] * candidate.bad + [1] * current.good + [0] * current.bad
    )
    steps = path(share, centre, lane, good, m, side)
    by_hand = math.log(np.mean(np.exp(steps.sum(axis=0))))
    block = canary_block(share, centre, current, candidate)
    assert block is not None
    assert capital([block], m, against=side) == pytest.approx(by_hand, abs=1e-6)


@given(
    st.lists(st.tuples(shares, tallies, tallies), min_size=1, max_size=3),
    st.sampled_from([0.0, 0.5, 0.97, 1.0]),
)
def test_the_bounds_hold_the_weighted_mean_and_stay_within_the_possible(
    steps: list[tuple[float, Tally, Tally]], centre: float
) -> None:
    blocks = [
        canary_block(share, centre, current, candidate) for share, current, candidate in steps
    ]
    found = bounds(blocks, ALPHA)
    assert found.low >= -1 and found.high <= 1
    if len(blocks) == 1 and (block := blocks[0]) and sum(block.counts):
        mean = float(np.dot(block.scores, block.counts) / sum(block.counts))
        assert found.low - 1e-6 <= min(1, max(-1, mean)) <= found.high + 1e-6


@pytest.mark.parametrize("alpha", [0.05, 0.05 / 3])
def test_at_a_bound_the_capital_is_what_refutes(alpha: float) -> None:
    block = canary_block(0.3, 0.8, Tally(300, 60), Tally(100, 60))
    assert block is not None
    found = bounds([block], alpha)
    for side, at in (("low", found.low), ("high", found.high)):
        assert capital([block], at, against=side) == pytest.approx(math.log(1 / alpha), abs=1e-3)


@pytest.mark.parametrize(
    "blocks",
    [
        [],
        [None],
        [canary_block(0.5, 0.5, Tally(), Tally())],
        [canary_block(0.0, 0.5, Tally(50, 50), Tally())],
        [canary_block(1.0, 0.5, Tally(), Tally(0, 50))],
        [canary_block(math.nan, 0.5, Tally(5, 5), Tally(5, 5))],
        [paired_block(0, 0, 0)],
    ],
)
def test_what_cannot_be_compared_refutes_nothing(blocks: list[Block | None]) -> None:
    found = bounds(blocks, ALPHA)
    assert (found.low, found.high) == (-1.0, 1.0)


@pytest.mark.parametrize(("good", "bad"), [(1000, 0), (0, 1000), (500, 500)])
def test_a_lane_alone_decides_nothing(good: int, bad: int) -> None:
    """With the centre at the rate of the lane that has all the traffic, whatever it is."""
    found = bounds([canary_block(0.5, good / 1000, Tally(good, bad), Tally())], ALPHA)
    assert found.low <= 0 <= found.high


@pytest.mark.parametrize("share", [0.05, 0.5, 0.9])
def test_more_sessions_narrow_the_interval(share: float) -> None:
    widths = []
    for n in (10, 100, 1000):
        n_candidate, n_current = round(2 * n * share), round(2 * n * (1 - share))
        lanes = [Tally(round(0.9 * n_), n_ - round(0.9 * n_)) for n_ in (n_current, n_candidate)]
        found = bounds([canary_block(share, 0.9, *lanes)], ALPHA)
        widths.append(found.high - found.low)
    assert widths == sorted(widths, reverse=True) and widths[-1] < 0.25


@pytest.mark.parametrize(
    ("pairs", "low", "high"),
    [
        ((0, 30, 10), -1, -0.1),
        ((30, 0, 10), 0.1, 1),
        ((5, 5, 200), -0.15, 0.15),
        ((0, 0, 1000), -0.02, 0.02),
    ],
)
def test_a_shadow_is_compared_by_pairs(
    pairs: tuple[int, int, int], low: float, high: float
) -> None:
    found = bounds([paired_block(*pairs)], ALPHA)
    assert low <= found.low < found.high <= high


def test_the_difference_is_by_step_so_that_drift_is_none() -> None:
    """The rate falls while the share grows: pooled, the candidate would look worse by far."""
    steps = [(Tally(950, 0), Tally(50, 0)), (Tally(250, 250), Tally(250, 250))]
    assert difference(steps) == pytest.approx(0)
    assert difference([(Tally(10, 0), Tally())]) is None and difference([]) is None
    assert difference([(Tally(8, 2), Tally(5, 5))]) == pytest.approx(-0.3)


# Simulated trials: somebody looks after each session


def trial(rng: np.random.Generator, drop: float, sessions: int = 600) -> tuple[bool, bool]:
    """(rolled back, shown to be no worse by more than 0.1) of a trial of three steps, at any look.
    Base rates drift between 0.55 and 0.95; the first sessions of a step give its centre, and are
    not scored."""
    worse, fine = np.zeros(len(BETS)), np.zeros(len(BETS))
    rolled_back, shown = False, False
    phase = rng.uniform(0, 2 * math.pi)
    for share in SHARES:
        rate = 0.75 + 0.2 * np.sin(phase + np.linspace(0, 6, sessions))
        lane = rng.random(sessions) < share
        good = (rng.random(sessions) < np.where(lane, rate - drop, rate)).astype(float)
        scored, centre = slice(FIRST, None), good[:FIRST].mean()
        worse_path, fine_path = (
            before + np.cumsum(path(share, centre, lane[scored], good[scored], m, side), axis=0)
            for before, m, side in ((worse, 0.0, "high"), (fine, -0.1, "low"))
        )
        worse, fine = worse_path[-1], fine_path[-1]
        rolled_back |= bool((np.exp(worse_path).mean(axis=1) >= 1 / ALPHA).any())
        shown |= bool((np.exp(fine_path).mean(axis=1) >= 1 / ALPHA).any())
    return rolled_back, shown


def outcomes(drop: float, trials: int = 300) -> tuple[float, float]:
    rng = np.random.default_rng(7)
    found = np.array([trial(rng, drop) for _ in range(trials)])
    return float(found[:, 0].mean()), float(found[:, 1].mean())


@pytest.mark.proof
def test_an_equal_candidate_is_rolled_back_no_more_often_than_alpha() -> None:
    rolled_back, shown = outcomes(0.0)
    assert rolled_back <= ALPHA and shown > 0.5


@pytest.mark.proof
def test_a_candidate_that_is_worse_by_the_margin_is_passed_no_more_often_than_alpha() -> None:
    rolled_back, shown = outcomes(0.1)
    assert shown <= ALPHA and rolled_back > 0.5


def test_a_candidate_that_is_much_worse_is_found_soon() -> None:
    rolled_back, _ = outcomes(0.3, trials=100)
    assert rolled_back > 0.99
