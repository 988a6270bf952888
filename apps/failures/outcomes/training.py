"""Fits a model to a team's decisions and measures it, out of fold and grouped by request. Needs scikit-learn: import it
late.

The fit is the posterior mode of a logistic regression with a Gaussian prior whose mean is the shipped weights: with few
decisions the model stays close to the shipped one, with many it is the team's own. The weights of words start at 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy.optimize import minimize
from scipy.sparse import csr_matrix, hstack

from apps.failures.outcomes.agents import Agents, Kind
from apps.failures.outcomes.features import BUCKETS, Features
from apps.failures.outcomes.model import PRIOR, Weights
from apps.failures.outcomes.prior import FROM_FEW

FEWEST_OF_A_KIND = 5  # failed and fine decisions each, before anything is fitted
FEWEST_FINE = 20  # “fine” decisions needed to choose the threshold from them
FOLDS = 5
FALSE_ALARMS = 0.10
SPREAD_SIGNS, SPREAD_WORDS, SPREAD_INTERCEPT = 0.2, 0.5, 3.0  # standard deviations of the prior
SPREAD_FEW = 0.6  # for signs whose shipped weights come from few runs
BINS = 5


@dataclass(frozen=True)
class Example:
    """A decided run. Runs of one `group` (the same request) are never on both sides of a split."""

    run: Features
    failed: bool
    group: str
    agent: Kind = field(default_factory=Kind)


@dataclass(frozen=True)
class Trained:
    """`measured` holds AUC, Brier score, recall, false alarms, reliability bins and n, out of fold; `out_of_fold` the
    probabilities.
    """

    weights: Weights
    measured: dict[str, Any]
    out_of_fold: np.ndarray


class TooFew(Exception):
    """Too few decisions, or too few of one kind."""


def train(examples: Sequence[Example], *, seed: int = 0) -> Trained:
    """Return the better of two models by out-of-fold Brier score: the shipped weights shifted to these runs' failure
    rate, or fitted ones.

    Raises TooFew. Runs on one thread, because the vectors are so small that more threads only wait for each other.
    """
    from threadpoolctl import threadpool_limits

    failed = np.array([example.failed for example in examples], dtype=float)
    _require_enough(examples, failed)
    with threadpool_limits(1):
        return _train(examples, failed, seed)


def _train(examples: Sequence[Example], failed: np.ndarray, seed: int) -> Trained:
    names = sorted({name for example in examples for name in example.run.dense} | PRIOR.dense.keys())
    spread = _spread(names)
    table, offset = _table(examples, names), np.array([PRIOR.log_odds(example.run) for example in examples])
    fitted_out, prior_out = np.zeros(len(failed)), np.zeros(len(failed))
    for among, held in _folds(examples, failed, seed):
        fitted = _fit(table[among], offset[among], failed[among], spread)
        slope, shift = _calibrated(examples, table, offset, failed, among, spread, seed)
        fitted_out[held] = slope * _scores(table[held], offset[held], fitted) + shift
        prior_out[held] = offset[held] + _shift_of(offset[among], failed[among])
    if _brier(prior_out, failed) <= _brier(fitted_out, failed):
        weights, out = replace(PRIOR, shift=_shift_of(offset, failed)), prior_out
    else:
        weights, out = _weights(examples, table, offset, failed, names, seed), fitted_out
    agents = Agents.of(example.agent for example in examples)
    weights = replace(weights, threshold=_threshold(out, failed), agents=agents)
    measured = measures(out, failed, weights.threshold) | {"learned": bool(out is fitted_out)}
    others = {"fitted": fitted_out, "shipped": prior_out}
    return Trained(
        weights, measured | {f"brier_{name}": _brier(scores, failed) for name, scores in others.items()}, _sigmoid(out)
    )


def _require_enough(examples: Sequence[Example], failed: np.ndarray) -> None:
    groups, bad = len({example.group for example in examples}), int(failed.sum())
    fine = len(failed) - bad
    if min(bad, fine) < FEWEST_OF_A_KIND or groups < FOLDS:
        raise TooFew(
            f"Decisions on {FEWEST_OF_A_KIND} failed and {FEWEST_OF_A_KIND} successful runs, of {FOLDS} different requests, are needed. "
            f"So far: {bad} failed, {fine} successful, {groups} request{'' if groups == 1 else 's'}."
        )


def _weights(
    examples: Sequence[Example], table: csr_matrix, offset: np.ndarray, failed: np.ndarray, names: list[str], seed: int
) -> Weights:
    spread = _spread(names)
    fitted = _fit(table, offset, failed, spread)
    slope, shift = _calibrated(examples, table, offset, failed, np.arange(len(failed)), spread, seed)
    words = enumerate(fitted[1 + len(names) :])
    return Weights(
        dense={name: PRIOR.dense.get(name, 0.0) + float(w) for name, w in zip(names, fitted[1:], strict=False)},
        intercept=PRIOR.intercept + float(fitted[0]),
        hashed={at: round(float(w), 5) for at, w in words if abs(w) > 1e-4},
        slope=slope,
        shift=shift,
    )


def _table(examples: Sequence[Example], names: list[str]) -> csr_matrix:
    """One row per example: signs, sizes and hashed words."""
    dense = csr_matrix([[example.run.dense.get(name, 0.0) for name in names] for example in examples])
    rows = [row for row, example in enumerate(examples) for _ in example.run.hashed]
    columns = [bucket for example in examples for bucket in example.run.hashed]
    values = [value for example in examples for value in example.run.hashed.values()]
    return hstack([dense, csr_matrix((values, (rows, columns)), shape=(len(examples), BUCKETS))]).tocsr()


def _folds(examples: Sequence[Example], failed: np.ndarray, seed: int) -> Any:
    from sklearn.model_selection import StratifiedGroupKFold

    groups = [example.group for example in examples]
    folds = min(FOLDS, len(set(groups)), int(failed.sum()), int((failed == 0).sum()))
    return StratifiedGroupKFold(folds, shuffle=True, random_state=seed).split(groups, failed, groups)


def _spread(names: Sequence[str]) -> np.ndarray:
    """The prior's standard deviation for the intercept, each sign and each word."""
    signs = [SPREAD_FEW if name in FROM_FEW else SPREAD_SIGNS for name in names]
    return np.concatenate([[SPREAD_INTERCEPT], signs, np.full(BUCKETS, SPREAD_WORDS)])


