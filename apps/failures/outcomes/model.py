"""P(failure) of a run from its features, by logistic regression: shipped weights, adjusted by a
team's decisions. Pure.

`Weights` are plain numbers, stored as JSON. The shipped ones (`prior`) come from labelled runs of
one public benchmark; a team's decisions adjust them (`training`). Until a team has decided on
enough runs, the probability is only good for ranking; afterwards it is calibrated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import exp, log
from typing import Any

from apps.failures.outcomes.agents import Agents, Kind
from apps.failures.outcomes.features import SIZE_TEXTS, Features, Usual
from apps.failures.outcomes.prior import DENSE, INTERCEPT, THRESHOLD

MOST_REASONS = 5
LIMIT = 30.0  # clips the log-odds


@dataclass(frozen=True)
class Weights:
    """Log-odds per feature. `slope` and `shift` calibrate the sum; runs with a probability of at
    least `threshold` are shown to people. `agents` are the agents whose runs it was trained on.
    """

    dense: dict[str, float]
    intercept: float
    hashed: dict[int, float] = field(default_factory=dict)
    slope: float = 1.0
    shift: float = 0.0
    threshold: float = 0.5
    agents: Agents = field(default_factory=Agents)

    def as_json(self) -> dict[str, Any]:
        hashed = {str(bucket): weight for bucket, weight in self.hashed.items()}
        return vars(self) | {"hashed": hashed, "agents": self.agents.as_json()}

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Weights:
        hashed = {int(bucket): weight for bucket, weight in given.get("hashed", {}).items()}
        return cls(
            **given | {"hashed": hashed, "agents": Agents.from_json(given.get("agents", []))}
        )

    def for_runs_of(self, agent: Kind) -> Weights:
        """These weights, or the shipped ones if too few runs of this agent were decided on."""
        return self if self.agents.include(agent) else PRIOR

    def log_odds(self, run: Features) -> float:
        """The log-odds of failure, before calibration."""
        dense = sum(self.dense.get(name, 0.0) * value for name, value in run.dense.items())
        words = (
            sum(self.hashed.get(bucket, 0.0) * value for bucket, value in run.hashed.items())
            if self.hashed
            else 0.0
        )
        return self.intercept + dense + words

    def probability(self, run: Features) -> float:
        return logistic(self.slope * self.log_odds(run) + self.shift)


PRIOR = Weights(DENSE, INTERCEPT, threshold=THRESHOLD)


def logistic(log_odds: float) -> float:
    return 1.0 / (1.0 + exp(-max(-LIMIT, min(LIMIT, log_odds))))


def logit(share: float) -> float:
    share = min(max(share, 1e-6), 1 - 1e-6)
    return log(share / (1 - share))


@dataclass(frozen=True)
class Estimate:
    """`reasons` is a list of {rule, message_index, text, quote, weight}, the strongest first.
    `threshold` is that of the weights used.
    """

    probability: float
    reasons: list[dict[str, Any]]
    threshold: float

    @property
    def is_flagged(self) -> bool:
        return self.probability >= self.threshold


def estimate(run: Features, weights: Weights, usual: Usual) -> Estimate:
    """The probability of failure, with reasons. Only evidence for a failure is a reason, never
    evidence against it.
    """
    found: dict[str, dict[str, Any]] = {}
    for sign in run.signs:
        weight = weights.dense.get(sign.name, 0.0) * run.dense.get(sign.name, 1.0)
        if weight > 0 and sign.name not in found:
            found[sign.name] = _reason(sign.name, sign.message_index, sign.text, sign.quote, weight)
    for name, text in SIZE_TEXTS.items():
        rank = run.dense.get(f"size_{name}", 0.0)
        weight = weights.dense.get(f"size_{name}", 0.0) * rank
        if weight > 0 and abs(rank) > 0.5:
            share = round(50 * (1 + abs(rank)))
            said = (
                f"{'More' if rank > 0 else 'Less'} {text} than in {share}% of the project's runs."
            )
            found[f"size_{name}"] = _reason(f"size_{name}", None, said, "", weight)
    reasons = sorted(found.values(), key=lambda reason: -reason["weight"])[:MOST_REASONS]
    return Estimate(weights.probability(run), reasons, weights.threshold)


def _reason(rule: str, index: int | None, text: str, quote: str, weight: float) -> dict[str, Any]:
    return {
        "rule": rule,
        "message_index": index,
        "text": text,
        "quote": quote,
        "weight": round(weight, 3),
    }
