"""What is stored of a group, and to which group a failure belongs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from scipy import sparse

from apps.failures.clusters.cases import Case
from apps.failures.clusters.features import COLUMNS, Space

BATCH = 8192


@dataclass(frozen=True)
class Signature:
    """A group's centre, cut to its heaviest columns, of length 1; a member's cosine with it is at
    least `radius`.
    """

    columns: tuple[int, ...]
    weights: tuple[float, ...]
    radius: float
    mode: str = ""

    def as_dict(self) -> dict[str, Any]:
        return {
            "columns": list(self.columns),
            "weights": list(self.weights),
            "radius": self.radius,
            "mode": self.mode,
        }

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Self:
        """Raises KeyError, TypeError or ValueError for data that `as_dict` did not write."""
        columns = tuple(int(column) for column in value["columns"])
        if len(columns) != len(value["weights"]) or not all(
            0 <= column < COLUMNS for column in columns
        ):
            raise ValueError("A signature's columns and weights do not fit.")
        return cls(
            columns,
            tuple(map(float, value["weights"])),
            float(value["radius"]),
            str(value.get("mode", "")),
        )

    @classmethod
    def of(cls, centre: sparse.csr_array, radius: float, mode: str, kept: int) -> Self:
        """From a centre of shape (1, COLUMNS), cut to its `kept` heaviest columns."""
        order = np.lexsort((centre.indices, -centre.data))[:kept]
        order = order[np.argsort(centre.indices[order])]
        weights = centre.data[order] / np.linalg.norm(centre.data[order])
        return cls(
            tuple(centre.indices[order].tolist()),
            tuple(round(float(w), 5) for w in weights),
            round(float(radius), 5),
            mode,
        )


def nearest_centre(
    points: sparse.csr_array, centres: sparse.csr_array, radii: np.ndarray
) -> np.ndarray:
    """The index of the centre with the greatest cosine for every point, -1 if no cosine reaches
    that centre's radius.

    Points and centres have rows of length 1.
    """
    places = np.full(points.shape[0], -1)
    if not centres.shape[0]:
        return places
    transposed = sparse.csr_array(centres.T)
    for start in range(0, points.shape[0], BATCH):
        cosines = (points[start : start + BATCH] @ transposed).toarray()
        cosines[cosines < radii - 1e-6] = -1
        best = cosines.argmax(axis=1)
        places[start : start + BATCH] = np.where(cosines.max(axis=1) > 0, best, -1)
    return places


def centres_of(signatures: Sequence[Signature]) -> sparse.csr_array:
    """(signatures, COLUMNS), float32."""
    starts = np.cumsum([0, *(len(signature.columns) for signature in signatures)])
    columns = np.array(
        [column for signature in signatures for column in signature.columns], dtype=np.int64
    )
    weights = np.array(
        [weight for signature in signatures for weight in signature.weights], dtype=np.float32
    )
    return sparse.csr_array((weights, columns, starts), shape=(len(signatures), COLUMNS))


def assign(
    space: Space, signatures: Mapping[str, Signature], cases: Sequence[Case]
) -> dict[str, str]:
    """Case id → the key of the group it belongs to; a failure that resembles none of them, or whose
    cause is unknown, is left out.
    """
    cases = [case for case in cases if case.has_cause]
    keys = sorted(signatures)
    chosen = [signatures[key] for key in keys]
    cosines = (
        (space.vectors(cases) @ centres_of(chosen).T).toarray()
        if keys and cases
        else np.zeros((len(cases), 0))
    )
    found = {}
    for case, row in zip(cases, cosines, strict=True):
        fits = [
            (cosine, -place)
            for place, (cosine, signature) in enumerate(zip(row, chosen, strict=True))
            if cosine >= signature.radius and signature.mode in ("", case.mode)
        ]
        if fits:
            found[case.id] = keys[-max(fits)[1]]
    return found
