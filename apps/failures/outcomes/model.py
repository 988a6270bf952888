"""A score of a run from its features, by logistic regression on a team's decisions. Pure.

`Weights` are plain numbers, stored as JSON. A score is between 0 and 1, and called a probability
only if `training` has measured its calibration.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import exp
from typing import Any

from apps.failures.outcomes.agents import Agents
from apps.failures.outcomes.features import SIZES, Features, bucket_of

MOST_REASONS, MOST_WORDS = 5, 5
FEWEST_FAILED, FEWEST_FINE = 10, 50  # decisions before anything is fitted
FALSE_ALARMS = 0.10  # the limit: the share of runs without a failure that may be flagged
OVER = 500.0  # evidence that it is passed, at which a model is switched off
LIMIT = 30.0  # clips the log-odds


@dataclass(frozen=True)
class Weights:
    """Log-odds per feature. `slope` and `shift` calibrate the sum; runs with a score of at least
    `threshold` are shown to people. `agents` and `requests` (as hashes) are those of the runs that
    it was trained on.
    """

    dense: dict[str, float]
    intercept: float
    hashed: dict[int, float] = field(default_factory=dict)
    slope: float = 1.0
    shift: float = 0.0
    threshold: float = 0.5
    agents: Agents = field(default_factory=Agents)
    requests: list[int] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        hashed = {str(bucket): weight for bucket, weight in self.hashed.items()}
        return vars(self) | {"hashed": hashed, "agents": self.agents.as_json()}

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Weights:
        hashed = {int(bucket): weight for bucket, weight in given.get("hashed", {}).items()}
        return cls(
            **given | {"hashed": hashed, "agents": Agents.from_json(given.get("agents", []))}
        )

    def score(self, run: Features) -> float:
        dense = sum(self.dense.get(name, 0.0) * value for name, value in run.dense.items())
        words = sum(self.hashed.get(bucket, 0.0) * value for bucket, value in run.hashed.items())
        return logistic(self.slope * (self.intercept + dense + words) + self.shift)


def logistic(log_odds: float) -> float:
    return 1.0 / (1.0 + exp(-max(-LIMIT, min(LIMIT, log_odds))))


@dataclass(frozen=True)
class Estimate:
    """`reasons` is a list of {rule, message_index, text, quote, weight}, the strongest first."""

    score: float
    is_flagged: bool
    reasons: list[dict[str, Any]]


def estimate(run: Features, weights: Weights) -> Estimate:
    """Only evidence for a failure is a reason, never evidence against it."""
    score = weights.score(run)
    reasons = [*_of_rules(run, weights), *_of_the_judge(run, weights), *_of_sizes(run, weights)]
    reasons += _of_words(run, weights)
    reasons.sort(key=lambda reason: -reason["weight"])
    return Estimate(score, score >= weights.threshold, reasons[:MOST_REASONS])


def in_words(score: float, measured: Mapping[str, Any]) -> str:
    """A probability if its calibration was measured, else the score's rank among decided runs."""
    if measured.get("calibrated"):
        return f"Estimated probability of failure: {score:.0%}."
    ranks = measured.get("quantiles") or [0.0]
    above = bisect_left(ranks, score) / len(ranks)
    return f"Estimate: more like a failure than {above:.0%} of the decided runs."


def _of_rules(run: Features, weights: Weights) -> list[dict[str, Any]]:
    first = {item.rule: item for item in reversed(run.found)}
    return [
        _reason(
            rule, weights.dense.get(f"rule_{rule}", 0.0), item.text, item.message_index, item.quote
        )
        for rule, item in first.items()
        if weights.dense.get(f"rule_{rule}", 0.0) > 0
    ]


def _of_the_judge(run: Features, weights: Weights) -> list[dict[str, Any]]:
    weight = weights.dense.get("judge", 0.0) * run.dense.get("judge", 0.0)
    said = "failed" if run.dense.get("judge", 0.0) > 0 else "did not fail"
    return [_reason("judge", weight, f"The judge says that it {said}.")] if weight > 0 else []


def _of_sizes(run: Features, weights: Weights) -> list[dict[str, Any]]:
    reasons = []
    for name, text in SIZES.items():
        rank = run.dense.get(f"size_{name}", 0.0)
        weight = weights.dense.get(f"size_{name}", 0.0) * rank
        if weight > 0 and abs(rank) > 0.5:
            than = f"{'More' if rank > 0 else 'Less'} {text} than in {50 * (1 + abs(rank)):.0f}%"
            reasons.append(_reason(f"size_{name}", weight, f"{than} of the project's runs."))
    return reasons


def _of_words(run: Features, weights: Weights) -> list[dict[str, Any]]:
    """The words and tools that were most typical of failures among the decided runs."""
    of = {token: weights.hashed.get(bucket_of(token), 0.0) for token in run.tokens}
    strongest = sorted((t for t in of if of[t] > 0), key=lambda t: (-of[t], t))[:MOST_WORDS]
    if not strongest:
        return []
    share = run.hashed[bucket_of(strongest[0])]
    words = ", ".join(dict.fromkeys(f"“{token.split(' ', 1)[1]}”" for token in strongest))
    text = f"Words and tools that failed runs had more often: {words}."
    return [_reason("words", share * sum(of[token] for token in strongest), text)]


def _reason(
    rule: str, weight: float, text: str, index: int | None = None, quote: str = ""
) -> dict[str, Any]:
    return {
        "rule": rule,
        "message_index": index,
        "text": text,
        "quote": quote,
        "weight": round(weight, 3),
    }
