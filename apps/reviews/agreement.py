"""Do people and the verifier agree? Pure: no Django, no torch."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from statistics import NormalDist
from typing import Any, Literal

import numpy as np

from apps.core.intervals import LEVEL, wilson

BOOTSTRAP_ROUNDS = 2000
DEFAULT_POLICY: dict[str, Any] = {
    "min_samples": 50,
    "min_kappa": 0.6,
    "kappa_on": "lower",  # or "point": whether the interval's lower end or κ itself must reach min_kappa
    "max_false_positive_rate": 0.05,
    "false_positive_on": "point",  # or "upper"
    "max_failed_probes": 0,
}
PERCENTILES = (50 * (1 - LEVEL), 50 * (1 + LEVEL))


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
    """95% percentile bootstrap interval of κ over the judged samples (Efron 1979); None where κ is not defined.

    Where the two never differ, every draw has κ = 1 though the sample is finite: then the lower end is κ at the
    lower end of Wilson's interval of the observed agreement.
    """
    a, b = np.asarray(person, dtype=bool), np.asarray(verifier, dtype=bool)
    if cohen_kappa(person, verifier) is None:
        return None
    if bool((a == b).all()):
        chance = float(a.mean() ** 2 + (1 - a.mean()) ** 2)
        return (wilson(len(a), len(a))[0] - chance) / (1 - chance), 1.0
    return _percentiles(_kappas(a, b, _draws(len(a), seed)))


def _draws(n: int, seed: int) -> np.ndarray:
    """Rows of indices drawn with replacement: (rounds, n)."""
    return np.random.default_rng(seed).integers(0, n, (BOOTSTRAP_ROUNDS, n))


def _kappas(a: np.ndarray, b: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """κ of each draw; NaN where it is not defined."""
    first, second = a[draws], b[draws]
    p, q = first.mean(axis=1), second.mean(axis=1)
    chance = p * q + (1 - p) * (1 - q)
    with np.errstate(divide="ignore", invalid="ignore"):
        kappas = ((first == second).mean(axis=1) - chance) / (1 - chance)
    return np.where(np.isclose(chance, 1.0), np.nan, kappas)


def _percentiles(values: np.ndarray) -> tuple[float, float] | None:
    """The middle 95%; None where nothing is defined."""
    found = values[np.isfinite(values)]
    if len(found) == 0:
        return None
    low, high = np.percentile(found, PERCENTILES)
    return float(low), float(high)


def assess(pairs: Sequence[tuple[bool, bool]], policy: Mapping[str, Any] | None = None) -> Agreement:
    """From (person says success, verifier says success) pairs to a verdict under the policy."""
    rules = DEFAULT_POLICY | dict(policy or {})
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


def _reasons(n: int, kappa: float | None, rate: float | None, rules: Mapping[str, Any]) -> list[str]:
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


# Coefficients

Value = Hashable
Weights = Literal["nominal", "linear", "quadratic"]
Level = Literal["nominal", "ordinal", "interval"]


def kappa_standard_error(person: Sequence[bool], verifier: Sequence[bool]) -> float | None:
    """Large-sample standard error of Cohen's κ (Fleiss, Cohen & Everitt 1969, eq. 13); None where κ is not defined."""
    kappa, n = cohen_kappa(person, verifier), len(person)
    if kappa is None:
        return None
    table = np.zeros((2, 2))
    for p, v in zip(person, verifier, strict=True):
        table[int(p), int(v)] += 1 / n
    rows, columns = table.sum(axis=1), table.sum(axis=0)
    chance = float(rows @ columns)
    on = sum(table[i, i] * (1 - (rows[i] + columns[i]) * (1 - kappa)) ** 2 for i in range(2))
    off = (1 - kappa) ** 2 * sum(table[i, j] * (columns[i] + rows[j]) ** 2 for i, j in ((0, 1), (1, 0)))
    variance = (on + off - (kappa - chance * (1 - kappa)) ** 2) / (n * (1 - chance) ** 2)
    return math.sqrt(max(0.0, float(variance)))


