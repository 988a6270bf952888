"""Scores the process of a multi-step run in addition to its outcome: turns over budget, tool
errors, recoveries, harm. Pure.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, field

from workers.lib.typed import AtLeastOne, Number
from workers.lib.verifiers.base import Guarded, Options, options, weights_of
from workers.lib.verifiers.types import Clients, Execution, Rollout, Score, Verifier

WEIGHTS = {
    "outcome": 1.0,
    "turn": -0.05,
    "token": -0.0001,
    "error": -0.1,
    "recovered": 0.05,
    "stopped": -0.2,
    "unsafe": -1.0,
}
BAD_STOPS = (
    "turns",
    "tokens",
    "time",
    "size",
    "context",
    "refused",
    "length",
    "max_turns",
    "max_tokens",
    "timeout",
)


class TrajectoryOptions(Options):
    outcome: dict | None = None
    weights: dict[str, Number] = {}
    max_turns: AtLeastOne | None = None
    max_tokens: AtLeastOne | None = None
    bad_stops: list[str] = field(default_factory=lambda: [*BAD_STOPS])
    clip: Annotated[list[Number], Meta(min_length=2, max_length=2)] = field(
        default_factory=lambda: [-1.0, 1.0]
    )


class Trajectory(Guarded):
    """The outcome's reward, minus a penalty for each turn over budget and each tool error; harm
    gives −1 whatever the rest.

    `outcome` is a verifier (without one: 0). An error is recovered if a later call of the same tool
    works, which returns part of its penalty. That part may not exceed the penalty, so that making
    an error never pays.
    """

    def __init__(self, chosen: TrajectoryOptions, outcome: Verifier | None, path: str) -> None:
        self.outcome, self.max_turns, self.max_tokens = outcome, chosen.max_turns, chosen.max_tokens
        self.weights = weights_of(chosen.weights, WEIGHTS, f"{path}.weights")
        self.bad_stops, self.clip = frozenset(chosen.bad_stops), chosen.clip

    def judge(self, rollout: Rollout) -> Score:
        base = self.outcome.score(rollout) if self.outcome else Score(reward=0.0, success=True)
        if base.masked:
            return base
        counts = self.counts(rollout)
        components = {"outcome": self.weights["outcome"] * (base.reward or 0.0)}
        components |= {name: self.weights[name] * count for name, count in counts.items() if count}
        unsafe = base.unsafe or any(call.unsafe for call in rollout.calls)
        if unsafe:
            components["unsafe"] = self.weights["unsafe"]
        reward = self.weights["unsafe"] if unsafe else sum(components.values())
        base.reward = round(min(max(reward, self.clip[0]), self.clip[1]), 9)
        base.components = components | {
            f"outcome.{name}": value for name, value in base.components.items()
        }
        base.unsafe, base.success = unsafe, base.success and not unsafe
        base.details = self.details(counts, rollout) + base.details
        return base

    def counts(self, rollout: Rollout) -> dict[str, int]:
        turns = rollout.stats.get("turns")
        if not isinstance(turns, int):
            turns = sum(message.get("role") == "assistant" for message in rollout.messages)
        tokens = rollout.stats.get("tokens")
        errors, recovered = errors_in(rollout.calls)
        return {
            "turn": max(0, turns - self.max_turns) if self.max_turns else 0,
            "token": (
                max(0, tokens - self.max_tokens)
                if self.max_tokens and isinstance(tokens, int)
                else 0
            ),
            "error": errors,
            "recovered": recovered,
            "stopped": int(rollout.stats.get("stop_reason") in self.bad_stops),
        }

    def details(self, counts: dict[str, int], rollout: Rollout) -> list[str]:
        labels = {
            "turn": "turns over budget",
            "token": "tokens over budget",
            "error": "tool errors",
            "recovered": "errors recovered from",
            "stopped": f"stopped by {rollout.stats.get('stop_reason')}",
        }
        found = [f"{labels[name]}: {count}" for name, count in counts.items() if count]
        return [f"unsafe: {call.name}" for call in rollout.calls if call.unsafe] + found


def errors_in(calls: list[Execution]) -> tuple[int, int]:
    """(calls that failed, how many of them were followed by a successful call of the same tool)."""
    worked_later: set[str] = set()
    errors = recovered = 0
    for call in reversed(calls):
        if call.ok:
            worked_later.add(call.name)
        else:
            errors += 1
            recovered += call.name in worked_later
    return errors, recovered


def from_spec(spec: dict, clients: Clients, path: str) -> Trajectory:
    from workers.lib.verifiers import SpecError, build

    chosen = options(spec, path, TrajectoryOptions)
    if chosen.clip[0] > chosen.clip[1]:
        raise SpecError(f"“{path}.clip” must be [lowest, highest].")
    outcome = (
        build(chosen.outcome, clients=clients, path=f"{path}.outcome")
        if chosen.outcome is not None
        else None
    )
    made = Trajectory(chosen, outcome, path)
    if made.weights["recovered"] > -made.weights["error"]:
        raise SpecError(
            f"“{path}.weights.recovered” must not be more than an error costs: it would pay to"
            " fail."
        )
    return made
