"""The forecast of a canary's harm: it decides as the product does, and says what the rules give."""

from __future__ import annotations

import math

import numpy as np
import pytest

from apps.promotion.trials.deciding import MEASURES
from apps.promotion.trials.harm import Course, _Trials, forecast, simulate
from apps.promotion.trials.plans import DEFAULTS
from apps.promotion.trials.sequential import Tally, bounds, canary_block
from workers.lib.typed import plain

STEPS = [{"share": share, "min_sessions": 100} for share in (0.1, 0.5, 0.9)]
USUAL = [plain(step) for step in DEFAULTS["canary"]]


def course(steps: list = STEPS, **changes: object) -> Course:
    return Course(
        **{"steps": steps, "alpha": 0.05, "margin": 0.05, "max_harmed": math.inf} | changes
    )  # type: ignore[arg-type]


def test_it_refutes_what_the_bounds_of_the_product_refute() -> None:
    rng, trials = np.random.default_rng(3), _Trials(course(), 60)
    trials.counts = rng.integers(0, 120, trials.counts.shape)
    trials.centres = rng.uniform(0, 1, trials.centres.shape)
    trials.set_gains(trials.rows)
    trials.counts[:, :, 0] *= 9  # the first sessions are not scored
    worse, fine = trials._refuted("high"), trials._refuted("low")
    for at in range(60):
        blocks = []
        for number, step in enumerate(STEPS):
            (bad, good), (bad_too, good_too) = trials.counts[at, number, 1].tolist()
            centre = float(trials.centres[at, number])
            blocks.append(
                canary_block(step["share"], centre, Tally(good, bad), Tally(good_too, bad_too))
            )
        found = bounds(blocks, 0.05 / len(MEASURES))
        assert (bool(worse[at]), bool(fine[at])) == (found.high < 0, found.low > -0.05)


@pytest.mark.proof
def test_the_own_centre_and_the_hold_save_users() -> None:
    """20% failures where the current version has 10%."""
    now = simulate(course(), 0.1, 0.2)
    before = simulate(course(centre=0.5, holds=False), 0.1, 0.2)
    assert now.in_first_step > 0.7 and before.in_first_step < 0.25
    assert now.harmed < 0.4 * before.harmed


@pytest.mark.proof
@pytest.mark.parametrize("failing", [0.02, 0.1, 0.3])
def test_an_equal_candidate_is_ended_by_the_bound_no_more_often_than_promised(
    failing: float,
) -> None:
    assert simulate(course(), failing, failing, runs=400).ended <= 0.05


def test_the_limit_bounds_what_a_candidate_costs() -> None:
    harm = {limit: simulate(course(USUAL, max_harmed=limit), 0.1, 0.15) for limit in (10, 50)}
    assert harm[10].harmed < 15 < harm[50].harmed < 50


@pytest.mark.proof
@pytest.mark.parametrize("delay", [600, 6000])
@pytest.mark.parametrize("shares", [(0.1, 0.5, 0.9), (0.05, 0.25, 0.5)])
def test_late_outcomes_cost_no_more_than_early_ones_where_intake_pauses(
    delay: float, shares: tuple[float, ...]
) -> None:
    """20% failures where the current version has 10%: the limit also bounds what is not known."""
    steps = [{"share": share, "min_sessions": 100} for share in shares]
    early = simulate(course(steps, max_harmed=50), 0.1, 0.2)
    late = simulate(course(steps, max_harmed=50, delay=delay), 0.1, 0.2)
    unbounded = simulate(course(steps, max_harmed=50, delay=delay, pauses=False), 0.1, 0.2)
    assert late.harmed < 1.3 * early.harmed and late.at_most < 1.3 * early.at_most
    assert late.ended > 0.97 and late.in_first_step > 0.7
    assert unbounded.at_most > late.at_most


@pytest.mark.proof
@pytest.mark.parametrize("failing", [0.02, 0.1])
def test_the_pause_accuses_no_equal_candidate(failing: float) -> None:
    """Whether a session takes part depends on those before, so the bound holds as without."""
    late = course(USUAL, max_harmed=math.inf, delay=600)
    assert simulate(late, failing, failing, runs=200).ended <= 0.05
    limited = simulate(course(USUAL, max_harmed=50, delay=600), failing, failing, runs=200)
    assert limited.ended <= 0.05 and limited.passed > 0.8


def test_everything_fails_and_nothing_is_known_before_the_end() -> None:
    """Outcomes that never come: the candidate answers as many as may be harmed, and no more."""
    never = course(USUAL, max_harmed=50, delay=1e9, longest=1e6)
    assert simulate(never, 0.0, 1.0, runs=50).at_most == 50


def test_a_forecast_never_has_more_failures_than_sessions() -> None:
    rows = forecast(course(USUAL), 0.9, runs=20)
    assert [row.extra for row in rows] == [0.0, 0.05, 0.1] and rows[0].harmed == 0
