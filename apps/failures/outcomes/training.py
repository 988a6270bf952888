"""Fits a model to a team's decisions and measures it, out of fold and grouped by request. Needs
scikit-learn: import it late.

The fit is the posterior mode of a logistic regression with a Gaussian prior whose mean is the
shipped weights: with few decisions the model stays close to the shipped one, with many it is the
team's own. The weights of words start at 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy.optimize import minimize
from scipy.sparse import csr_matrix, hstack

from apps.core.intervals import student, wilson
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
    """`measured` holds AUC, Brier score, recall, false alarms, reliability bins and n, out of fold;
    `out_of_fold` the probabilities.
    """

    weights: Weights
    measured: dict[str, Any]
    out_of_fold: np.ndarray


class TooFew(Exception):
    """Too few decisions, or too few of one kind."""


def train(examples: Sequence[Example], *, seed: int = 0) -> Trained:
    """Return fitted weights if they are better than the shipped ones on held-out decisions, else
    the shipped ones, shifted to these runs' failure rate.

    Better: the 95% interval of the difference in AUC lies above 0, and false alarms are not shown
    to exceed FALSE_ALARMS. Raises TooFew. Runs on one thread, because the vectors are so small that
    more threads only wait for each other.
    """
    from threadpoolctl import threadpool_limits

    failed = np.array([example.failed for example in examples], dtype=float)
    _require_enough(examples, failed)
    with threadpool_limits(1):
        return _train(examples, failed, seed)


def _train(examples: Sequence[Example], failed: np.ndarray, seed: int) -> Trained:
    names = sorted(
        {name for example in examples for name in example.run.dense} | PRIOR.dense.keys()
    )
    data = _Data(examples, names, seed)
    fitted, shipped = HeldOut.of(len(failed)), HeldOut.of(len(failed))
    for among, held in _folds(examples, failed, seed):
        fitted.add(held, data.fitted(among).on(data, held))
        shipped.add(held, data.shipped(among).on(data, held))
    better = auc_difference(
        fitted.scores, shipped.scores, failed, [example.group for example in examples]
    )
    learned = better[0] > 0 and not _alarms_too_often(fitted, failed)
    used, model = (fitted, data.fitted) if learned else (shipped, data.shipped)
    final = model(np.arange(len(failed)))
    agents = Agents.of(example.agent for example in examples)
    weights = replace(final.weights(names), threshold=final.threshold, agents=agents)
    measured = measures(used.scores, failed, weights.threshold, used.flagged) | {
        "learned": learned,
        "auc_difference": [round(limit, 4) for limit in better],
        "brier_fitted": _brier(fitted.scores, failed),
        "brier_shipped": _brier(shipped.scores, failed),
    }
    return Trained(weights, measured, _sigmoid(used.scores))


@dataclass(frozen=True)
class HeldOut:
    """Log-odds of runs and whether they are flagged, by models and thresholds that never saw
    them.
    """

    scores: np.ndarray
    flagged: np.ndarray

    @classmethod
    def of(cls, n: int) -> HeldOut:
        return cls(np.zeros(n), np.zeros(n, dtype=bool))

    def add(self, held: np.ndarray, found: HeldOut) -> None:
        self.scores[held], self.flagged[held] = found.scores, found.flagged


def _alarms_too_often(held_out: HeldOut, failed: np.ndarray) -> bool:
    fine = failed == 0
    return wilson(int(held_out.flagged[fine].sum()), int(fine.sum()))[0] > FALSE_ALARMS


@dataclass(frozen=True)
class _Model:
    """Weights as differences from the shipped ones (None: the shipped ones), their calibration, and
    the threshold that was chosen on the scores with which they were calibrated.
    """

    delta: np.ndarray | None
    slope: float
    shift: float
    threshold: float

    def on(self, data: _Data, runs: np.ndarray) -> HeldOut:
        scores = self.slope * data.scores(runs, self.delta) + self.shift
        return HeldOut(scores, _sigmoid(scores) >= self.threshold)

    def weights(self, names: Sequence[str]) -> Weights:
        if self.delta is None:
            return replace(PRIOR, shift=self.shift)
        words = enumerate(self.delta[1 + len(names) :])
        dense = zip(names, self.delta[1:], strict=False)
        return Weights(
            dense={name: PRIOR.dense.get(name, 0.0) + float(w) for name, w in dense},
            intercept=PRIOR.intercept + float(self.delta[0]),
            hashed={at: round(float(w), 5) for at, w in words if abs(w) > 1e-4},
            slope=self.slope,
            shift=self.shift,
        )


class _Data:
    """Decided runs as a table, from which models of some of them are made."""

    def __init__(self, examples: Sequence[Example], names: list[str], seed: int) -> None:
        self.examples, self.seed, self.spread = examples, seed, _spread(names)
        self.failed = np.array([example.failed for example in examples], dtype=float)
        self.table = _table(examples, names)
        self.offset = np.array([PRIOR.log_odds(example.run) for example in examples])

    def scores(self, runs: np.ndarray, delta: np.ndarray | None) -> np.ndarray:
        return (
            self.offset[runs]
            if delta is None
            else _scores(self.table[runs], self.offset[runs], delta)
        )

    def fitted(self, among: np.ndarray) -> _Model:
        """A model of these runs; calibration and threshold come from the same folds within them."""
        failed = self.failed[among]
        scores, slope, shift = self.offset[among], 1.0, 0.0
        inner = [self.examples[at] for at in among]
        if min(len({example.group for example in inner}), failed.sum(), (failed == 0).sum()) >= 2:
            scores = np.zeros(len(among))
            for train_on, held in _folds(inner, failed, self.seed + 1):
                scores[held] = self.scores(among[held], self._fit(among[train_on]))
            slope, shift = platt(scores, failed)
        return _Model(self._fit(among), slope, shift, _threshold(slope * scores + shift, failed))

    def shipped(self, among: np.ndarray) -> _Model:
        """The shipped weights, at the failure rate of these runs."""
        offset, failed = self.offset[among], self.failed[among]
        shift = _shift_of(offset, failed)
        return _Model(None, 1.0, shift, _threshold(offset + shift, failed))

    def _fit(self, among: np.ndarray) -> np.ndarray:
        return _fit(self.table[among], self.offset[among], self.failed[among], self.spread)


def auc_difference(
    fitted: np.ndarray, shipped: np.ndarray, failed: np.ndarray, groups: Sequence[str]
) -> tuple[float, float]:
    """The 95% interval of AUC(fitted) - AUC(shipped) on the same runs (DeLong 1988; runs of a group
    count together, as in Obuchowski 1997).
    """
    bad, fine = np.flatnonzero(failed == 1), np.flatnonzero(failed == 0)
    share = np.zeros(len(failed))  # each run's part of the difference
    for scores, sign in ((fitted, 1.0), (shipped, -1.0)):
        above = _share_below(scores[bad], scores[fine])
        below = 1 - _share_below(scores[fine], scores[bad])
        share[bad] += sign * above
        share[fine] += sign * below
    difference = float(share[bad].mean())
    influence = np.zeros(len(failed))
    influence[bad] = (share[bad] - difference) / len(bad)
    influence[fine] = (share[fine] - difference) / len(fine)
    _, group = np.unique(np.array(groups, dtype=object).astype(str), return_inverse=True)
    together = np.bincount(group, weights=influence)
    error = float(np.sqrt((together**2).sum() * len(together) / max(len(together) - 1, 1)))
    wide = student(max(len(together) - 1, 1)) * error
    return difference - wide, difference + wide


def _share_below(scores: np.ndarray, others: np.ndarray) -> np.ndarray:
    """The share of others below each score; equal ones count half."""
    ordered = np.sort(others)
    low, high = np.searchsorted(ordered, scores, "left"), np.searchsorted(ordered, scores, "right")
    return (low + high) / (2 * len(ordered))


def _require_enough(examples: Sequence[Example], failed: np.ndarray) -> None:
    groups, bad = len({example.group for example in examples}), int(failed.sum())
    fine = len(failed) - bad
    if min(bad, fine) < FEWEST_OF_A_KIND or groups < FOLDS:
        raise TooFew(
            f"Decisions on {FEWEST_OF_A_KIND} failed and {FEWEST_OF_A_KIND} successful runs, of"
            f" {FOLDS} different requests, are needed. So far: {bad} failed, {fine} successful,"
            f" {groups} request{'' if groups == 1 else 's'}."
        )


def _table(examples: Sequence[Example], names: list[str]) -> csr_matrix:
    """One row per example: signs, sizes and hashed words."""
    dense = csr_matrix(
        [[example.run.dense.get(name, 0.0) for name in names] for example in examples]
    )
    rows = [row for row, example in enumerate(examples) for _ in example.run.hashed]
    columns = [bucket for example in examples for bucket in example.run.hashed]
    values = [value for example in examples for value in example.run.hashed.values()]
    return hstack(
        [dense, csr_matrix((values, (rows, columns)), shape=(len(examples), BUCKETS))]
    ).tocsr()


def _folds(examples: Sequence[Example], failed: np.ndarray, seed: int) -> Any:
    from sklearn.model_selection import StratifiedGroupKFold

    groups = [example.group for example in examples]
    folds = min(FOLDS, len(set(groups)), int(failed.sum()), int((failed == 0).sum()))
    return StratifiedGroupKFold(folds, shuffle=True, random_state=seed).split(
        groups, failed, groups
    )


def _spread(names: Sequence[str]) -> np.ndarray:
    """The prior's standard deviation for the intercept, each sign and each word."""
    signs = [SPREAD_FEW if name in FROM_FEW else SPREAD_SIGNS for name in names]
    return np.concatenate([[SPREAD_INTERCEPT], signs, np.full(BUCKETS, SPREAD_WORDS)])


