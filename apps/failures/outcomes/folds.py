"""Parts of decided runs to measure on: requests stay whole, failures are spread evenly."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np


def stratified_folds(
    failed: np.ndarray, requests: np.ndarray, folds: int, seed: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The rows to train on and those held out, for each fold. The folds of scikit-learn's
    StratifiedGroupKFold, which needs ten times as long: most of a training.
    """
    _, request_of = np.unique(requests, return_inverse=True)
    classes = np.stack([failed == 0, failed != 0], axis=1)
    per_request = np.zeros((request_of.max() + 1, 2))
    np.add.at(per_request, request_of, classes)
    order = np.arange(len(per_request))
    np.random.RandomState(seed).shuffle(order)
    order = order[np.argsort(-per_request[order].std(axis=1), kind="stable")]
    per_fold, fold_of = np.zeros((folds, 2)), np.zeros(len(per_request), dtype=int)
    into, total = np.eye(folds)[:, :, None], classes.sum(axis=0)
    for request in order:
        shares = (per_fold + into * per_request[request]) / total  # by choice, fold and class
        uneven = shares.std(axis=1).mean(axis=1).tolist()
        chosen = _first_best(uneven, per_fold.sum(axis=1).tolist())
        fold_of[request] = chosen
        per_fold[chosen] += per_request[request]
    row_fold = fold_of[request_of]
    for fold in range(folds):
        yield np.flatnonzero(row_fold != fold), np.flatnonzero(row_fold == fold)


def _first_best(uneven: list[float], sizes: list[float]) -> int:
    """The most even choice; of those that are alike (as `numpy.isclose` has it) the smallest."""
    best = 0
    for fold in range(1, len(uneven)):
        least = uneven[best]
        is_close = abs(uneven[fold] - least) <= 1e-8 + 1e-5 * least
        if uneven[fold] < least or (is_close and sizes[fold] < sizes[best]):
            best = fold
    return best
