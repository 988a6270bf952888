"""Do people and the verifier agree? Pure: no Django, no torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from apps.core.intervals import wilson

BOOTSTRAP_ROUNDS = 2000
DEFAULT_POLICY = {"min_samples": 50, "min_kappa": 0.6, "max_false_positive_rate": 0.05}


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
    passed: bool
    reasons: list[str]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def cohen_kappa(person: Sequence[bool], verifier: Sequence[bool]) -> float | None:
    """Cohen's κ = (p_o − p_e)/(1 − p_e) (Cohen 1960); None where it is not defined (one constant answer)."""
    a, b = np.asarray(person, dtype=bool), np.asarray(verifier, dtype=bool)
    if len(a) == 0:
        return None
    observed = float((a == b).mean())
    chance = float(a.mean() * b.mean() + (1 - a.mean()) * (1 - b.mean()))
    return None if math.isclose(chance, 1.0) else (observed - chance) / (1 - chance)


def kappa_interval(person: Sequence[bool], verifier: Sequence[bool], seed: int = 0) -> tuple[float, float] | None:
    """95% percentile bootstrap interval of κ over the judged samples."""
    a, b = np.asarray(person, dtype=bool), np.asarray(verifier, dtype=bool)
    if cohen_kappa(person, verifier) is None:
        return None
    random = np.random.default_rng(seed)
    draws = (random.integers(0, len(a), len(a)) for _ in range(BOOTSTRAP_ROUNDS))
    values = [kappa for index in draws if (kappa := cohen_kappa(a[index], b[index])) is not None]
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)


def assess(pairs: Sequence[tuple[bool, bool]], policy: dict[str, float] | None = None) -> Agreement:
    """From (person says success, verifier says success) pairs to a verdict under the policy."""
    rules = DEFAULT_POLICY | (policy or {})
    person, verifier = [p for p, _ in pairs], [v for _, v in pairs]
    kappa, interval = cohen_kappa(person, verifier), kappa_interval(person, verifier)
    person_fails, person_passes = person.count(False), person.count(True)
    false_positives = sum(v and not p for p, v in pairs)
    false_negatives = sum(p and not v for p, v in pairs)
    rate = false_positives / person_fails if person_fails else None
    low, high = wilson(false_positives, person_fails)
    reasons = _reasons(len(pairs), kappa, rate, rules)
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
        passed=not reasons,
        reasons=reasons,
    )


def _reasons(n: int, kappa: float | None, rate: float | None, rules: dict[str, float]) -> list[str]:
    reasons = []
    if n < rules["min_samples"]:
        reasons.append(f"{n} of at least {rules['min_samples']:.0f} samples are judged.")
    if kappa is None:
        reasons.append("κ is not defined yet: the samples must hold both successes and failures.")
    elif kappa < rules["min_kappa"]:
        reasons.append(f"κ is {kappa:.2f}; at least {rules['min_kappa']:.2f} is needed.")
    if rate is not None and rate > rules["max_false_positive_rate"]:
        reasons.append(
            f"The verifier passes {rate:.0%} of what people fail; at most "
            f"{rules['max_false_positive_rate']:.0%} is allowed."
        )
    return reasons
