"""Task by task: how each differs in the other evaluations, and pages of filtered tasks."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

import numpy as np

from apps.core.forms import whole
from apps.core.http import LONGEST_FILTER, QueryFilters
from apps.core.paging import NotACursor
from apps.core.query import Query, whole_number
from apps.evals.comparison.modes import tasks_with
from apps.evals.comparison.tables import Tables, read
from apps.evals.models import EvalRun

REGRESSED, IMPROVED, SAME, MISSING = "regressed", "improved", "same", "missing"
CHANGES = {
    REGRESSED: "Regressed",
    IMPROVED: "Improved",
    "changed": "Changed",
    SAME: "Unchanged",
    MISSING: "Not in every evaluation",
}
KINDS = np.array([REGRESSED, IMPROVED, SAME, MISSING])


def changes_of(rates: np.ndarray) -> np.ndarray:
    """[tasks] of the first four of CHANGES, from [evaluations, tasks], the baseline first: the
    worst change in any other evaluation. NaN if nothing was scored."""
    baseline, others = rates[0], rates[1:]
    known, all_known = ~np.isnan(baseline), ~np.isnan(others).any(axis=0)
    regressed = known & (others < baseline).any(axis=0)
    improved = known & all_known & (others > baseline).any(axis=0)
    return np.select([regressed, improved, known & all_known], KINDS[:3], MISSING)


def drops_of(rates: np.ndarray) -> np.ndarray:
    """[tasks]: how far the worst other evaluation is below the baseline; negative if all are above,
    0 if unknown.
    """
    baseline, others = rates[0], rates[1:]
    worst = np.where(np.isnan(others), np.inf, others).min(axis=0)
    return np.where(np.isnan(baseline) | np.isinf(worst), 0.0, baseline - worst)


@dataclass(frozen=True, slots=True)
class TaskScore:
    """The result of one task in an evaluation: `n` samples were scored, `passed` of them passed."""

    task: UUID
    run: UUID
    n: int
    passed: int
    reward: float | None
    masked: int

    @property
    def rate(self) -> float | None:
        return self.passed / self.n if self.n else None


@dataclass(frozen=True, slots=True)
class TaskRow:
    """One task in every evaluation, the baseline first; None if it was not evaluated."""

    key: str
    task: UUID
    change: str
    cells: tuple[TaskScore | None, ...]


@dataclass(frozen=True)
class Filters(QueryFilters):
    """Filters and order of the tasks, from the URL. `of`: the number of the one evaluation whose
    changes count, from 2; otherwise those of all. `mode`: a failure mode that appeared or
    disappeared. `sort`: “drop” or “gain” first, or empty for the order of keys.
    """

    change: str = ""
    of: str = ""
    mode: str = ""
    q: str = ""
    sort: str = ""

    @classmethod
    def from_query(cls, query: Mapping[str, str], runs: int) -> Filters:
        change, of, sort = (
            query.get("change", ""),
            whole(query.get("of"), 2, runs),
            query.get("sort", ""),
        )
        return cls(
            change if change in CHANGES else "",
            str(of) if of and runs > 2 else "",
            query.get("mode", "")[:LONGEST_FILTER],
            query.get("q", "").strip()[:LONGEST_FILTER],
            sort if sort in SORTS else "",
        )


SORTS = ("drop", "gain")
QUERY: Query = {
    "change": list(CHANGES),
    "of": whole_number(2),
    "mode": None,
    "q": None,
    "sort": SORTS,
}


def unknown_filters(query: Mapping[str, str], runs: int) -> dict[str, str]:
    """{parameter: allowed values} of those that only the number of evaluations bounds."""
    of = query.get("of")
    return {"of": f"a number from 2 to {runs}"} if of and whole(of, 2, runs) is None else {}


Place = tuple[float, int]


class TaskTable:
    """The tasks of a comparison, filtered."""

    def __init__(self, tables: Tables, given: Filters) -> None:
        self.tables, self.given = tables, given
        self.others = [int(given.of) - 1] if given.of else list(range(1, len(tables.runs)))
        rates = tables.rates[[0, *self.others]]
        self.changes, drops = changes_of(rates), drops_of(rates)
        wanted = self._changed(given.change)
        if given.mode:
            wanted = wanted & tasks_with(tables, given.mode, self.others)
        if given.q:
            q = given.q.casefold()
            wanted = wanted & np.fromiter(
                (q in key.casefold() for key in tables.keys), bool, len(tables)
            )
        factor = {"drop": -1.0, "gain": 1.0}.get(given.sort, 0.0)
        numbers = np.flatnonzero(wanted)
        self.order: list[Place] = sorted(
            zip((factor * drops[numbers]).tolist(), numbers.tolist(), strict=True)
        )

    def _changed(self, change: str) -> np.ndarray:
        if change == "changed":
            return np.isin(self.changes, (REGRESSED, IMPROVED))
        return self.changes == change if change else np.ones(len(self.tables), dtype=bool)

    def counts(self) -> dict[str, int]:
        """The count of each change, before the filters."""
        return {kind: int(self._changed(kind).sum()) for kind in CHANGES}

    @property
    def tasks(self) -> list[UUID]:
        return [UUID(self.tables.ids[number]) for _, number in self.order]

    def row(self, number: int) -> TaskRow:
        return TaskRow(
            self.tables.keys[number],
            UUID(self.tables.ids[number]),
            str(self.changes[number]),
            tuple(
                self._cell(at, task, number) for at, task in enumerate(self.tables.tasks[number])
            ),
        )

    def _cell(self, at: int, task: str | None, number: int) -> TaskScore | None:
        if task is None:
            return None
        sums = {
            name: self.tables.sums[name][at, number]
            for name in ("scored", "passed", "masked", "reward")
        }
        n = int(sums["scored"])
        reward = float(sums["reward"]) / n if n and np.isfinite(sums["reward"]) else None
        return TaskScore(
            UUID(task), self.tables.runs[at].pk, n, int(sums["passed"]), reward, int(sums["masked"])
        )

    def rows(self) -> list[TaskRow]:
        return [self.row(number) for _, number in self.order]

    def page(self, size: int, after: str = "", before: str = "") -> RowPage:
        """Keyset pagination: tasks that arrive while an evaluation is running do not shift rows
        between pages. Raises NotACursor.
        """
        places = [(value, self.tables.names[number]) for value, number in self.order]
        start = 0
        if found := place_of(after, "after"):
            start = bisect_right(places, found)
        elif found := place_of(before, "before"):
            start = max(0, bisect_left(places, found) - size)
        shown, end = self.order[start : start + size], start + size
        return RowPage(
            [self.row(number) for _, number in shown],
            start + 1,
            len(self.order),
            cursor_of(places[start]) if start and shown else "",
            cursor_of(places[end - 1]) if end < len(places) else "",
        )


@dataclass(frozen=True)
class RowPage:
    """A page of rows; `start` is the number of the first of `count`; cursors of the adjacent pages,
    empty if there is none.
    """

    rows: Sequence[TaskRow]
    start: int
    count: int
    before: str = ""
    after: str = ""

    @property
    def end(self) -> int:
        return self.start + len(self.rows) - 1


def cursor_of(place: tuple[float, str]) -> str:
    return f"{place[0]!r}_{place[1]}"


def place_of(cursor: str, name: str) -> tuple[float, str] | None:
    """None without a cursor. Raises NotACursor."""
    number, _, place = cursor.partition("_")
    try:
        if cursor and not place:
            raise ValueError
        return (float(number), place) if cursor else None
    except ValueError as error:
        raise NotACursor(name) from error


def tasks_that(run: EvalRun, against: EvalRun, kind: str) -> list[UUID]:
    """The tasks of an evaluation that changed in this way since another one."""
    tables = read([against, run])
    table = TaskTable(tables, Filters(change=kind))
    own = (tables.tasks[number][1] for _, number in table.order)
    return [UUID(task) for task in own if task]
