"""What the overview says to do next, from the state of the wheel."""

from __future__ import annotations

import pytest

from apps.dashboard.next_steps import Wheel, next_steps

DONE = {"trajectories": 9, "eval_sets": 1, "frozen_sets": 1, "evaluations": 2, "adapters": 1}


@pytest.mark.parametrize(
    ("wheel", "titles"),
    [
        (Wheel(), ["Send the first trajectory"]),
        (Wheel(trajectories=9), ["Freeze a hold-out"]),
        (Wheel(trajectories=9, open_failures=2), ["Triage failures", "Freeze a hold-out"]),
        (Wheel(trajectories=9, eval_sets=1), ["Freeze a hold-out"]),
        (Wheel(trajectories=9, eval_sets=1, frozen_sets=1), ["Evaluate the baseline"]),
        (
            Wheel(trajectories=9, frozen_sets=1, evaluations=1, locked_verifiers=1),
            ["Train", "Review the reward"],
        ),
        (Wheel(trajectories=9, frozen_sets=1, evaluations=1), ["Train"]),
        (Wheel(**DONE, running=1), ["Watch the run"]),
        (
            Wheel(**DONE, waiting_reports=1, open_failures=3),
            ["Review the gate report", "Triage failures"],
        ),
        (Wheel(**DONE), ["Nothing to do"]),
    ],
)
def test_the_most_useful_step_comes_first(wheel: Wheel, titles: list[str]) -> None:
    assert [step.title for step in next_steps(wheel)] == titles
