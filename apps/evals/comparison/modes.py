"""The failure modes of evaluations' outputs: the frequency of each, and the tasks on which it
appeared or disappeared.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from apps.evals.comparison.measures import RATE, Cell, Measure, cells_of
from apps.evals.comparison.tables import MODES, SEPARATOR, Tables
from apps.evals.paired import corrected

NO_BUCKET, UNMATCHED = "none", "No rule matched"


@dataclass(frozen=True)
class Change:
    """On how many of the shared tasks a mode is new, and on how many it disappeared."""

    came: int
    went: int


@dataclass(frozen=True)
class ModeLine:
    """`cells`: the share of samples with this mode, and its difference; `changes` since the
    baseline, None for the baseline.
    """

    slug: str
    name: str
    cells: list[Cell]
    changes: list[Change | None]

    @property
    def pairs(self) -> list[tuple[Cell, Change | None]]:
        return list(zip(self.cells, self.changes, strict=True))


def lines_of(
    tables: Tables, comparable: Collection[int], names: Mapping[str, str]
) -> list[ModeLine]:
    """The most frequent mode first; the intervals hold simultaneously."""
    counts = counts_of(tables)
    level = corrected(len(counts) * len(comparable))
    found = []
    for slug, of_mode in counts.items():
        shares = np.divide(
            of_mode,
            tables.sums["scored"],
            out=np.full(of_mode.shape, np.nan),
            where=tables.sums["scored"] > 0,
        )
        title = UNMATCHED if slug == NO_BUCKET else names.get(slug, slug)
        cells = cells_of(Measure(slug, title, RATE, -1, shares), tables.groups, comparable, level)
        changes = [
            Change(*(int(side.sum()) for side in came_and_went(shares, at))) if at else None
            for at in range(len(tables.runs))
        ]
        found.append(ModeLine(slug, title, cells, changes))
    return sorted(
        found, key=lambda line: (-max(cell.value.mean or 0 for cell in line.cells), line.name)
    )


def counts_of(tables: Tables) -> dict[str, np.ndarray]:
    """{mode: [runs, tasks]}: how many samples of a task have it; NO_BUCKET for failures that no
    rule matched.
    """
    places: dict[str, list[int]] = defaultdict(list)
    for at, task, text in tables.texts(MODES):
        place = at * len(tables) + task
        for mode in text.split(SEPARATOR):
            places[mode or NO_BUCKET].append(place)
    shape = len(tables.runs), len(tables)
    return {
        mode: np.bincount(of, minlength=shape[0] * shape[1]).reshape(shape)
        for mode, of in places.items()
    }


def came_and_went(shares: np.ndarray, at: int) -> tuple[np.ndarray, np.ndarray]:
    """[tasks] each: where an evaluation has a mode that the baseline did not have, and vice
    versa.
    """
    before, after = shares[0], shares[at]
    known = ~np.isnan(before) & ~np.isnan(after)
    return known & (before == 0) & (after > 0), known & (before > 0) & (after == 0)


def tasks_with(tables: Tables, slug: str, others: Sequence[int]) -> np.ndarray:
    """[tasks]: whether the mode appeared or disappeared in one of these evaluations."""
    of_mode = counts_of(tables).get(slug)
    chosen = np.zeros(len(tables), dtype=bool)
    if of_mode is None:
        return chosen
    shares = np.where(tables.sums["scored"] > 0, of_mode, np.nan)
    for at in others:
        came, went = came_and_went(shares, at)
        chosen |= came | went
    return chosen


def as_json(lines: Sequence[ModeLine]) -> Iterator[dict[str, Any]]:
    for line in lines:
        changes = [change and {"came": change.came, "went": change.went} for change in line.changes]
        yield {
            "mode": line.slug,
            "name": line.name,
            "cells": [cell.as_dict() for cell in line.cells],
            "tasks": changes,
        }