def _fit(
    table: csr_matrix, offset: np.ndarray, failed: np.ndarray, spread: np.ndarray
) -> np.ndarray:
    """[intercept, signs, words] as differences from the prior: the minimum of loss plus penalty,
    which is convex.
    """

    def loss(delta: np.ndarray) -> tuple[float, np.ndarray]:
        z = offset + delta[0] + table @ delta[1:]
        wrong = _sigmoid(z) - failed
        penalty = delta / spread**2
        slopes = np.concatenate([[wrong.sum()], table.T @ wrong]) + penalty
        return float(np.logaddexp(0, z).sum() - failed @ z + 0.5 * delta @ penalty), slopes

    return minimize(
        loss, np.zeros(table.shape[1] + 1), jac=True, method="L-BFGS-B", options={"maxiter": 200}
    ).x


def _scores(table: csr_matrix, offset: np.ndarray, fitted: np.ndarray) -> np.ndarray:
    return offset + fitted[0] + table @ fitted[1:]


def platt(scores: np.ndarray, failed: np.ndarray) -> tuple[float, float]:
    """(slope, shift) by Platt's method (1999) with his smoothed targets; the slope is at least
    0.05.
    """
    positive, negative = failed.sum(), len(failed) - failed.sum()
    target = np.where(failed == 1, (positive + 1) / (positive + 2), 1 / (negative + 2))

    def loss(given: np.ndarray) -> tuple[float, np.ndarray]:
        z = given[0] * scores + given[1]
        wrong = _sigmoid(z) - target
        return float(np.logaddexp(0, z).sum() - target @ z), np.array([wrong @ scores, wrong.sum()])

    found = minimize(
        loss, np.array([1.0, 0.0]), jac=True, method="L-BFGS-B", bounds=[(0.05, 5.0), (-20, 20)]
    ).x
    return float(found[0]), float(found[1])


