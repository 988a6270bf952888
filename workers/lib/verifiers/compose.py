"""Combines several verifiers: weights, gates, limits. If a gate fails, there is no credit."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from msgspec import Meta

from workers.lib.typed import Number
from workers.lib.verifiers.base import Options, SpecError, options
from workers.lib.verifiers.types import Clients, Rollout, Score, Verifier, masked

MOST_PARTS = 30


class PartOptions(Options):
    verifier: dict
    weight: Number = 1.0
    gate: bool = False
    at_least: Number | None = None
    optional: bool = False


class ComposeOptions(Options):
    parts: Annotated[list[PartOptions], Meta(min_length=1, max_length=MOST_PARTS)]
    combine: Literal["sum", "mean", "product", "min", "max"] = "sum"
    clip: Annotated[list[Number], Meta(min_length=2, max_length=2)] | None = None
    gate_reward: Number = 0.0
    unsafe: Number | None = None
    success: Literal["all", "any", "gates"] = "all"


@dataclass(frozen=True)
class Part:
    """One of the combined verifiers. `gate`: no credit without it; `optional`: left out if it is
    masked.
    """

    name: str
    verifier: Verifier
    weight: float
    gate: bool
    at_least: float | None
    optional: bool

    def holds(self, score: Score) -> bool:
        return score.success if self.at_least is None else (score.reward or 0.0) >= self.at_least


class Compose:
    """The rewards of the parts, weighted and combined; components are named “part.component”.

    Gates are evaluated first, and the other parts only if they pass: no judge is paid for broken
    JSON.
    """

    def __init__(self, chosen: ComposeOptions, parts: list[Part]) -> None:
        self.parts = sorted(parts, key=lambda part: not part.gate)
        self.combine, self.clip, self.gate_reward = chosen.combine, chosen.clip, chosen.gate_reward
        self.unsafe, self.success = chosen.unsafe, chosen.success

    def score(self, rollout: Rollout) -> Score:
        return self.score_group([rollout])[0]

    def score_group(self, rollouts: list[Rollout]) -> list[Score]:
        found: list[dict[str, Score]] = [{} for _ in rollouts]
        for part in self.parts:
            asked = [at for at, scores in enumerate(found) if self.goes_on(scores)]
            for at, score in zip(
                asked, part.verifier.score_group([rollouts[at] for at in asked]), strict=True
            ):
                found[at][part.name] = score
        return [self.whole(scores) for scores in found]

    def goes_on(self, scores: dict[str, Score]) -> bool:
        """Whether the outcome is still open after the parts so far."""
        return all(
            part.optional if score.masked else not part.gate or part.holds(score)
            for part in self.parts
            if (score := scores.get(part.name)) is not None
        )

    def whole(self, scores: dict[str, Score]) -> Score:
        counted = []
        for part in self.parts:
            score = scores.get(part.name)
            if score is not None and score.masked and not part.optional:
                return masked(f"{part.name}: {score.mask_reason}")
            if score is not None and not score.masked:
                counted.append((part, score))
        if not counted:
            return masked("No part could be scored.")
        closed = [part.name for part, score in counted if part.gate and not part.holds(score)]
        made = self.merged(counted)
        made.reward = self.gate_reward if closed else self.combined(counted)
        made.success = not closed and self.succeeds(counted)
        if made.unsafe and self.unsafe is not None:
            made.reward, made.success = self.unsafe, False
        made.reward = self.clipped(made.reward)
        made.details = [f"gate not passed: {name}" for name in closed] + made.details
        return made

    def merged(self, counted: list[tuple[Part, Score]]) -> Score:
        """The combined score without its reward."""
        scores = [score for _, score in counted]
        components: dict[str, float] = {}
        for part, score in counted:
            components[part.name] = part.weight * (score.reward or 0.0)
            components |= {f"{part.name}.{name}": value for name, value in score.components.items()}
        return Score(
            reward=0.0,
            components=components,
            valid=known(all, (score.valid for score in scores)),
            tool_ok=known(any, (score.tool_ok for score in scores)),
            args_score=known(max, (score.args_score for score in scores)),
            executed=known(any, (score.executed for score in scores)),
            unsafe=any(score.unsafe for score in scores),
            details=[f"{part.name}: {text}" for part, score in counted for text in score.details][
                :40
            ],
        )

    def combined(self, counted: list[tuple[Part, Score]]) -> float:
        """Parts of weight 0 are reported but do not count. A product raises the rewards to the
        power of their weights.
        """
        counted = [(part, score) for part, score in counted if part.weight]
        if not counted:
            return 1.0  # there are only gates, and all have passed
        rewards = [score.reward or 0.0 for _, score in counted]
        weighted = [
            part.weight * reward for (part, _), reward in zip(counted, rewards, strict=True)
        ]
        if self.combine == "product":
            # a fractional power of a negative number is undefined, so negative rewards count as 0
            factors = (
                max(0.0, reward) ** part.weight
                for (part, _), reward in zip(counted, rewards, strict=True)
            )
            return math.prod(factors)
        if self.combine == "mean":
            return sum(weighted) / sum(abs(part.weight) for part, _ in counted)
        return {"sum": sum, "min": min, "max": max}[self.combine](weighted)

    def clipped(self, reward: float) -> float:
        if self.clip is None:
            return round(reward, 9)
        return round(min(max(reward, self.clip[0]), self.clip[1]), 9)

    def succeeds(self, counted: list[tuple[Part, Score]]) -> bool:
        asked = [part.holds(score) for part, score in counted if part.weight or part.gate]
        return {"all": all(asked), "any": any(asked), "gates": True}[self.success]


def from_spec(spec: dict, clients: Clients, path: str) -> Compose:
    chosen = options(spec, path, ComposeOptions)
    if chosen.clip is not None and chosen.clip[0] > chosen.clip[1]:
        raise SpecError(f"“{path}.clip” must be [lowest, highest].")
    parts = [_part(item, clients, f"{path}.parts[{at}]") for at, item in enumerate(chosen.parts)]
    names = [part.name for part in parts]
    if len(set(names)) < len(names):
        raise SpecError(f"“{path}.parts”: two parts have the same name. Give each its own “name”.")
    if chosen.combine == "product" and any(part.weight < 0 for part in parts):
        raise SpecError(f"“{path}.parts”: weights must be at least 0 in a product.")
    return Compose(chosen, parts)


def _part(chosen: PartOptions, clients: Clients, path: str) -> Part:
    from workers.lib.verifiers import build

    verifier = build(chosen.verifier, clients=clients, path=f"{path}.verifier")
    name = chosen.name or chosen.verifier["kind"]
    return Part(name, verifier, chosen.weight, chosen.gate, chosen.at_least, chosen.optional)


def known(combine: Callable[[Iterable[Any]], Any], values: Iterable[Any]) -> Any:
    """The values that are not None, combined; None if there are none."""
    given = [value for value in values if value is not None]
    return combine(given) if given else None
