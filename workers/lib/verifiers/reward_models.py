"""A learned reward model, over HTTP or as a function. Light.

The request has OpenRLHF's format: {"query": [prompt and answer], "prompts": […], "labels": […]};
the response is {"rewards": [number]} (or "scores"), one per query.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Any, Literal

from msgspec import Meta

from workers.lib.addresses import PrivateNetworks
from workers.lib.outgoing import Bounds, RefusedAddress, check_url, client
from workers.lib.typed import LARGEST, Number
from workers.lib.verifiers.base import (
    Guarded,
    Options,
    SpecError,
    Unanswered,
    Unavailable,
    Unscorable,
    options,
)
from workers.lib.verifiers.judges import transcript
from workers.lib.verifiers.types import Clients, Rollout, Score

LARGEST_ANSWER = 10 * 2**20


class RewardModelOptions(Options):
    url: str | None = None
    timeout_s: Annotated[float, Meta(ge=0.1, le=600)] = 60.0
    batch: Annotated[int, Meta(ge=1, le=1024)] = 64
    scale: Literal["none", "sigmoid", "range"] = "none"
    low: Number = 0.0
    high: Number = 1.0
    threshold: Number = 0.5


Scorer = Callable[[dict], Any]


class RewardModel(Guarded):
    """`scale`: "none" keeps the model's number, "sigmoid" is 1 / (1 + e^−x), "range" maps [low,
    high] to [0, 1].
    """

    def __init__(self, chosen: Any, call: Scorer | None, allow_private: PrivateNetworks) -> None:
        self.o, self.call = chosen, call or (self.post if chosen.url else None)
        self.allow_private = allow_private

    def judge(self, rollout: Rollout) -> Score:
        return self.of_value(self.values([rollout])[0])

    def score_group(self, rollouts: list[Rollout]) -> list[Score]:
        found: list[Score] = []
        for start in range(0, len(rollouts), self.o.batch):
            part = rollouts[start : start + self.o.batch]
            try:
                values = self.values(part)
            except (
                Exception
            ):  # one bad answer, or a server failure: scoring each separately will show
                found += [self.score(rollout) for rollout in part]
            else:
                found += [self.valued(*pair) for pair in zip(part, values, strict=True)]
        return found

    def valued(self, rollout: Rollout, value: Any) -> Score:
        try:
            return self.of_value(value)
        except Unscorable as error:
            return self.blamed(rollout, str(error))

    def values(self, rollouts: list[Rollout]) -> list[Any]:
        """The model's value for each rollout. Raises Unavailable, Unanswered."""
        queries = query_of(rollouts)
        if self.call is None:
            raise Unavailable("There is no reward model to ask: give “url”.")
        try:
            answer = self.call(queries)
        except Exception as error:
            raise Unanswered(f"The reward model failed: {type(error).__name__}: {error}") from error
        found = answer.get("rewards", answer.get("scores")) if isinstance(answer, dict) else answer
        if not isinstance(found, list) or len(found) != len(rollouts):
            raise Unanswered(f"The reward model did not answer with {len(rollouts)} rewards.")
        return found

    def of_value(self, value: Any) -> Score:
        """Raises Unscorable if the value is not a number."""
        value = value[0] if isinstance(value, list) and len(value) == 1 else value
        if (
            not isinstance(value, int | float)
            or isinstance(value, bool)
            or not abs(value) <= LARGEST
        ):
            raise Unscorable("The reward model's answer is not a number.")
        reward = self.scaled(float(value))
        components = {"reward_model": reward, "raw": float(value)}
        return Score(reward=reward, components=components, success=reward >= self.o.threshold)

    def scaled(self, value: float) -> float:
        if self.o.scale == "sigmoid":
            return 1 / (1 + math.exp(-max(-500.0, min(500.0, value))))
        if self.o.scale == "range":
            return max(0.0, min(1.0, (value - self.o.low) / (self.o.high - self.o.low)))
        return value

    def post(self, query: dict) -> Any:
        bounds = Bounds(LARGEST_ANSWER, self.o.timeout_s)
        with client(
            allow_private=self.allow_private, bounds=bounds, timeout=self.o.timeout_s
        ) as asked:
            return asked.post(self.o.url, json=query).raise_for_status().json()


def query_of(rollouts: list[Rollout]) -> dict:
    """A request in OpenRLHF's format."""
    prompts = [transcript(rollout.task.get("messages") or []) for rollout in rollouts]
    answers = [transcript(rollout.messages) for rollout in rollouts]
    labels = [rollout.expected.get("answer", rollout.expected or None) for rollout in rollouts]
    queries = [f"{prompt}\n{answer}" for prompt, answer in zip(prompts, answers, strict=True)]
    return {"query": queries, "prompts": prompts, "labels": labels}


def from_spec(spec: dict, clients: Clients, path: str) -> RewardModel:
    chosen = options(spec, path, RewardModelOptions)
    try:
        if chosen.url is not None:
            check_url(
                chosen.url, allow_private=True
            )  # whether this installation allows it is checked when connecting
    except RefusedAddress as error:
        raise SpecError(f"“{path}.url”: {error}") from error
    if chosen.low >= chosen.high:
        raise SpecError(f"“{path}.low” must be less than “{path}.high”.")
    return RewardModel(chosen, clients.get("reward_model"), clients.get("allow_private") or False)