def _shift_of(offset: np.ndarray, failed: np.ndarray) -> float:
    """The shift that makes the prior's mean probability equal the observed failure rate, so that
    both models know the base rate.
    """
    low, high = -20.0, 20.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (
            (middle, high) if _sigmoid(offset + middle).mean() < failed.mean() else (low, middle)
        )
    return (low + high) / 2


def _threshold(scores: np.ndarray, failed: np.ndarray) -> float:
    """The threshold that flags as many failed runs as possible with at most FALSE_ALARMS of the
    fine runs above it.

    It lies halfway between the highest probability that would let in one more fine run and the next
    failed run's, rather than right next to a fine run.
    """
    fine = np.sort(_sigmoid(scores[failed == 0]))[::-1]
    if len(fine) < FEWEST_FINE:
        return max(0.5, float(fine[0]))
    lowest = np.nextafter(fine[int(FALSE_ALARMS * len(fine))], 1.0)
    above = _sigmoid(scores[failed == 1])
    above = above[above >= lowest]
    middle = (lowest + above.min()) / 2 if len(above) else lowest
    return float(min(0.99, max(0.02, middle)))


def measures(
    scores: np.ndarray, failed: np.ndarray, threshold: float, flagged: np.ndarray | None = None
) -> dict[str, Any]:
    """Measures of out-of-fold log-odds; `flagged` if each fold has its own threshold."""
    from sklearn.metrics import roc_auc_score

    p = _sigmoid(scores)
    above = p >= threshold if flagged is None else flagged
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
    """Reliability bins: runs sorted by probability, in BINS of equal size, with the number that
    failed in each.
    """
    parts = np.array_split(np.argsort(p, kind="stable"), BINS)
    return [
        {"n": len(part), "said": round(float(p[part].mean()), 4), "failed": int(failed[part].sum())}
        for part in parts
        if len(part)
    ]


def _sigmoid(z: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-np.clip(z, -30, 30)))