def _fit(table: csr_matrix, offset: np.ndarray, failed: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """[intercept, signs, words] as differences from the prior: the minimum of loss plus penalty, which is convex."""

    def loss(delta: np.ndarray) -> tuple[float, np.ndarray]:
        z = offset + delta[0] + table @ delta[1:]
        wrong = _sigmoid(z) - failed
        penalty = delta / spread**2
        slopes = np.concatenate([[wrong.sum()], table.T @ wrong]) + penalty
        return float(np.logaddexp(0, z).sum() - failed @ z + 0.5 * delta @ penalty), slopes

    return minimize(loss, np.zeros(table.shape[1] + 1), jac=True, method="L-BFGS-B", options={"maxiter": 200}).x


def _scores(table: csr_matrix, offset: np.ndarray, fitted: np.ndarray) -> np.ndarray:
    return offset + fitted[0] + table @ fitted[1:]


def _calibrated(
    examples: Sequence[Example], table: csr_matrix, offset: np.ndarray, failed: np.ndarray, among: np.ndarray, spread: np.ndarray, seed: int
) -> tuple[float, float]:  # fmt: skip
    """Platt's slope and shift, from out-of-fold scores within `among`; (1, 0) if a fold would lack failed or fine
    runs.
    """
    inner = [examples[at] for at in among]
    kinds = (len({example.group for example in inner}), failed[among].sum(), (failed[among] == 0).sum())
    if min(kinds) < 2:
        return 1.0, 0.0
    scores = np.zeros(len(among))
    for train_on, held in _folds(inner, failed[among], seed + 1):
        fitted = _fit(table[among[train_on]], offset[among[train_on]], failed[among[train_on]], spread)
        scores[held] = _scores(table[among[held]], offset[among[held]], fitted)
    return platt(scores, failed[among])


def platt(scores: np.ndarray, failed: np.ndarray) -> tuple[float, float]:
    """(slope, shift) by Platt's method (1999) with his smoothed targets; the slope is at least 0.05."""
    positive, negative = failed.sum(), len(failed) - failed.sum()
    target = np.where(failed == 1, (positive + 1) / (positive + 2), 1 / (negative + 2))

    def loss(given: np.ndarray) -> tuple[float, np.ndarray]:
        z = given[0] * scores + given[1]
        wrong = _sigmoid(z) - target
        return float(np.logaddexp(0, z).sum() - target @ z), np.array([wrong @ scores, wrong.sum()])

    found = minimize(loss, np.array([1.0, 0.0]), jac=True, method="L-BFGS-B", bounds=[(0.05, 5.0), (-20, 20)]).x
    return float(found[0]), float(found[1])


def _shift_of(offset: np.ndarray, failed: np.ndarray) -> float:
    """The shift that makes the prior's mean probability equal the observed failure rate, so that both models know the
    base rate.
    """
    low, high = -20.0, 20.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _sigmoid(offset + middle).mean() < failed.mean() else (low, middle)
    return (low + high) / 2


def _threshold(scores: np.ndarray, failed: np.ndarray) -> float:
    """The threshold that flags as many failed runs as possible with at most FALSE_ALARMS of the fine runs above it, out
    of fold.

    It lies halfway between the highest probability that would let in one more fine run and the next failed run's,
    rather than right next to a fine run.
    """
    fine = np.sort(_sigmoid(scores[failed == 0]))[::-1]
    if len(fine) < FEWEST_FINE:
        return max(0.5, float(fine[0]))
    lowest = np.nextafter(fine[int(FALSE_ALARMS * len(fine))], 1.0)
    above = _sigmoid(scores[failed == 1])
    above = above[above >= lowest]
    middle = (lowest + above.min()) / 2 if len(above) else lowest
    return float(min(0.99, max(0.02, middle)))


def measures(scores: np.ndarray, failed: np.ndarray, threshold: float) -> dict[str, Any]:
    """Measures of out-of-fold log-odds."""
    from sklearn.metrics import roc_auc_score

    p = _sigmoid(scores)
    above = p >= threshold
    return {
        "n": len(failed),
        "failed": int(failed.sum()),
        "auc": round(float(roc_auc_score(failed, p)), 4),
        "brier": _brier(scores, failed),
        "found": int((above & (failed == 1)).sum()),
        "false_alarms": int((above & (failed == 0)).sum()),
        "threshold": round(threshold, 4),
        "bins": _bins(p, failed),
    }


def _brier(scores: np.ndarray, failed: np.ndarray) -> float:
    return round(float(np.mean((_sigmoid(scores) - failed) ** 2)), 4)


def _bins(p: np.ndarray, failed: np.ndarray) -> list[dict[str, float]]:
    """Reliability bins: runs sorted by probability, in BINS of equal size, with the number that failed in each."""
    parts = np.array_split(np.argsort(p, kind="stable"), BINS)
    return [
        {"n": len(part), "said": round(float(p[part].mean()), 4), "failed": int(failed[part].sum())}
        for part in parts
        if len(part)
    ]


def _sigmoid(z: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-np.clip(z, -30, 30)))
