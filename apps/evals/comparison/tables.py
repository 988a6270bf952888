"""Reads evaluations into arrays, a column for each task. PostgreSQL adds up the samples of a task; no loop runs over samples.

Tasks are the same where their requests are, in whichever version of a set.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from uuid import UUID

import numpy as np
from django.db.models import Count, IntegerField, Q, Sum
from django.db.models.functions import Cast

from apps.evals.costs import PER, price_of
from apps.evals.models import EvalRun, Task


def _true(field: str) -> Sum:
    return Sum(Cast(field, IntegerField()))


SUMS = {
    "scored": Count("*"),
    "passed": _true("success"),
    "valid": _true("valid"),
    "tool_ok": _true("tool_ok"),
    "arguments": Count("pk", filter=Q(tool_ok=True, args_score__gte=1.0)),
    "executed": _true("executed"),
    "unsafe": _true("unsafe"),
    "reward": Sum("reward"),
    "latency": Sum("latency_ms"),
    "timed": Count("latency_ms"),
    "input": Sum("input_tokens"),
    "input_known": Count("input_tokens"),
    "output": Sum("output_tokens"),
    "output_known": Count("output_tokens"),
}  # of the samples of a task that are not masked


@dataclass(frozen=True)
class Tables:
    """Evaluations, the baseline first, by task: `sums` has [runs, tasks] for each of SUMS and for “masked”.

    `tasks` are the ids of a task in each evaluation, None where it has none. Tasks are in the order of their `names`: key and id,
    since several sets may have a key each.
    """

    runs: Sequence[EvalRun]
    keys: list[str]
    tasks: list[tuple[UUID | None, ...]]
    sums: dict[str, np.ndarray]

    def __len__(self) -> int:
        return len(self.keys)

    def mean(self, name: str, over: str = "scored") -> np.ndarray:
        """[runs, tasks] of a sum by the samples that it is of; NaN where there are none."""
        counts = self.sums[over]
        return np.divide(self.sums[name], counts, out=np.full(counts.shape, np.nan), where=counts > 0)

    @cached_property
    def rates(self) -> np.ndarray:
        return self.mean("passed")

    @cached_property
    def ids(self) -> list[UUID]:
        """Of each task in the first evaluation that has it."""
        return [next(task for task in of if task) for of in self.tasks]

    @cached_property
    def names(self) -> list[str]:
        return [f"{key}\t{task}" for key, task in zip(self.keys, self.ids, strict=True)]

    @cached_property
    def places(self) -> dict[UUID, int]:
        """The number of a task, by its id in any of the evaluations."""
        return {task: at for at, of in enumerate(self.tasks) for task in of if task}

    @cached_property
    def cost(self) -> np.ndarray:
        """[runs, tasks] in USD for an answer; NaN without a price or where tokens of an answer are not counted."""
        prices = np.array([price_of(run) or (np.nan, np.nan) for run in self.runs])
        found = (prices[:, :1] * self.mean("input", "input_known") + prices[:, 1:] * self.mean("output", "output_known")) / PER  # fmt: skip
        counted = (self.sums["input_known"] == self.sums["scored"]) & (self.sums["output_known"] == self.sums["scored"])
        return np.where(counted, found, np.nan)

    @cached_property
    def groups(self) -> np.ndarray:
        """[tasks], a number for the group that each task was made from: tasks of one go up and down together."""
        names = dict(self.task_rows("group_key"))
        return np.unique([names[task] for task in self.ids], return_inverse=True)[1] if self.keys else np.zeros(0, int)

    def task_rows(self, *fields: str) -> Iterator[tuple]:
        places = {(run.eval_set_id, run.split) for run in self.runs}
        for eval_set, split in places:
            yield from Task.objects.filter(eval_set=eval_set, split=split).order_by().values_list("pk", *fields)


def read(runs: Sequence[EvalRun]) -> Tables:
    """A query for each evaluation, and one that says which of its tasks have masked samples."""
    found = [_sums_of(run) for run in runs]
    identities = _identities(runs)
    names: dict[Hashable, str] = {}
    for rows in found:
        for task, (key, *_) in rows.items():
            names.setdefault(identities.get(task, task), f"{key}\t{task}")
    order = sorted(names, key=lambda identity: names[identity])
    number = {identity: at for at, identity in enumerate(order)}
    sums = {name: np.zeros((len(runs), len(order))) for name in (*SUMS, "masked")}
    tasks = np.full((len(order), len(runs)), None, dtype=object)
    for at, rows in enumerate(found):
        if not rows:
            continue
        where = np.array([number[identities.get(task, task)] for task in rows])
        table = np.array([numbers for _, *numbers in rows.values()], dtype=float)
        for column, name in enumerate(sums):
            sums[name][at, where] = np.nan_to_num(table[:, column], nan=0.0) if name in COUNTS else table[:, column]
        tasks[where, at] = list(rows)
    return Tables(
        runs, [names[identity].rpartition("\t")[0] for identity in order], [tuple(row) for row in tasks.tolist()], sums
    )


COUNTS = {"scored", "timed", "input_known", "output_known", "masked"}


def _sums_of(run: EvalRun) -> dict[UUID, list]:
    """{task: [its key, its SUMS, how many of its samples are masked]}"""
    rows = run.samples.order_by()
    scored = (
        rows.filter(masked=False)
        .values_list("task_id", "task_key")
        .annotate(**{f"sum_{name}": value for name, value in SUMS.items()})
    )
    found = {task: [key, *numbers, 0] for task, key, *numbers in scored}
    masked = rows.filter(masked=True).values_list("task_id", "task_key").annotate(n=Count("*"))
    for task, key, n in masked:
        found.setdefault(task, [key, *[0] * len(SUMS), 0])[-1] = n
    return found


def _identities(runs: Sequence[EvalRun]) -> dict[UUID, Hashable]:
    """Over several sets a task is what it asks for; of one it is itself."""
    sets = {run.eval_set_id for run in runs}
    if len(sets) < 2:
        return {}
    return dict(Task.objects.filter(eval_set__in=sets).order_by().values_list("pk", "canonical_hash"))