def weighted_kappa(
    first: Sequence[Value], second: Sequence[Value], order: Sequence[Value], weights: Weights = "quadratic"
) -> float | None:
    """Cohen's weighted κ = 1 − Σ w·observed / Σ w·chance (Cohen 1968), disagreement weights over ranks in `order`.

    None where no disagreement is possible by chance. Raises ValueError for a value that `order` lacks, or unequal lengths.
    """
    rank = {value: index for index, value in enumerate(order)}
    if unknown := [value for value in (*first, *second) if value not in rank]:
        raise ValueError(f"{unknown[0]!r} is not among the ordered values")
    observed = np.zeros((len(order), len(order)))
    for a, b in zip(first, second, strict=True):
        observed[rank[a], rank[b]] += 1
    distance = np.abs(np.subtract.outer(np.arange(len(order)), np.arange(len(order)))).astype(float)
    cost = {"nominal": (distance > 0).astype(float), "linear": distance, "quadratic": distance**2}[weights]
    chance = np.outer(observed.sum(axis=1), observed.sum(axis=0)) / max(1, len(first))
    by_chance = float((cost * chance).sum())
    return None if by_chance == 0 else 1 - float((cost * observed).sum()) / by_chance


def krippendorff_alpha(units: Sequence[Sequence[Any]], level: Level = "nominal") -> float | None:
    """Krippendorff's α = 1 − D_o / D_e from the coincidence matrix (Krippendorff 2011, “Computing α-Reliability”).

    `units`: for each item the reviewers' values, None where one gave none; items with fewer than two do not count.
    None where nothing can be paired or all values are the same. Ordinal and interval values must be numbers.
    """
    known: Callable[[Any], Any] = (lambda value: value) if level == "nominal" else float
    paired = [[known(value) for value in unit if value is not None] for unit in units]
    paired = [unit for unit in paired if len(unit) > 1]
    values = sorted({value for unit in paired for value in unit}, key=lambda value: (str(type(value)), value))
    if len(values) < 2:
        return None
    coincidences = _coincidences(paired, {value: index for index, value in enumerate(values)})
    totals = coincidences.sum(axis=1)
    distance = _distances(values, totals, level)
    n = float(totals.sum())
    expected = float((np.outer(totals, totals) * distance).sum()) / (n - 1)
    return 1 - float((coincidences * distance).sum()) / expected


def _coincidences(units: Sequence[Sequence[Any]], index: Mapping[Any, int]) -> np.ndarray:
    """Each ordered pair of values within a unit of m counts 1/(m − 1)."""
    found = np.zeros((len(index), len(index)))
    for unit in units:
        counts = np.zeros(len(index))
        for value in unit:
            counts[index[value]] += 1
        found += (np.outer(counts, counts) - np.diag(counts)) / (len(unit) - 1)
    return found


def _distances(values: Sequence[Any], totals: np.ndarray, level: Level) -> np.ndarray:
    """Squared differences δ² between values: 0/1; of values; of ranks, as cumulated counts from one to the other."""
    if level == "nominal":
        return 1 - np.eye(len(values))
    if level == "interval":
        return np.subtract.outer(np.asarray(values, dtype=float), np.asarray(values, dtype=float)) ** 2
    middle = np.cumsum(totals) - totals / 2  # Σ from c to k less half of both ends is a difference of these
    return np.subtract.outer(middle, middle) ** 2


def alpha_interval(
    units: Sequence[Sequence[Any]], level: Level = "nominal", seed: int = 0, rounds: int = 1000
) -> tuple[float, float] | None:
    """95% percentile bootstrap interval of α, drawn by item; None where α is not defined."""
    if not units or krippendorff_alpha(units, level) is None:
        return None
    random = np.random.default_rng(seed)
    drawn = (random.integers(0, len(units), len(units)) for _ in range(rounds))
    alphas = [krippendorff_alpha([units[i] for i in index], level) for index in drawn]
    return _percentiles(np.array([math.nan if alpha is None else alpha for alpha in alphas]))


