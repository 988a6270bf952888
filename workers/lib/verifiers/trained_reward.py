"""A registered reward model version as a verifier. Light: the scorer is looked up by the digest of
its weights in `clients["reward_models"]` (workers.lib.reward_scorer).
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from workers.lib.reward_scorer import CannotScore, RewardScorer, conversation_of
from workers.lib.typed import Number
from workers.lib.verifiers.base import Guarded, Options, Unavailable, Unscorable, options
from workers.lib.verifiers.types import Clients, Rollout, Score

Digest = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]


class TrainedRewardOptions(Options):
    """`version` is its name for people; `digest` determines which weights score. `threshold`: the
    reward from which an answer is a success. Everything except the name is filled in when a
    verifier is saved.
    """

    version: str
    digest: Digest | None = None
    scale: Literal["calibrated", "raw"] = "calibrated"
    threshold: Number | None = None


class TrainedReward(Guarded):
    """`calibrated` gives the probability that the answer is a chosen one, `raw` the model's own
    number.
    """

    def __init__(self, chosen: TrainedRewardOptions, scorer: RewardScorer | None) -> None:
        self.o, self.scorer = chosen, scorer

    def judge(self, rollout: Rollout) -> Score:
        return self.of(self.found([rollout])[0])

    def score_group(self, rollouts: list[Rollout]) -> list[Score]:
        try:
            found = self.found(rollouts)
        except Exception:  # scoring each separately will show which one is at fault
            return [self.score(rollout) for rollout in rollouts]
        return [
            self.of(one) if "error" not in one else self.score(rollout)
            for one, rollout in zip(found, rollouts, strict=True)
        ]

    def found(self, rollouts: list[Rollout]) -> list[dict]:
        """Raises Unavailable."""
        if self.scorer is None:
            raise Unavailable(
                f"The reward model {self.o.version} scores in jobs only: evaluate, rescore or train"
                " with it."
            )
        try:
            return self.scorer.scores([conversation_of(rollout) for rollout in rollouts])
        except CannotScore as error:
            raise Unavailable(str(error)) from error

    def of(self, found: dict) -> Score:
        """Raises Unscorable."""
        if "error" in found:
            raise Unscorable(found["error"])
        reward = found[self.o.scale]
        components = {"reward_model": reward, "raw": found["raw"]}
        passed = reward >= (0.5 if self.o.threshold is None else self.o.threshold)
        return Score(reward=reward, components=components, success=passed)


def from_spec(spec: dict, clients: Clients, path: str) -> TrainedReward:
    chosen = options(spec, path, TrainedRewardOptions)
    return TrainedReward(chosen, (clients.get("reward_models") or {}).get(chosen.digest))
