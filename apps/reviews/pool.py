"""How right the verifier is on all outputs that a review's samples were drawn from. Pure.

People judge few of them, more of rare kinds than of common ones; the verifier has scored all. So a
sample counts for as many outputs as its stratum has for each judged one, and the scores of all
outputs narrow the interval as a judge's verdicts narrow the true failure rate
(`failures/outcomes/rate.py`): prediction-powered inference, within what the verifier passes and
what it fails.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from apps.failures.outcomes.rate import RULES, Check, Estimate, failure_rate, recall, strata
from apps.reviews.sampling import Share


@dataclass(frozen=True)
class Scores:
    """A stratum of the outputs: how many, their mean reward, and whether the verifier passes
    them.
    """

    stratum: str
    n: int
    reward: float
    passed: bool

    @classmethod
    def of(cls, share: Share) -> Scores:
        return cls(share.name, share.available, share.reward, share.score == "passed")


@dataclass(frozen=True)
class Sample:
    """A judged one; `person` is None if reviewers differ and nobody has ruled."""

    stratum: str
    passed: bool
    reward: float
    person: bool | None


@dataclass(frozen=True)
class Pool:
    """The verifier's accuracy on all `outputs`, and the share of those that people would fail which
    it passes, from `judged` samples; None if they do not say.
    """

    outputs: int
    judged: int
    accuracy: Estimate | None
    false_positive: Estimate | None

    def as_json(self) -> dict[str, Any]:
        return vars(self) | {
            name: found and vars(found)
            for name, found in (
                ("accuracy", self.accuracy),
                ("false_positive", self.false_positive),
            )
        }


def on_all(scores: Sequence[Scores], samples: Sequence[Sample]) -> Pool:
    outputs = {
        passed: sum(of.n for of in scores if of.passed == passed) for passed in (True, False)
    }
    known = {of.stratum: of for of in scores}
    judged = Counter(sample.stratum for sample in samples)

    def among(is_wrong: list[bool | None]) -> Any:
        checks = [
            Check(
                sample.passed,
                min(1.0, judged[sample.stratum] / known[sample.stratum].n),
                wrong,
                verdict=sample.reward - known[sample.stratum].reward,
            )
            for sample, wrong in zip(samples, is_wrong, strict=True)
        ]
        return strata(outputs, checks, {passed: float(n) for passed, n in outputs.items()})

    people = [sample.person for sample in samples]
    wrong = failure_rate(
        among(
            [
                None if person is None else person != sample.passed
                for person, sample in zip(people, samples, strict=True)
            ]
        )
    )
    return Pool(
        sum(outputs.values()),
        len(samples),
        wrong and Estimate(1 - wrong.value, 1 - wrong.high, 1 - wrong.low, wrong.n),
        recall(among([None if person is None else not person for person in people]), RULES),
    )
