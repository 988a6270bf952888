"""Fits a model to a team's decisions, and says whether it is better than what is in use. Needs
scikit-learn: import it late.

The fit is a logistic regression with an L2 penalty. Everything that is said of it comes from runs
of requests that the measured model, its calibration and its threshold never saw (nested folds).
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.optimize import minimize
from scipy.sparse import csr_matrix, hstack
from scipy.stats import binom

from apps.core.intervals import student, wilson
from apps.failures.outcomes.agents import Agents, Kind
from apps.failures.outcomes.features import BUCKETS, Features
from apps.failures.outcomes.model import FALSE_ALARMS, FEWEST_FAILED, FEWEST_FINE, Weights

FOLDS = 5
SURE = 0.98  # confidence that a threshold keeps the limit
NEWEST, SURE_NOW = 50, 0.7  # runs, and confidence that it does among them: traffic changes
LEVEL = 0.98  # of the intervals that decide whether a model is better
SPREADS = {
    "size_": 0.3,
    "rule_": 0.7,
    "found_": 0.7,
    "judge": 1.5,
}  # standard deviations of weights
SPREAD_WORDS, SPREAD_INTERCEPT = 1.0, 3.0
BINS, FEWEST_OF_A_BIN = 5, 20
QUANTILES = 101


@dataclass(frozen=True)
class Example:
    """A decided run. Runs of one `group` (the same request) are never on both sides of a split;
    `drawn`: people were asked about it at random.
    """

    run: Features
    failed: bool
    group: str
    agent: Kind = field(default_factory=Kind)
    drawn: bool = False

    @property
    def request(self) -> int:
        return zlib.crc32(self.group.encode("utf-8", "replace"))


@dataclass(frozen=True)
class Trained:
    """`measured` holds the measures out of fold; `why_not` says why the weights replace nothing,
    and is empty if they are better than what is in use.
    """

    weights: Weights
    measured: dict[str, Any]
    why_not: str


class TooFew(Exception):
    """Too few decisions, or too few of one kind."""


def train(examples: Sequence[Example], in_use: Weights | None = None, *, seed: int = 0) -> Trained:
    """A model of the decisions, the oldest run first, and whether it is better than the one in use
    (None: than no model) on requests that neither has seen.

    Raises TooFew. Runs on one thread, because the vectors are so small that more threads only wait
    for each other.
    """
    from threadpoolctl import threadpool_limits

    require_enough(
        sum(example.failed for example in examples),
        sum(not example.failed for example in examples),
        len({example.group for example in examples}),
    )
    with threadpool_limits(1):
        return _train(_Data(examples, seed), in_use)


def require_enough(failed: int, fine: int, groups: int) -> None:
    if failed < FEWEST_FAILED or fine < FEWEST_FINE or groups < FOLDS:
        raise TooFew(
            f"Decisions on {FEWEST_FAILED} failed and {FEWEST_FINE} successful runs, of"
            f" {FOLDS} different requests, are needed. So far: {failed} failed, {fine} successful,"
            f" {groups} request{'' if groups == 1 else 's'}."
        )


def _train(data: _Data, in_use: Weights | None) -> Trained:
    held_out = HeldOut(np.zeros(data.n), np.zeros(data.n, dtype=bool))
    for among, held in data.folds(np.arange(data.n), data.seed):
        model = data.fitted(among)
        held_out.scores[held] = data.scores(held, model)
        held_out.flagged[held] = held_out.scores[held] >= model.threshold
    final = data.fitted(np.arange(data.n))
    measured = measures(held_out, data) | {"threshold": round(final.threshold, 4)}
    better, why_not = compared(held_out, data, in_use)
    return Trained(data.weights(final), measured | better, why_not)


@dataclass(frozen=True)
class HeldOut:
    """Scores of runs and whether they are flagged, by models and thresholds that never saw them."""

    scores: np.ndarray
    flagged: np.ndarray


@dataclass(frozen=True)
class _Model:
    coefficients: np.ndarray  # intercept, dense features, words
    slope: float
    shift: float
    threshold: float


class _Data:
    """Decided runs as a table, from which models of some of them are made."""

    def __init__(self, examples: Sequence[Example], seed: int = 0) -> None:
        self.examples, self.seed, self.n = examples, seed, len(examples)
        self.names = sorted({name for example in examples for name in example.run.dense})
        self.failed = np.array([example.failed for example in examples], dtype=float)
        self.drawn = np.array([example.drawn for example in examples])
        self.requests = np.array([example.request for example in examples])
        self.table, self.spread = _table(examples, self.names), _spread(self.names)

    def scores(self, runs: np.ndarray, model: _Model) -> np.ndarray:
        z = model.coefficients[0] + self.table[runs] @ model.coefficients[1:]
        return _sigmoid(model.slope * z + model.shift)

    def fitted(self, among: np.ndarray) -> _Model:
        """A model of these runs; calibration and threshold come from the same folds within them."""
        z, failed = np.zeros(len(among)), self.failed[among]
        for train_on, held in self.folds(among, self.seed + 1):
            fit = self._fit(among[train_on])
            z[held] = fit[0] + self.table[among[held]] @ fit[1:]
        slope, shift = platt(z, failed)
        fine = failed == 0
        if (fine & self.drawn[among]).sum() >= FEWEST_FINE:
            fine &= self.drawn[among]  # drawn at random, these represent the traffic
        limit = limit_of(_sigmoid(slope * z[fine] + shift), self.requests[among][fine])
        return _Model(self._fit(among), slope, shift, limit)

    def _fit(self, among: np.ndarray) -> np.ndarray:
        return _fit(self.table[among], self.failed[among], self.spread)

    def folds(self, among: np.ndarray, seed: int) -> Any:
        from sklearn.model_selection import StratifiedGroupKFold

        failed, requests = self.failed[among], self.requests[among]
        folds = min(FOLDS, len(set(requests)), int(failed.sum()), int((failed == 0).sum()))
        split = StratifiedGroupKFold(folds, shuffle=True, random_state=seed)
        return split.split(requests, failed, requests)

    def weights(self, model: _Model) -> Weights:
        intercept, dense = model.coefficients[0], model.coefficients[1 : 1 + len(self.names)]
        words = enumerate(model.coefficients[1 + len(self.names) :])
        return Weights(
            dense={name: float(weight) for name, weight in zip(self.names, dense, strict=True)},
            intercept=float(intercept),
            hashed={at: round(float(weight), 5) for at, weight in words if abs(weight) > 1e-4},
            slope=model.slope,
            shift=model.shift,
            threshold=model.threshold,
            agents=Agents.of(example.agent for example in self.examples),
            requests=sorted({int(request) for request in self.requests}),
        )


def compared(held_out: HeldOut, data: _Data, in_use: Weights | None) -> tuple[dict[str, Any], str]:
    """The intervals of what the model adds to the AUC and to the recall, and why it is not better;
    no model ranks at random, and flags no more than the limit.
    """
    new = ~np.isin(data.requests, in_use.requests) if in_use else np.ones(data.n, dtype=bool)
    failed, requests = data.failed[new], data.requests[new]
    bad, fine = int(failed.sum()), int((failed == 0).sum())
    if bad < FEWEST_FAILED or fine < FEWEST_FAILED:
        return {}, "too few decisions on requests that the model in use has not learned from"
    scores, flagged = np.zeros(len(failed)), np.full(len(failed), FALSE_ALARMS)
    if in_use:
        scores = np.array([in_use.score(data.examples[at].run) for at in np.flatnonzero(new)])
        flagged = (scores >= in_use.threshold).astype(float)
    auc = auc_difference(held_out.scores[new], scores, failed, requests)
    recall = _interval((held_out.flagged[new] - flagged)[failed == 1], requests[failed == 1])
    alarms = int(held_out.flagged[new][failed == 0].sum())
    found = {"auc_gain": _rounded(auc), "recall_gain": _rounded(recall), "compared": len(failed)}
    if auc[0] <= 0:
        return found, "it does not rank held-out runs better for certain"
    if recall[0] <= 0:
        return found, "it does not find more failures at the limit of false alarms for certain"
    if alarms > FALSE_ALARMS * fine:
        return found, f"{alarms} of {fine} held-out successful runs were false alarms"
    return found, ""


def _rounded(interval: tuple[float, float]) -> list[float]:
    return [round(limit, 4) for limit in interval]


def auc_difference(
    one: np.ndarray, other: np.ndarray, failed: np.ndarray, groups: np.ndarray
) -> tuple[float, float]:
    """The interval of AUC(one) - AUC(other) on the same runs (DeLong 1988; runs of a group count
    together, as in Obuchowski 1997).
    """
    bad, fine = np.flatnonzero(failed == 1), np.flatnonzero(failed == 0)
    share = np.zeros(len(failed))  # each run's part of the difference
    for scores, sign in ((one, 1.0), (other, -1.0)):
        share[bad] += sign * _share_below(scores[bad], scores[fine])
        share[fine] += sign * (1 - _share_below(scores[fine], scores[bad]))
    difference = float(share[bad].mean())
    influence = np.zeros(len(failed))
    influence[bad] = (share[bad] - difference) / len(bad)
    influence[fine] = (share[fine] - difference) / len(fine)
    return _around(difference, influence, groups)


def _interval(values: np.ndarray, groups: np.ndarray) -> tuple[float, float]:
    """The interval of a mean; runs of a group count together."""
    mean = float(values.mean())
    return _around(mean, (values - mean) / len(values), groups)


def _around(mean: float, influence: np.ndarray, groups: np.ndarray) -> tuple[float, float]:
    _, group = np.unique(groups, return_inverse=True)
    together = np.bincount(group, weights=influence)
    error = float(np.sqrt((together**2).sum() * len(together) / max(len(together) - 1, 1)))
    wide = student(max(len(together) - 1, 1), LEVEL) * error
    return mean - wide, mean + wide


def _share_below(scores: np.ndarray, others: np.ndarray) -> np.ndarray:
    """The share of others below each score; equal ones count half."""
    ordered = np.sort(others)
    low, high = np.searchsorted(ordered, scores, "left"), np.searchsorted(ordered, scores, "right")
    return (low + high) / (2 * len(ordered))


def _table(examples: Sequence[Example], names: list[str]) -> csr_matrix:
    """One row per example: dense features and hashed words."""
    dense = csr_matrix(
        [[example.run.dense.get(name, 0.0) for name in names] for example in examples]
    )
    rows = [row for row, example in enumerate(examples) for _ in example.run.hashed]
    columns = [bucket for example in examples for bucket in example.run.hashed]
    values = [value for example in examples for value in example.run.hashed.values()]
    return hstack(
        [dense, csr_matrix((values, (rows, columns)), shape=(len(examples), BUCKETS))]
    ).tocsr()


def _spread(names: Sequence[str]) -> np.ndarray:
    """The prior's standard deviation for each dense feature and each word."""
    dense = [
        next(spread for prefix, spread in SPREADS.items() if name.startswith(prefix))
        for name in names
    ]
    return np.concatenate([dense, np.full(BUCKETS, SPREAD_WORDS)])


