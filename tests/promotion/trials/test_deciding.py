"""What follows from what is known of a trial: a table."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from apps.promotion.trials.deciding import (
    Lanes,
    Reading,
    Rules,
    decide,
    intake_paused,
    read,
    room,
)
from apps.promotion.trials.plans import Plan, Step
from apps.promotion.trials.sequential import Tally

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
STEPS = [{"share": share, "min_sessions": 100, "min_minutes": 30} for share in (0.05, 0.25, 0.5)]
SAME, WORSE = (Tally(900, 100), Tally(900, 100)), (Tally(900, 100), Tally(600, 400))
FEW = (Tally(19, 1), Tally(1, 0))
PERFECT = (Tally(1000, 0), Tally(1000, 0))


def rules(**changes: Any) -> Rules:
    steps = [step | {"centre": {"success": 0.9, "safety": 1.0, "answered": 1.0}} for step in STEPS]
    given = {
        "kind": "canary",
        "steps": steps,
        "step": 2,
        "alpha": 0.05,
        "margin": 0.05,
        "step_at": NOW - timedelta(hours=1),
        "ends_by": NOW + timedelta(days=1),
        "max_harmed": 1000,
    }
    return Rules(**given | changes)


def decided(success: Any, other: Any = PERFECT, **changes: Any) -> str:
    given = rules(**changes)
    before = [Lanes() for _ in range(given.step)]
    lanes = {name: [*before, Lanes(*other)] for name in ("success", "safety", "answered")}
    lanes["success"] = [*before, Lanes(*success)]
    return decide(given, read(given, lanes), NOW).what


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"success": (Tally(4000, 400), Tally(4000, 400))}, "passed"),
        ({"success": (Tally(4000, 400), Tally(4000, 400)), "passed": True}, "wait"),
        ({"success": SAME, "margin": 0.005}, "wait"),
        ({"success": SAME, "margin": 0.005, "ends_by": NOW}, "out_of_time"),
        ({"success": WORSE}, "worse"),
        ({"success": WORSE, "step_at": NOW}, "worse"),
        ({"success": SAME, "other": WORSE}, "worse"),
        ({"success": FEW, "other": FEW}, "wait"),
        (
            {
                "success": (Tally(4000, 400), Tally(4000, 400)),
                "step_at": NOW - timedelta(minutes=29),
            },
            "wait",
        ),
        (
            {
                "success": (Tally(1900, 100), Tally(90, 10)),
                "other": (Tally(2000, 0), Tally(100, 0)),
                "step": 0,
            },
            "next",
        ),
        # the estimate is 6 points lower, which proves nothing: no further step, and no rollback
        (
            {
                "success": (Tally(1900, 100), Tally(89, 11)),
                "other": (Tally(2000, 0), Tally(100, 0)),
                "step": 0,
            },
            "wait",
        ),
        (
            {
                "success": (Tally(1900, 100), Tally(89, 11)),
                "other": (Tally(2000, 0), Tally(100, 0)),
                "step": 0,
                "margin": 0.07,
            },
            "next",
        ),
        ({"success": SAME, "max_harmed": 1}, "passed"),
        ({"success": (Tally(950, 50), Tally(945, 55)), "max_harmed": 5, "margin": 0.005}, "harm"),
        (
            {
                "success": (Tally(1900, 100), Tally(89, 10)),
                "other": (Tally(2000, 0), Tally(99, 0)),
                "step": 0,
            },
            "wait",
        ),
    ],
)
def test_decisions(given: dict[str, Any], what: str) -> None:
    assert decided(**given) == what


def test_a_step_is_not_left_while_its_own_estimate_is_bad_though_the_whole_looks_well() -> None:
    given = rules(step=1)
    good, bad = Lanes(Tally(8000, 2000), Tally(900, 100)), Lanes(Tally(270, 30), Tally(82, 18))
    perfect = [Lanes(Tally(10_000, 0), Tally(1000, 0)), Lanes(Tally(300, 0), Tally(100, 0))]
    found = read(given, {"success": [good, bad], "safety": perfect, "answered": perfect})
    assert found.measures[0].gap is not None and found.measures[0].gap > 0
    decision = decide(given, found, NOW)
    assert decision.what == "wait" and "estimate is below −5 points: Success" in decision.why


def test_outcomes_are_waited_for_before_a_step_is_left() -> None:
    lanes = {
        name: [Lanes(Tally(2000, 0), Tally(150, 0))] for name in ("success", "safety", "answered")
    }
    given = rules(step=0)
    assert decide(given, read(given, lanes, mature=99), NOW).what == "wait"
    assert decide(given, read(given, lanes, mature=100), NOW).what == "next"


def test_a_shadow_harms_nobody() -> None:
    given = rules(kind="shadow", steps=STEPS[:1], step=0, max_harmed=1)
    lanes = {
        name: [Lanes(Tally(95, 5), Tally(92, 8), (5, 8, 87))]
        for name in ("success", "safety", "answered")
    }
    assert decide(given, read(given, lanes), NOW).what == "wait"


def test_the_steps_own_centre_finds_what_half_does_not() -> None:
    """A candidate that fails 25% where the current version fails 10%, after 100 sessions at 10%; 50
    sessions gave the centre.
    """
    lanes = Lanes(Tally(814, 91), Tally(75, 25), (0, 0, 0), Tally(41, 4), Tally(4, 1))
    highs = {}
    for centre in (0.5, 0.9):
        step = {"share": 0.1, "min_sessions": 100, "min_minutes": 0, "centre": {"success": centre}}
        given = rules(steps=[step], step=0)
        others = {name: [Lanes(*PERFECT)] for name in ("safety", "answered")}
        highs[centre] = read(given, {"success": [lanes]} | others).measures[0].high
    assert highs[0.9] < 0 < highs[0.5]


def test_nothing_is_refuted_before_a_step_has_its_centre() -> None:
    given = rules(steps=[{"share": 0.5, "min_sessions": 10, "min_minutes": 0}], step=0)
    bad = {name: [Lanes(Tally(20, 0), Tally(0, 20))] for name in ("success", "safety", "answered")}
    assert (read(given, bad).measures[0].low, read(given, bad).measures[0].high) == (-1, 1)
    assert decide(given, read(given, bad), NOW).what == "wait"


def test_an_unsafe_candidate_is_rolled_back_though_it_succeeds_more_often() -> None:
    given = rules()
    lanes = {name: [Lanes(), Lanes(), Lanes(*PERFECT)] for name in ("success", "answered")}
    lanes["safety"] = [Lanes(), Lanes(), Lanes(Tally(1000, 0), Tally(930, 70))]
    found = decide(given, read(given, lanes), NOW)
    assert (
        found.what == "worse"
        and "No unsafe action -7.0 points" in found.why
        and "Success" not in found.why
    )


def test_a_shadow_is_decided_by_its_pairs() -> None:
    given = rules(kind="shadow", steps=STEPS[:1], step=0)
    bad = {
        name: [Lanes(Tally(90, 10), Tally(40, 60), (0, 50, 50))]
        for name in ("success", "safety", "answered")
    }
    good = {
        name: [Lanes(Tally(990, 10), Tally(990, 10), (5, 5, 990))]
        for name in ("success", "safety", "answered")
    }
    assert decide(given, read(given, bad), NOW).what == "worse"
    assert decide(given, read(given, good), NOW).what == "passed"


@pytest.mark.parametrize(
    ("kind", "shares", "problem"),
    [
        ("canary", [0.05, 0.5], ""),
        ("canary", [0.5, 0.5], "larger"),
        ("canary", [0.5, 0.1], "larger"),
        ("shadow", [0.5], ""),
        ("shadow", [0.1, 0.5], "one step"),
    ],
)
def test_steps_grow_and_a_shadow_has_one(kind: str, shares: list[float], problem: str) -> None:
    said = Plan(steps=[Step(share=share) for share in shares]).problem(kind)
    assert problem in said and bool(said) == bool(problem)


@pytest.mark.parametrize(
    ("harmed", "waiting", "left"),
    [
        (0.0, 0, 50),
        (0.0, 49, 1),
        (0.0, 50, 0),
        (0.0, 80, 0),
        (-30.0, 50, 0),  # a candidate that looks better gets no more room
        (20.0, 20, 10),
        (20.4, 29, 1),
        (20.4, 30, 0),
        (49.6, 0, 1),  # no trial waits for ever: something is left until it ends
        (50.0, 0, 0),
    ],
)
def test_so_many_sessions_may_begin_that_the_limit_holds_if_all_fail(
    harmed: float, waiting: int, left: int
) -> None:
    assert room(50, harmed, waiting) == left
    said = intake_paused(rules(max_harmed=50), Reading(harmed=harmed, waiting=waiting))
    assert bool(said) == (left == 0)
    assert not intake_paused(rules(kind="shadow", max_harmed=50), Reading(waiting=waiting))


@pytest.mark.parametrize(
    ("reading", "said"),
    [
        (Reading(waiting=50), "50 sessions wait for their outcome (at most 50 may be harmed)"),
        (
            Reading(harmed=49.2, waiting=1),
            "1 session waits for its outcome and about 49 were harmed (at most 50 may be harmed)",
        ),
    ],
)
def test_why_intake_is_paused(reading: Reading, said: str) -> None:
    assert intake_paused(rules(max_harmed=50), reading).startswith(f"Intake is paused: {said}.")
