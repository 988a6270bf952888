"""Chooses the groups of a hold-out. Pure: no Django, no torch."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence


def choose_holdout(groups: Sequence[str], size: int, seed: int) -> set[str]:
    """Groups that form a hold-out of at least `size` rows; `groups` has one entry per row.

    Whole groups only, drawn at random with `seed`, so that no group is on both sides; the same
    input gives the same split. Raises ValueError if nothing would remain outside.
    """
    sizes = Counter(groups)
    names = sorted(sizes)
    random.Random(seed).shuffle(names)
    chosen: set[str] = set()
    count = 0
    for name in names:
        if count >= size:
            break
        chosen.add(name)
        count += sizes[name]
    if count < size or len(chosen) == len(names):
        raise ValueError(
            f"A hold-out of {size} tasks requires more than {size} tasks in at least two groups;"
            f" this set has {len(groups)} tasks in {len(names)} groups. Add tasks or choose a"
            " smaller hold-out."
        )
    return chosen
