"""Coefficients of agreement with their intervals, rates, calibration. Pure: no Django, no torch."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from apps.core.intervals import LEVEL, wilson

BOOTSTRAP_ROUNDS = 2000
PERCENTILES = (50 * (1 - LEVEL), 50 * (1 + LEVEL))


def cohen_kappa(person: Sequence[bool], verifier: Sequence[bool]) -> float | None:
    """Cohen's κ = (p_o − p_e)/(1 − p_e) (Cohen 1960); None if it is not defined (one constant
    answer).
    """
    a, b = np.asarray(person, dtype=bool), np.asarray(verifier, dtype=bool)
    if len(a) == 0:
        return None
    observed = float((a == b).mean())
    chance = float(a.mean() * b.mean() + (1 - a.mean()) * (1 - b.mean()))
    return None if math.isclose(chance, 1.0) else (observed - chance) / (1 - chance)


def kappa_interval(
    person: Sequence[bool], verifier: Sequence[bool], seed: int = 0
) -> tuple[float, float] | None:
    """95% percentile bootstrap interval of κ over the judged samples (Efron 1979); None if κ is not
    defined.

    If the two never differ, every draw has κ = 1 although the sample is finite: then the lower end
    is κ at the lower end of Wilson's interval of the observed agreement.
    """
    a, b = np.asarray(person, dtype=bool), np.asarray(verifier, dtype=bool)
    if cohen_kappa(person, verifier) is None:
        return None
    if bool((a == b).all()):
        chance = float(a.mean() ** 2 + (1 - a.mean()) ** 2)
        return (wilson(len(a), len(a))[0] - chance) / (1 - chance), 1.0
    return percentiles(kappas(a, b, draws_of(len(a), seed)))


def draws_of(n: int, seed: int) -> np.ndarray:
    """Rows of indices drawn with replacement: (rounds, n)."""
    return np.random.default_rng(seed).integers(0, n, (BOOTSTRAP_ROUNDS, n))


def kappas(a: np.ndarray, b: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """κ of each draw; NaN if it is not defined."""
    first, second = a[draws], b[draws]
    p, q = first.mean(axis=1), second.mean(axis=1)
    chance = p * q + (1 - p) * (1 - q)
    with np.errstate(divide="ignore", invalid="ignore"):
        kappas = ((first == second).mean(axis=1) - chance) / (1 - chance)
    return np.where(np.isclose(chance, 1.0), np.nan, kappas)


def percentiles(values: np.ndarray) -> tuple[float, float] | None:
    """The middle 95%; None if nothing is defined."""
    found = values[np.isfinite(values)]
    if len(found) == 0:
        return None
    low, high = np.percentile(found, PERCENTILES)
    return float(low), float(high)


def krippendorff_alpha(units: Sequence[Sequence[Hashable]]) -> float | None:
    """Krippendorff's nominal α = 1 − D_o / D_e from the coincidence matrix (Krippendorff 2011,
    “Computing α-Reliability”).

    `units`: for each item the reviewers' values, None if one gave none; items with fewer than two
    do not count. None if nothing can be paired or all values are the same.
    """
    return finite(float(_alphas(_coincidences(units).sum(axis=0))))


def alpha_interval(
    units: Sequence[Sequence[Hashable]], seed: int = 0
) -> tuple[float, float] | None:
    """95% percentile bootstrap interval of α, drawn by item; None if α is not defined. If nobody
    ever differs, the lower end is α at the lower end of Wilson's interval of the observed
    agreement, as in `kappa_interval`."""
    found = _coincidences(units)
    alpha = float(_alphas(found.sum(axis=0)))
    if not math.isfinite(alpha):
        return None
    if math.isclose(alpha, 1.0):
        shares = found.sum(axis=(0, 2)) / found.sum()
        return 1 - (1 - wilson(len(found), len(found))[0]) / (1 - float((shares**2).sum())), 1.0
    weights = np.random.default_rng(seed).multinomial(
        len(found), [1 / len(found)] * len(found), BOOTSTRAP_ROUNDS
    )
    return percentiles(_alphas(np.einsum("ru,uij->rij", weights, found)))


def _coincidences(units: Sequence[Sequence[Hashable]]) -> np.ndarray:
    """(items, values, values): each ordered pair of values within an item of m values counts 1/(m −
    1).
    """
    paired = [[value for value in unit if value is not None] for unit in units]
    paired = [unit for unit in paired if len(unit) > 1]
    place = {
        value: index
        for index, value in enumerate(dict.fromkeys(value for unit in paired for value in unit))
    }
    counts = np.zeros((len(paired), len(place)))
    for row, unit in enumerate(paired):
        for value in unit:
            counts[row, place[value]] += 1
    pairs = counts[:, :, None] * counts[:, None, :] - counts[:, :, None] * np.eye(len(place))
    return pairs / (counts.sum(axis=1) - 1)[:, None, None]


def _alphas(coincidences: np.ndarray) -> np.ndarray:
    """α of each matrix (…, values, values); NaN if it is not defined."""
    totals = coincidences.sum(axis=-1)
    n = totals.sum(axis=-1)
    observed = n - np.trace(coincidences, axis1=-2, axis2=-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        expected = (n**2 - (totals**2).sum(axis=-1)) / (n - 1)
        return np.where(expected > 0, 1 - observed / expected, np.nan)


# Ranks


@dataclass(frozen=True)
class Correlation:
    """A rank correlation with its 95% interval; None if it is not defined."""

    value: float | None
    low: float | None
    high: float | None
    n: int


def spearman(first: Sequence[float], second: Sequence[float]) -> Correlation:
    """Spearman's ρ: Pearson's of the ranks, ties at their mean rank. Interval: Fisher's z with
    standard error √((1 + ρ²/2)/(n − 3)) (Bonett & Wright 2000)."""
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
    _, inverse, counts = np.unique(
        np.asarray(values, dtype=float), return_inverse=True, return_counts=True
    )
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
    """From (person, verifier) pairs: false_positive of what people fail, false_negative of what
    they pass, precision of what the verifier passes, recall of what people pass, agreement of all.
    """
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
    """Samples with a score in [low, high): how many, their mean score, the share that people judged
    a success.
    """

    low: float
    high: float
    mean_score: float | None
    judged: Rate


def calibration(
    scores: Sequence[float],
    judged: Sequence[bool],
    bins: int = 10,
    bounds: tuple[float, float] = (0.0, 1.0),
) -> tuple[list[Bin], float | None]:
    """Bins of equal width over scores put from `bounds` to [0, 1], and the expected calibration
    error Σ n_b/n · |share judged success − mean score| (Naeini et al. 2015); None without samples.
    Scores outside are cut.
    """
    low, high = bounds
    scaled = np.clip((np.asarray(scores, dtype=float) - low) / (high - low), 0.0, 1.0)
    words = np.asarray(judged, dtype=bool)
    place = np.minimum((scaled * bins).astype(int), bins - 1)
    found = [
        _bin(index / bins, (index + 1) / bins, scaled[place == index], words[place == index])
        for index in range(bins)
    ]
    errors = [
        item.judged.n * abs((item.judged.value or 0.0) - item.mean_score)
        for item in found
        if item.mean_score is not None
    ]
    return found, sum(errors) / len(scaled) if len(scaled) else None


def _bin(low: float, high: float, scores: np.ndarray, words: np.ndarray) -> Bin:
    return Bin(
        low, high, float(scores.mean()) if len(scores) else None, rate(int(words.sum()), len(words))
    )


def finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
