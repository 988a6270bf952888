"""What an edit of a verifier does to its agreement with people, on the same labelled samples.
Pure.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from apps.reviews.agreement.coefficients import draws_of, finite, kappas, percentiles


@dataclass(frozen=True)
class Change:
    """A measure before and after an edit, on the same samples; the interval is of the
    difference.
    """

    n: int
    before: float | None
    after: float | None
    difference: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class EditEffect:
    """On the labels that a rubric may be fitted to, and on those held out from its author."""

    fitted: dict[str, Change]
    held_out: dict[str, Change]


def is_held_out(item: str, share: float = 0.3, salt: str = "rubric") -> bool:
    """Whether a label is kept from whoever edits the rubric; by hash, so that it stays so as labels
    come in.
    """
    digest = hashlib.sha256(f"{salt}\0{item}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < share * 2**64


def edit_effect(
    labels: Mapping[str, bool],
    before: Mapping[str, bool],
    after: Mapping[str, bool],
    share: float = 0.3,
    seed: int = 0,
) -> EditEffect:
    """Agreement and κ with people before and after, on the samples that all three know (sample id →
    success).
    """
    common = sorted(labels.keys() & before.keys() & after.keys())
    held = [item for item in common if is_held_out(item, share)]
    fitted = [item for item in common if not is_held_out(item, share)]

    def changes(items: list[str]) -> dict[str, Change]:
        columns = [
            np.array([source[item] for item in items], dtype=bool)
            for source in (labels, before, after)
        ]
        return {
            "agreement": _change(_agreements, *columns, seed),
            "kappa": _change(kappas, *columns, seed),
        }

    return EditEffect(changes(fitted), changes(held))


def _agreements(a: np.ndarray, b: np.ndarray, draws: np.ndarray) -> np.ndarray:
    return (a == b)[draws].mean(axis=1)


def _change(
    measure: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray],
    labels: np.ndarray,
    before: np.ndarray,
    after: np.ndarray,
    seed: int,
) -> Change:
    """Paired bootstrap: both are measured on the same draws of samples (Efron & Tibshirani
    1993).
    """
    n = len(labels)
    if n == 0:
        return Change(0, None, None, None, None, None)
    whole = np.arange(n)[None, :]
    was, now = float(measure(labels, before, whole)[0]), float(measure(labels, after, whole)[0])
    draws = draws_of(n, seed)
    interval = percentiles(measure(labels, after, draws) - measure(labels, before, draws))
    known = math.isfinite(now - was)
    low, high = interval if interval and known else (None, None)
    return Change(n, finite(was), finite(now), now - was if known else None, low, high)