def _fit(table: csr_matrix, failed: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """[intercept, dense, words]: each weight has a Gaussian prior around 0 with its `spread`."""
    from sklearn.linear_model import LogisticRegression

    scaled = table.multiply(spread).tocsr()
    model = LogisticRegression(solver="liblinear", intercept_scaling=SPREAD_INTERCEPT, tol=1e-6)
    model.fit(scaled, failed)
    return np.concatenate([model.intercept_, model.coef_[0] * spread])


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


def limit_of(fine: np.ndarray, requests: np.ndarray) -> float:
    """The threshold by all runs without a failure, the oldest first, and by the newest alone."""
    newest = threshold(fine[-NEWEST:], requests[-NEWEST:], SURE_NOW)
    return max(threshold(fine, requests, SURE), newest)


def threshold(fine: np.ndarray, requests: np.ndarray, sure: float) -> float:
    """The lowest threshold that keeps to the limit of false alarms with some confidence, from the
    scores of runs without a failure; above 1 if these are too few to say.

    An order statistic (Tong, Feng and Li 2018). Runs of a request resemble each other, so the
    number of requests takes the place of that of runs.
    """
    n = len(set(requests))
    allowed = np.arange(n)
    kept = allowed[binom.cdf(allowed, n, FALSE_ALARMS) <= 1 - sure]
    if not len(kept):
        return 2.0
    ordered = np.sort(fine)[::-1]
    return float(np.nextafter(ordered[int(kept[-1] / n * len(fine))], 2.0))


def measures(held_out: HeldOut, data: _Data) -> dict[str, Any]:
    from sklearn.metrics import roc_auc_score

    failed, p = data.failed, held_out.scores
    bins = _bins(p[data.drawn], failed[data.drawn])
    return {
        "n": data.n,
        "failed": int(failed.sum()),
        "auc": round(float(roc_auc_score(failed, p)), 4),
        "found": int((held_out.flagged & (failed == 1)).sum()),
        "false_alarms": int((held_out.flagged & (failed == 0)).sum()),
        "quantiles": [round(float(q), 4) for q in np.quantile(p, np.linspace(0, 1, QUANTILES))],
        "bins": bins,
        "calibrated": _is_calibrated(bins),
    }


def _bins(p: np.ndarray, failed: np.ndarray) -> list[dict[str, float]]:
    """Reliability: runs that were drawn at random, sorted by score, in BINS of equal size, with the
    number that failed in each.
    """
    parts = np.array_split(np.argsort(p, kind="stable"), BINS)
    return [
        {"n": len(part), "said": round(float(p[part].mean()), 4), "failed": int(failed[part].sum())}
        for part in parts
        if len(part)
    ]


def _is_calibrated(bins: Sequence[dict[str, Any]]) -> bool:
    """Whether each bin has enough runs, and the mean score in its interval (at 99%, as there are
    five).
    """
    if not bins or min(part["n"] for part in bins) < FEWEST_OF_A_BIN:
        return False
    intervals = [(part["said"], *wilson(part["failed"], part["n"], 0.99)) for part in bins]
    return all(low <= said <= high for said, low, high in intervals)


def _sigmoid(z: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-np.clip(z, -30, 30)))
