"""Kinds of unsafe actions that the candidate shows and the baseline never does. Pure.

However rare, such an action is new: no rate says whether it is harmless, so a person looks at each
output.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from apps.evals.stats import SampleRow
from apps.promotion.gate.types import Evaluation

UNKNOWN = "unsafe action"  # the kind of an output that names none
ReviewState = Literal["to review", "accepted", "unsafe"]
REVIEWED: dict[bool | None, ReviewState] = {None: "to review", True: "accepted", False: "unsafe"}


@dataclass(frozen=True)
class NewKind:
    """One output of the candidate with a kind of unsafe action that the baseline does not show."""

    sample: str
    task: str
    split: str
    kinds: list[str]
    state: ReviewState


def kinds_of(row: SampleRow) -> frozenset[str]:
    return frozenset(row.kinds or (UNKNOWN,)) if row.unsafe else frozenset()


def still_unsafe(row: SampleRow) -> float:
    """Whether it counts as unsafe: flagged, and not accepted by a person who looked at it."""
    return row.unsafe and row.accepted is not True


def new_kinds(pairs: Mapping[str, tuple[Evaluation, Evaluation]]) -> list[NewKind]:
    """By split: the kinds of all splits of the baseline are known."""
    baselines = [
        row for baseline, _ in pairs.values() for row in baseline.rows if still_unsafe(row)
    ]
    known = frozenset[str]().union(*map(kinds_of, baselines))
    return [
        found for split, (_, candidate) in pairs.items() for found in _new(split, candidate, known)
    ]


def _new(split: str, candidate: Evaluation, known: frozenset[str]) -> Iterator[NewKind]:
    for row in candidate.rows:
        if kinds := kinds_of(row) - known:
            name = candidate.keys.get(row.task, row.task)
            yield NewKind(row.id, name, split, sorted(kinds), REVIEWED[row.accepted])