@dataclass(frozen=True)
class Correlation:
    """A rank correlation with its 95% interval; None where it is not defined."""

    value: float | None
    low: float | None
    high: float | None
    n: int


def spearman(first: Sequence[float], second: Sequence[float]) -> Correlation:
    """Spearman's ρ: Pearson's of the ranks, ties at their mean rank. Interval: Fisher's z with standard error
    √((1 + ρ²/2)/(n − 3)) (Bonett & Wright 2000)."""
    n = len(first)
    a, b = ranks(first), ranks(second)
    if n < 2 or a.std() == 0 or b.std() == 0:
        return Correlation(None, None, None, n)
    rho = max(-1.0, min(1.0, float(np.corrcoef(a, b)[0, 1])))
    if n < 4 or math.isclose(abs(rho), 1.0):
        return Correlation(rho, None, None, n)
    half = NormalDist().inv_cdf(0.5 + LEVEL / 2) * math.sqrt((1 + rho**2 / 2) / (n - 3))
    return Correlation(rho, math.tanh(math.atanh(rho) - half), math.tanh(math.atanh(rho) + half), n)


def ranks(values: Sequence[float]) -> np.ndarray:
    """From 1; equal values share the mean of their places."""
    _, inverse, counts = np.unique(np.asarray(values, dtype=float), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[inverse]


# Rates


@dataclass(frozen=True)
class Rate:
    """count of n with Wilson's 95% interval; the value is None for n = 0."""

    count: int
    n: int
    value: float | None
    low: float
    high: float


def rate(count: int, n: int) -> Rate:
    low, high = wilson(count, n)
    return Rate(count, n, count / n if n else None, low, high)


def rates(pairs: Sequence[tuple[bool, bool]]) -> dict[str, Rate]:
    """From (person, verifier) pairs: false_positive of what people fail, false_negative of what they pass, precision
    of what the verifier passes, recall of what people pass, agreement of all."""
    both = sum(p and v for p, v in pairs)
    people, passed = sum(p for p, _ in pairs), sum(v for _, v in pairs)
    return {
        "false_positive": rate(passed - both, len(pairs) - people),
        "false_negative": rate(people - both, people),
        "precision": rate(both, passed),
        "recall": rate(both, people),
        "agreement": rate(sum(p == v for p, v in pairs), len(pairs)),
    }


# Calibration


@dataclass(frozen=True)
class Bin:
    """Samples with a score in [low, high): how many, their mean score, the share that people judged a success."""

    low: float
    high: float
    mean_score: float | None
    judged: Rate


def calibration(
    scores: Sequence[float], judged: Sequence[bool], bins: int = 10, bounds: tuple[float, float] = (0.0, 1.0)
) -> tuple[list[Bin], float | None]:
    """Bins of equal width over scores put from `bounds` to [0, 1], and the expected calibration error
    Σ n_b/n · |share judged success − mean score| (Naeini et al. 2015); None without samples. Scores outside are cut."""
    low, high = bounds
    scaled = np.clip((np.asarray(scores, dtype=float) - low) / (high - low), 0.0, 1.0)
    words = np.asarray(judged, dtype=bool)
    place = np.minimum((scaled * bins).astype(int), bins - 1)
    found = [
        _bin(index / bins, (index + 1) / bins, scaled[place == index], words[place == index]) for index in range(bins)
    ]
    errors = [
        item.judged.n * abs((item.judged.value or 0.0) - item.mean_score)
        for item in found
        if item.mean_score is not None
    ]
    return found, sum(errors) / len(scaled) if len(scaled) else None


def _bin(low: float, high: float, scores: np.ndarray, words: np.ndarray) -> Bin:
    return Bin(low, high, float(scores.mean()) if len(scores) else None, rate(int(words.sum()), len(words)))


# Judgements


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


# The decision


@dataclass(frozen=True)
class Verdict:
    """Whether training may open, and in words every condition that is not met."""

    passed: bool
    reasons: list[str]
    agreement: Agreement
    undecided: int


def decide(
    policy: Mapping[str, Any] | None, judgements: Sequence[Judged], *, failed_probes: Sequence[str] | None = ()
) -> Verdict:
    """The policy (over DEFAULT_POLICY) on a review. `failed_probes` names them; None: the probes have not been run.

    Raises ValueError for a `kappa_on` or `false_positive_on` there is not.
    """
    rules = DEFAULT_POLICY | dict(policy or {})
    agreement = assess(pairs_of(judgements), rules)
    undecided = sum(item.undecided for item in judgements)
    reasons = [
        *_too_few(agreement, rules), *_too_little(agreement, rules), *_too_lenient(agreement, rules),
        *_probed(failed_probes, rules), *_split(undecided),
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
        f"The verifier passes {found.false_positive_rate:.1%} of what people fail ({found.false_positives} samples, "
        f"{interval}); {which} may be at most {rules['max_false_positive_rate']:.0%}."
    ]


def _probed(failed: Sequence[str] | None, rules: Mapping[str, Any]) -> list[str]:
    if failed is None:
        return ["The hack probes have not been run on this verifier."]
    if len(failed) <= rules["max_failed_probes"]:
        return []
    return [f"{len(failed)} {'probe' if len(failed) == 1 else 'probes'} failed: {', '.join(failed)}."]


def _split(undecided: int) -> list[str]:
    if not undecided:
        return []
    word = "sample" if undecided == 1 else "samples"
    return [f"Reviewers are split on {undecided} {word}; an adjudicator has to decide."]


# The effect of an edit


@dataclass(frozen=True)
class Change:
    """A measure before and after an edit, on the same samples; the interval is of the difference."""

    n: int
    before: float | None
    after: float | None
    difference: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class EditEffect:
    """On the labels that the rubric may be fitted to, and on those held out from its author."""

    fitted: dict[str, Change]
    held_out: dict[str, Change]


def is_held_out(item: str, share: float = 0.3, salt: str = "rubric") -> bool:
    """Whether a label is kept from whoever edits the rubric; by hash, so that it stays so as labels come in."""
    digest = hashlib.sha256(f"{salt}\0{item}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < share * 2**64


def edit_effect(
    labels: Mapping[str, bool], before: Mapping[str, bool], after: Mapping[str, bool], share: float = 0.3, seed: int = 0
) -> EditEffect:
    """Agreement and κ with people before and after, on the samples that all three know (sample id → success)."""
    common = sorted(labels.keys() & before.keys() & after.keys())
    held = [item for item in common if is_held_out(item, share)]
    fitted = [item for item in common if not is_held_out(item, share)]

    def changes(items: list[str]) -> dict[str, Change]:
        columns = [np.array([source[item] for item in items], dtype=bool) for source in (labels, before, after)]
        return {"agreement": _change(_agreements, *columns, seed), "kappa": _change(_kappas, *columns, seed)}

    return EditEffect(changes(fitted), changes(held))


def _agreements(a: np.ndarray, b: np.ndarray, draws: np.ndarray) -> np.ndarray:
    return (a == b)[draws].mean(axis=1)


def _change(
    measure: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray],
    labels: np.ndarray, before: np.ndarray, after: np.ndarray, seed: int,
) -> Change:  # fmt: skip
    """Paired bootstrap: both are measured on the same draws of samples (Efron & Tibshirani 1993)."""
    n = len(labels)
    if n == 0:
        return Change(0, None, None, None, None, None)
    whole = np.arange(n)[None, :]
    was, now = float(measure(labels, before, whole)[0]), float(measure(labels, after, whole)[0])
    draws = _draws(n, seed)
    interval = _percentiles(measure(labels, after, draws) - measure(labels, before, draws))
    known = math.isfinite(now - was)
    low, high = interval if interval and known else (None, None)
    return Change(n, _finite(was), _finite(now), now - was if known else None, low, high)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
