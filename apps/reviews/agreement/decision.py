"""People's verdicts on a review's samples, and whether they let a verifier train. Pure: no Django,
no torch.

A bound decides, never an estimate: the lower end of a 95% interval if high values are required, the
upper end if low ones are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import ceil
from typing import Any

from apps.core.intervals import wilson
from apps.reviews.agreement.coefficients import (
    Rate,
    alpha_interval,
    cohen_kappa,
    kappa_interval,
    krippendorff_alpha,
    rates,
)

MANY = 2000  # more samples than anybody judges


@dataclass(frozen=True)
class Judged:
    """One sample: the verifier's score, and people's joint verdict (None while that is open).

    `waiting`: its reviewers differ, and nobody has ruled yet.
    """

    item: str
    passed: bool
    reward: float | None
    person: bool | None = None
    waiting: bool = False


def pairs_of(judged: Sequence[Judged]) -> list[tuple[bool, bool]]:
    """(person, verifier) of the samples that people have judged. One that waits for a ruling counts
    against the verifier: disagreement among reviewers must not make it look better."""
    return [
        (not item.passed if item.person is None else item.person, item.passed)
        for item in judged
        if item.person is not None or item.waiting
    ]


@dataclass(frozen=True)
class Agreement:
    """What a review has shown, with 95% intervals: κ by bootstrap, rates by Wilson.

    A false positive is an output that the verifier passes and the person fails: reward for bad
    behaviour. Accuracy is the share of samples on which the verifier is right by the people's
    verdict.
    """

    n: int
    kappa: float | None
    kappa_low: float | None
    kappa_high: float | None
    accuracy: Rate
    false_positive: Rate
    false_negative: Rate

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def assess(pairs: Sequence[tuple[bool, bool]]) -> Agreement:
    """Of (person says success, verifier says success) pairs."""
    person, verifier = [p for p, _ in pairs], [v for _, v in pairs]
    found, (low, high) = rates(pairs), kappa_interval(person, verifier) or (None, None)
    return Agreement(
        n=len(pairs),
        kappa=cohen_kappa(person, verifier),
        kappa_low=low,
        kappa_high=high,
        accuracy=found["agreement"],
        false_positive=found["false_positive"],
        false_negative=found["false_negative"],
    )


@dataclass(frozen=True)
class Alpha:
    """Krippendorff's α of the reviewers, with its 95% bootstrap interval, over `n` samples that
    several judged.
    """

    value: float | None
    low: float | None
    high: float | None
    n: int


def alpha_of(words: Sequence[Sequence[bool]]) -> Alpha:
    """`words`: the blind verdicts of each sample's reviewers."""
    units = [unit for unit in words if len(unit) > 1]
    low, high = alpha_interval(units) or (None, None)
    return Alpha(krippendorff_alpha(units), low, high, len(units))


def disagreements(judged: Sequence[Judged]) -> list[Judged]:
    """Worst first: failures that the verifier passes, highest reward first; then successes that it
    fails, lowest first.
    """
    against = [item for item in judged if item.person is not None and item.person != item.passed]
    return sorted(against, key=_badness)


def _badness(item: Judged) -> tuple[bool, float, str]:
    reward = item.reward or 0.0
    return (not item.passed, -reward if item.passed else reward, item.item)


@dataclass(frozen=True)
class Verdict:
    """Whether people's verdicts meet the policy, and every condition that is not met, as
    sentences.
    """

    passed: bool
    reasons: list[str]
    agreement: Agreement
    alpha: Alpha


def decide(
    policy: Mapping[str, Any], judged: Sequence[Judged], words: Sequence[Sequence[bool]] = ()
) -> Verdict:
    """The policy (min_samples, min_kappa, min_accuracy, max_false_positive_rate,
    reviewers_per_sample) applied to a review.

    `words`: the blind verdicts of each sample's reviewers; α is required if the policy wants
    several of them.
    """
    found, alpha = assess(pairs_of(judged)), alpha_of(words)
    several = policy["reviewers_per_sample"] > 1
    reasons = [
        *_too_few(found, policy["min_samples"], policy["reviewers_per_sample"]),
        *_of_coefficient(
            "κ of people and verifier",
            found.kappa,
            found.kappa_low,
            found.kappa_high,
            found.n,
            policy["min_kappa"],
        ),
        *(
            _of_coefficient(
                "α among the reviewers",
                alpha.value,
                alpha.low,
                alpha.high,
                alpha.n,
                policy["min_kappa"],
            )
            if several
            else ()
        ),
        *_too_wrong(found.accuracy, policy["min_accuracy"]),
        *_too_lenient(found.false_positive, policy["max_false_positive_rate"]),
    ]
    return Verdict(not reasons, reasons, found, alpha)


def _too_few(found: Agreement, wanted: int, people: int) -> list[str]:
    if found.n >= wanted:
        return []
    by = f" by {people} people" if people > 1 else ""
    return [f"{found.n} of at least {wanted:.0f} samples are judged{by}."]


def _of_coefficient(
    name: str, value: float | None, low: float | None, high: float | None, n: int, wanted: float
) -> list[str]:
    if value is None or low is None or high is None:
        return [f"{name} is not defined yet: the samples must contain both successes and failures."]
    if low >= wanted:
        return []
    # The width of the interval shrinks with the root of the number of samples.
    more = ceil(n * ((value - low) / (value - wanted)) ** 2) - n if value > wanted else None
    return [
        f"{name} is {value:.2f} (95% interval {low:.2f} to {high:.2f}); its lower end must be at"
        f" least {wanted:.2f}. {_needed(more)}"
    ]


def _too_wrong(found: Rate, wanted: float) -> list[str]:
    if not found.n or found.low >= wanted:
        return []
    more = _more(found, lambda rate, n: wilson(round(rate * n), n)[0] >= wanted)
    return [
        f"The verifier is right on {found.value:.1%} of {found.n} samples (95% interval"
        f" {found.low:.0%} to {found.high:.0%}); the lower end must be at least {wanted:.0%}."
        f" {_needed(more)}"
    ]


def _too_lenient(found: Rate, most: float) -> list[str]:
    if found.value is None:
        return ["The false-positive rate is unknown: none of the judged samples is a failure."]
    if found.high <= most:
        return []
    more = _more(found, lambda rate, n: wilson(round(rate * n), n)[1] <= most)
    return [
        f"The verifier passes {found.value:.1%} of what people fail ({found.count} of {found.n}"
        f" samples, 95% interval {found.low:.0%} to {found.high:.0%}); the upper end may be at most"
        f" {most:.0%}. {_needed(more, 'judged failures')}"
    ]


def _more(found: Rate, enough: Callable[[float, int], bool]) -> int | None:
    """How many more would be enough at the same rate; None if no number of them is."""
    assert found.value is not None
    return next((n - found.n for n in range(found.n + 1, MANY) if enough(found.value, n)), None)


def _needed(more: int | None, what: str = "samples") -> str:
    if more is None:
        return "More samples would not help: the verifier or the rubric must change."
    return f"About {max(1, more)} more {what} are needed if they turn out the same."
