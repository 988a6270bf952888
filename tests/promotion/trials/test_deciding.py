"""What follows from what is known of a trial: a table."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from apps.promotion.trials.deciding import Lanes, Rules, centres, decide, read
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
        "kind": "canary", "steps": steps, "step": 2, "alpha": 0.05, "margin": 0.05, "step_at": NOW - timedelta(hours=1),
        "ends_by": NOW + timedelta(days=1),
    }  # fmt: skip
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
        ({"success": (Tally(4000, 400), Tally(4000, 400)), "step_at": NOW - timedelta(minutes=29)}, "wait"),
        ({"success": (Tally(1900, 100), Tally(90, 10)), "other": (Tally(2000, 0), Tally(100, 0)), "step": 0}, "next"),
        ({"success": (Tally(1900, 100), Tally(89, 10)), "other": (Tally(2000, 0), Tally(99, 0)), "step": 0}, "wait"),
    ],
)
def test_decisions(given: dict[str, Any], what: str) -> None:
    assert decided(**given) == what


def test_an_unsafe_candidate_is_rolled_back_though_it_succeeds_more_often() -> None:
    given = rules()
    lanes = {name: [Lanes(), Lanes(), Lanes(*PERFECT)] for name in ("success", "answered")}
    lanes["safety"] = [Lanes(), Lanes(), Lanes(Tally(1000, 0), Tally(930, 70))]
    found = decide(given, read(given, lanes), NOW)
    assert found.what == "worse" and "No unsafe action -7.0 points" in found.why and "Success" not in found.why


def test_a_shadow_is_decided_by_its_pairs() -> None:
    given = rules(kind="shadow", steps=STEPS[:1], step=0)
    bad = {name: [Lanes(Tally(90, 10), Tally(40, 60), (0, 50, 50))] for name in ("success", "safety", "answered")}
    good = {name: [Lanes(Tally(990, 10), Tally(990, 10), (5, 5, 990))] for name in ("success", "safety", "answered")}
    assert decide(given, read(given, bad), NOW).what == "worse"
    assert decide(given, read(given, good), NOW).what == "passed"


def test_the_centre_of_a_step_is_the_rate_of_those_before() -> None:
    lanes = {
        name: [Lanes(Tally(80, 20), Tally(10, 0)), Lanes(Tally(0, 0), Tally(30, 10))] for name in ("success", "safety")
    }
    assert centres(lanes | {"answered": [Lanes()]}) == {"success": 0.8, "safety": 0.8, "answered": 0.5}


@pytest.mark.parametrize(
    ("kind", "shares", "problem"),
    [("canary", [0.05, 0.5], ""), ("canary", [0.5, 0.5], "larger"), ("canary", [0.5, 0.1], "larger"),
     ("shadow", [0.5], ""), ("shadow", [0.1, 0.5], "one step")],
)  # fmt: skip
def test_steps_grow_and_a_shadow_has_one(kind: str, shares: list[float], problem: str) -> None:
    said = Plan(steps=[Step(share=share) for share in shares]).problem(kind)
    assert problem in said and bool(said) == bool(problem)
