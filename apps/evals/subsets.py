"""The tasks of a split that an evaluation uses: all, or a fixed subset in which every kind and
level is represented. Pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import TypeVar

from apps.evals.bounds import fixed_order
from apps.evals.models import Task

T = TypeVar("T", bound=Task)


def subset(tasks: Iterable[T], size: int | None) -> list[T]:
    """`size` of them, always the same ones, one of each (kind, level) in turn; all if `size` is
    None or larger.
    """
    given = list(tasks)
    if size is None or size >= len(given):
        return given
    strata: dict[tuple[str, str], list[T]] = defaultdict(list)
    by_id = {str(task.pk): task for task in given}
    for pk in fixed_order(by_id):
        metadata = by_id[pk].metadata
        strata[str(metadata.get("kind")), str(metadata.get("level"))].append(by_id[pk])
    rounds = max(len(stratum) for stratum in strata.values())
    in_turn = [
        stratum[at]
        for at in range(rounds)
        for _, stratum in sorted(strata.items())
        if at < len(stratum)
    ]
    return in_turn[:size]
