"""Several evaluations of the same tasks, task by task. Tasks are the same where their requests are, in whichever version of a set."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db.models import Avg, Count, Q

from apps.core.intervals import LEVEL, mean_difference
from apps.evals.models import EvalRun, Task

REGRESSED, IMPROVED, SAME, MISSING = "regressed", "improved", "same", "missing"
CHANGES = {
    REGRESSED: "Regressed",
    IMPROVED: "Improved",
    "changed": "Changed",
    SAME: "Unchanged",
    MISSING: "Not in every evaluation",
}


@dataclass(frozen=True, slots=True)
class TaskScore:
    """What an evaluation says of one task: `n` samples were scored, `passed` of them passed."""

    task: UUID
    key: str
    n: int
    passed: int
    reward: float | None = None
    masked: int = 0
    run: UUID | None = None

    @property
    def rate(self) -> float | None:
        return self.passed / self.n if self.n else None


Table = Mapping[Hashable, TaskScore]


@dataclass(frozen=True, slots=True)
class TaskRow:
    """One task in every evaluation, the baseline first; None where it was not evaluated. `change` is the worst of the others'."""

    key: str
    cells: tuple[TaskScore | None, ...]
    change: str

    @property
    def task(self) -> UUID:
        """In the first evaluation that has it."""
        return next(cell.task for cell in self.cells if cell)

    @property
    def place(self) -> str:
        """Where it stands in the order of the rows; several sets may have a key each."""
        return f"{self.key}\t{self.task}"

    @property
    def drop(self) -> float:
        """By how much the worst of the others is below the baseline; negative where all are above."""
        rates = [cell.rate for cell in self.cells if cell and cell.rate is not None]
        return rates[0] - min(rates[1:]) if len(rates) > 1 else 0.0


def scores_of(run: EvalRun) -> dict[UUID, TaskScore]:
    """One query, from the index alone where PostgreSQL can."""
    rows = run.samples.order_by().values_list("task_id", "task_key")
    counted = rows.annotate(
        n=Count("pk", filter=Q(masked=False)),
        passed=Count("pk", filter=Q(success=True, masked=False)),
        mean=Avg("reward"),
        masked_n=Count("pk", filter=Q(masked=True)),
    )
    return {
        task: TaskScore(task, key, n, passed, mean, masked, run.pk) for task, key, n, passed, mean, masked in counted
    }


def tables_of(runs: Sequence[EvalRun]) -> list[Table]:
    """Each evaluation's scores by what they have in common: the task, or over several sets its request."""
    scores = [scores_of(run) for run in runs]
    sets = {run.eval_set_id for run in runs}
    if len(sets) < 2:
        return [dict(item) for item in scores]
    hashes = dict(Task.objects.filter(eval_set__in=sets).order_by().values_list("pk", "canonical_hash"))
    return [{hashes[task]: score for task, score in item.items()} for item in scores]


def change_of(baseline: TaskScore | None, others: Sequence[TaskScore | None]) -> str:
    """The worst of what the others did to a task: a regression comes before an improvement."""
    if baseline is None or baseline.rate is None:
        return MISSING
    rates = [other.rate for other in others if other is not None and other.rate is not None]
    if any(rate < baseline.rate for rate in rates):
        return REGRESSED
    if len(rates) < len(others):
        return MISSING
    return IMPROVED if any(rate > baseline.rate for rate in rates) else SAME


def rows_of(tables: Sequence[Table]) -> list[TaskRow]:
    """Every task that one of them has, by its key."""
    found = []
    for identity in {name: None for table in tables for name in table}:
        cells = tuple(table.get(identity) for table in tables)
        key = next(cell.key for cell in cells if cell)
        found.append(TaskRow(key, cells, change_of(cells[0], cells[1:])))
    return sorted(found, key=lambda row: row.place)


def is_kind(row: TaskRow, kind: str) -> bool:
    return not kind or row.change == kind or (kind == "changed" and row.change in (REGRESSED, IMPROVED))


def tasks_that(run: EvalRun, against: EvalRun, kind: str) -> list[UUID]:
    """The tasks of an evaluation that changed in this way since another one."""
    before, now = tables_of([against, run])
    return [
        score.task
        for name, score in now.items()
        if is_kind(TaskRow("", (), change_of(before.get(name), [score])), kind)
    ]


def success_difference(baseline: Table, other: Table) -> dict[str, Any]:
    """{mean, low, high, n}: the paired difference of the success rate over the tasks that both scored."""
    differences = [
        score.rate - first.rate
        for name, score in other.items()
        if score.rate is not None and (first := baseline.get(name)) and first.rate is not None
    ]
    mean, low, high = mean_difference(differences, LEVEL)
    return {"mean": mean, "low": low, "high": high, "n": len(differences)}
