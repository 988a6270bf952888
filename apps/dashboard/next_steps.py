"""What to do next, from the state of the wheel. Pure: no Django, no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Wheel:
    """Counts at each station."""

    trajectories: int = 0
    open_failures: int = 0
    eval_sets: int = 0
    frozen_sets: int = 0
    evaluations: int = 0
    locked_verifiers: int = 0
    adapters: int = 0
    running: int = 0
    waiting_reports: int = 0  # gate reports that say promote, for a model that is not live


@dataclass(frozen=True)
class Step:
    """One thing to do: its title, why, and the page (URL name) to do it on."""

    title: str
    why: str
    page: str


def next_steps(wheel: Wheel) -> list[Step]:
    """The most useful first; never empty."""
    steps = []
    if wheel.waiting_reports:
        steps.append(
            Step(
                "Review the gate report",
                "A candidate is better than production and can be promoted.",
                "promotion:models",
            )
        )
    if wheel.running:
        steps.append(
            Step(
                "Watch the run",
                f"{wheel.running} job{'s' if wheel.running != 1 else ''} running.",
                "training:list",
            )
        )
    if not wheel.trajectories:
        steps.append(
            Step(
                "Send the first trajectory",
                "Everything starts with what the agent does in production.",
                "trajectories:first",
            )
        )
        return steps
    if wheel.open_failures:
        steps.append(
            Step(
                "Triage failures", f"{wheel.open_failures} failures need review.", "failures:triage"
            )
        )
    if not wheel.frozen_sets:
        steps.append(
            Step(
                "Freeze a hold-out",
                "A frozen hold-out is needed to tell whether a new model is better.",
                "evals:list",
            )
        )
    elif not wheel.evaluations:
        steps.append(Step("Evaluate the baseline", "Measure before training.", "evals:list"))
    else:
        if not wheel.adapters:
            steps.append(Step("Train", "The advisor recommends the smallest fix.", "training:new"))
        if wheel.locked_verifiers:
            why = (
                "Training on its scores, such as GRPO, is locked until people agree with the"
                " verifier."
            )
            steps.append(Step("Review the reward", why, "reviews:list"))
    return steps or [
        Step(
            "Nothing to do", "New failures from production will show up here.", "trajectories:list"
        )
    ]
