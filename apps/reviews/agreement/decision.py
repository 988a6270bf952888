"""What people said of a review's samples, and whether that lets a verifier train. Pure: no Django, no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from typing import Any

from apps.core.intervals import wilson
from apps.reviews.agreement.coefficients import Rate, cohen_kappa, kappa_interval, krippendorff_alpha, rate

DEFAULT_POLICY: dict[str, Any] = {
    "min_samples": 50,
    "min_kappa": 0.6,
    "kappa_on": "point",  # or "lower": whether κ itself or its interval's lower end must reach min_kappa
    "max_false_positive_rate": 0.05,
    "false_positive_on": "point",  # or "upper"
}


@dataclass(frozen=True)
class Agreement:
    """What a review has shown. Rates are None where there is nothing to divide by.

    A false positive is an output that the verifier passes and the person fails: reward for bad behaviour.
    """

    n: int
    kappa: float | None
    kappa_low: float | None
    kappa_high: float | None
    false_positives: int
    false_positive_rate: float | None
    false_positive_low: float
    false_positive_high: float
    false_negatives: int
    false_negative_rate: float | None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def assess(pairs: Sequence[tuple[bool, bool]]) -> Agreement:
    """Of (person says success, verifier says success) pairs."""
    person, verifier = [p for p, _ in pairs], [v for _, v in pairs]
    kappa, interval = cohen_kappa(person, verifier), kappa_interval(person, verifier)
    person_fails, person_passes = person.count(False), person.count(True)
    false_positives = sum(v and not p for p, v in pairs)
    false_negatives = sum(p and not v for p, v in pairs)
    rate = false_positives / person_fails if person_fails else None
    low, high = wilson(false_positives, person_fails)
    return Agreement(
        n=len(pairs),
        kappa=kappa,
        kappa_low=interval[0] if interval else None,
        kappa_high=interval[1] if interval else None,
        false_positives=false_positives,
        false_positive_rate=rate,
        false_positive_low=low,
        false_positive_high=high,
        false_negatives=false_negatives,
        false_negative_rate=false_negatives / person_passes if person_passes else None,
    )


@dataclass(frozen=True)
class Judged:
    """One sample with what the verifier gave and what each reviewer said; `decided` is the adjudicator's word."""

    item: str
    passed: bool
    reward: float | None
    words: Mapping[str, bool] = field(default_factory=dict)
    decided: bool | None = None

    @property
    def person(self) -> bool | None:
        """The adjudicated word, else the majority's; None where nobody spoke or the reviewers are split evenly."""
        if self.decided is not None:
            return self.decided
        yes = sum(self.words.values())
        return None if 2 * yes == len(self.words) else 2 * yes > len(self.words)

    @property
    def undecided(self) -> bool:
        return bool(self.words) and self.person is None


def pairs_of(judgements: Sequence[Judged]) -> list[tuple[bool, bool]]:
    """(person, verifier) of the samples that have a word."""
    return [(person, item.passed) for item in judgements if (person := item.person) is not None]


@dataclass(frozen=True)
class Between:
    """Two reviewers on the samples that both judged."""

    first: str
    second: str
    agreement: Rate
    kappa: float | None


def between_reviewers(judgements: Sequence[Judged]) -> list[Between]:
    """Each pair of reviewers that share a sample, by name."""
    names = sorted({name for item in judgements for name in item.words})
    found = []
    for first, second in combinations(names, 2):
        shared = [(j.words[first], j.words[second]) for j in judgements if first in j.words and second in j.words]
        if shared:
            a, b = [x for x, _ in shared], [y for _, y in shared]
            found.append(Between(first, second, rate(sum(x == y for x, y in shared), len(shared)), cohen_kappa(a, b)))
    return found


def reviewers_alpha(judgements: Sequence[Judged]) -> float | None:
    """Krippendorff's α (nominal) of all reviewers, whoever judged what."""
    return krippendorff_alpha([list(item.words.values()) for item in judgements])


def disagreements(judgements: Sequence[Judged]) -> list[Judged]:
    """Worst first: failures that the verifier passes, highest reward first; then successes that it fails, lowest first."""
    against = [item for item in judgements if item.person is not None and item.person != item.passed]
    return sorted(against, key=_badness)


def _badness(item: Judged) -> tuple[bool, float, str]:
    reward = item.reward or 0.0
    return (not item.passed, -reward if item.passed else reward, item.item)


@dataclass(frozen=True)
class Verdict:
    """Whether training may open, and in words every condition that is not met."""

    passed: bool
    reasons: list[str]
    agreement: Agreement
    undecided: int


def decide(policy: Mapping[str, Any] | None, judgements: Sequence[Judged]) -> Verdict:
    """The policy (over DEFAULT_POLICY) on a review.

    Raises ValueError for a `kappa_on` or `false_positive_on` there is not.
    """
    rules = DEFAULT_POLICY | dict(policy or {})
    agreement = assess(pairs_of(judgements))
    undecided = sum(item.undecided for item in judgements)
    reasons = [
        *_too_few(agreement, rules), *_too_little(agreement, rules), *_too_lenient(agreement, rules), *_split(undecided),
    ]  # fmt: skip
    return Verdict(not reasons, reasons, agreement, undecided)


def _too_few(found: Agreement, rules: Mapping[str, Any]) -> list[str]:
    if found.n >= rules["min_samples"]:
        return []
    return [f"{found.n} of at least {rules['min_samples']:.0f} samples are judged."]


def _too_little(found: Agreement, rules: Mapping[str, Any]) -> list[str]:
    if rules["kappa_on"] not in ("lower", "point"):
        raise ValueError(f"kappa_on is “lower” or “point”, not {rules['kappa_on']!r}")
    if found.kappa is None or found.kappa_low is None or found.kappa_high is None:
        return ["κ is not defined yet: the samples must hold both successes and failures."]
    lower = rules["kappa_on"] == "lower"
    if (found.kappa_low if lower else found.kappa) >= rules["min_kappa"]:
        return []
    which = "the interval's lower end" if lower else "κ itself"
    interval = f"95% interval {found.kappa_low:.2f} to {found.kappa_high:.2f}"
    return [f"κ is {found.kappa:.2f} ({interval}); {which} must be at least {rules['min_kappa']:.2f}."]


def _too_lenient(found: Agreement, rules: Mapping[str, Any]) -> list[str]:
    if rules["false_positive_on"] not in ("point", "upper"):
        raise ValueError(f"false_positive_on is “point” or “upper”, not {rules['false_positive_on']!r}")
    if found.false_positive_rate is None:
        return ["The false-positive rate is not known: no judged sample is a failure."]
    upper = rules["false_positive_on"] == "upper"
    if (found.false_positive_high if upper else found.false_positive_rate) <= rules["max_false_positive_rate"]:
        return []
    which = "the interval's upper end" if upper else "the rate"
    interval = f"95% interval {found.false_positive_low:.0%} to {found.false_positive_high:.0%}"
    return [
        f"The verifier passes {found.false_positive_rate:.1%} of what people fail ({found.false_positives} "
        f"{'sample' if found.false_positives == 1 else 'samples'}, "
        f"{interval}); {which} may be at most {rules['max_false_positive_rate']:.0%}."
    ]


def _split(undecided: int) -> list[str]:
    if not undecided:
        return []
    word = "sample" if undecided == 1 else "samples"
    return [f"Reviewers are split on {undecided} {word}; an adjudicator has to decide."]
