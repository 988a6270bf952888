"""The failures most like one: for the side of the triage screen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from apps.failures.clusters.cases import Case
from apps.failures.clusters.features import Space


@dataclass(frozen=True, eq=False)
class Neighbours:
    """Failures ready to be searched: `vectors` (failures, COLUMNS) with rows of length 1."""

    ids: tuple[str, ...]
    vectors: sparse.csr_array
    space: Space

    @classmethod
    def of(cls, cases: Sequence[Case], space: Space | None = None) -> Neighbours:
        """`space`: a clustering's, so that likeness is the same as there; without one, that of `cases`."""
        space = space or Space.fit(cases)
        return cls(tuple(case.id for case in cases), space.vectors(cases), space)

    def nearest(self, case: Case, k: int) -> list[tuple[str, float]]:
        """At most `k` (id, cosine), the nearest first, ties by id; neither the failure itself nor what has nothing in common."""
        vector = self.space.vectors([case]).toarray()[0]
        cosines = np.minimum(self.vectors @ vector, 1).round(6)
        found = [
            (id, float(cosine)) for id, cosine in zip(self.ids, cosines, strict=True) if cosine > 0 and id != case.id
        ]
        return sorted(found, key=lambda item: (-item[1], item[0]))[:k]


def similar(case: Case, cases: Sequence[Case], k: int, space: Space | None = None) -> list[tuple[str, float]]:
    """`Neighbours.nearest` for one question; reading `cases` takes about a second for 5,000 of them."""
    return Neighbours.of(cases, space).nearest(case, k)
