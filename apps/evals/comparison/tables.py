"""Reads evaluations into arrays with one column per task. PostgreSQL sums the samples of a task; no
loop runs over samples.

Tasks are the same if their requests are, in any version of a set. Their ids stay text: making a
UUID takes 3 µs, and it is hashed in Python. For the same reason the sums of a task come packed into
one value of 8 bytes each: two evaluations of 10,000 tasks have 280,000 numbers.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from django.contrib.postgres.aggregates import StringAgg
from django.db import connection, transaction
from django.db.models import (
    BinaryField,
    Count,
    F,
    FloatField,
    Func,
    IntegerField,
    Q,
    QuerySet,
    Sum,
    TextField,
    Value,
)
from django.db.models.functions import Cast, Coalesce
from psycopg.types.string import TextLoader

from apps.evals.costs import price_of, rates_of
from apps.evals.models import EvalRun, Sample, Task

SEPARATOR = "\x1f"


def _true(field: str) -> Sum:
    return Sum(Cast(field, IntegerField()))


SUMS = {
    "scored": Count("*"),
    "passed": _true("success"),
    "valid": _true("valid"),
    "valid_known": Count("valid"),
    "tool_ok": _true("tool_ok"),
    "tool_known": Count("tool_ok"),
    "arguments": Count("pk", filter=Q(tool_ok=True, args_score__gte=1.0)),
    "arguments_known": Count("args_score"),
    "executed": _true("executed"),
    "executed_known": Count("executed"),
    "unsafe": _true("unsafe"),
    "reward": Sum("reward"),
    "latency": Sum("latency_ms"),
    "timed": Count("latency_ms"),
    "input": Sum("input_tokens"),
    "input_known": Count("input_tokens"),
    "output": Sum("output_tokens"),
    "output_known": Count("output_tokens"),
}  # of the samples of a task that are not masked


def _sent(value: Any) -> Func:
    """As 8 bytes; NaN for null."""
    return Func(
        Coalesce(Cast(value, FloatField()), Value(float("nan"))),
        function="float8send",
        output_field=BinaryField(),
    )


PACKED = Func(
    *map(_sent, SUMS.values()),
    template="(%(expressions)s)",
    arg_joiner=" || ",
    output_field=BinaryField(),
)


def _joined(field: str) -> StringAgg:
    text = Func(F(field), Value(SEPARATOR), function="array_to_string", output_field=TextField())
    return StringAgg(text, SEPARATOR, filter=~Q(**{field: []}))


DETAILS = {
    "text_components": StringAgg(Cast("components", TextField()), SEPARATOR),
    "text_modes": StringAgg("mode", SEPARATOR, filter=Q(success=False) | ~Q(mode="")),
    "text_tools": _joined("tools"),
    "text_tags": _joined("tags"),
}  # of the same samples, as one text each; null if none has it
COMPONENTS, MODES, TOOLS, TAGS = range(len(DETAILS))


@dataclass(frozen=True)
class Tables:
    """Evaluations, the baseline first, by task: `sums` has [runs, tasks] for each of SUMS and for
    “masked”.

    `tasks` are the ids of a task in each evaluation, None if it is missing there. Tasks are ordered
    by their `names`: key and id, since several sets may each have the same key. `details` are rows
    that start with a task and end with DETAILS.
    """

    runs: Sequence[EvalRun]
    keys: list[str]
    tasks: list[tuple[str | None, ...]]
    sums: dict[str, np.ndarray]
    details: list[list[tuple]] | None = None

    def __len__(self) -> int:
        return len(self.keys)

    def mean(self, name: str, over: str = "scored") -> np.ndarray:
        """[runs, tasks] of a sum divided by its number of samples; NaN if there are none."""
        counts = self.sums[over]
        return np.divide(
            self.sums[name], counts, out=np.full(counts.shape, np.nan), where=counts > 0
        )

    @cached_property
    def rates(self) -> np.ndarray:
        return self.mean("passed")

    @cached_property
    def ids(self) -> list[str]:
        """The id of each task in the first evaluation that has it."""
        return [next(task for task in of if task) for of in self.tasks]

    @cached_property
    def names(self) -> list[str]:
        return [f"{key}\t{task}" for key, task in zip(self.keys, self.ids, strict=True)]

    @cached_property
    def places(self) -> dict[str, int]:
        """The position of a task, by its id in any of the evaluations."""
        return {task: at for at, of in enumerate(self.tasks) for task in of if task}

    @cached_property
    def cost(self) -> np.ndarray:
        """[runs, tasks] in USD per answer; NaN without a price or if an answer's tokens are not
        counted.
        """
        rates = np.array([rates_of(price_of(run)) for run in self.runs])
        found = rates[:, :1] * self.mean("input", "input_known")
        found += rates[:, 1:] * self.mean("output", "output_known")
        counted = (self.sums["input_known"] == self.sums["scored"]) & (
            self.sums["output_known"] == self.sums["scored"]
        )
        return np.where(counted, found, np.nan)

    @cached_property
    def groups(self) -> np.ndarray:
        """[tasks], a number for the group that each task was made from: tasks of one group vary
        together.
        """
        names = dict(self.task_rows("group_key"))
        return (
            np.unique([names[task] for task in self.ids], return_inverse=True)[1]
            if self.keys
            else np.zeros(0, int)
        )

    def texts(self, which: int) -> Iterator[tuple[int, int, str]]:
        """(number of an evaluation, number of a task, text) for one of DETAILS, by its index, if
        the task has it.
        """
        column = which - len(DETAILS)
        for at, (numbers, rows) in enumerate(self._details):
            for place, row in zip(numbers, rows, strict=True):
                if (text := row[column]) is not None and place is not None:
                    yield at, place, text

    @cached_property
    def _details(self) -> list[tuple[list[int | None], list[tuple]]]:
        """[runs] of (numbers of the tasks, rows)."""
        found = self.details or [
            _by_task(run.samples.filter(masked=False).order_by(), **DETAILS) for run in self.runs
        ]
        return [([self.places.get(row[0]) for row in rows], rows) for rows in found]

    def task_rows(self, *fields: str) -> Iterator[tuple]:
        places = {(run.eval_set_id, run.split) for run in self.runs}
        for eval_set, split in places:
            tasks = Task.objects.filter(eval_set=eval_set, split=split).order_by()
            yield from _fetched(tasks.values_list("pk", *fields))


def read(runs: Sequence[EvalRun], *, details: bool = False) -> Tables:
    """One query per evaluation, and one for which of its tasks have masked samples. `details`:
    DETAILS are read at the same time; otherwise a separate query reads them on demand."""
    found = [_rows_of(run, DETAILS if details else {}) for run in runs]
    identities = _identities(runs)
    names: dict[Hashable, str] = {}
    for rows in found:
        for task, key in zip(rows.tasks, rows.keys, strict=True):
            names.setdefault(identities.get(task, task), f"{key}\t{task}")
    order = sorted(names, key=lambda identity: names[identity])
    number = {identity: at for at, identity in enumerate(order)}
    sums = {name: np.zeros((len(runs), len(order))) for name in (*SUMS, "masked")}
    tasks = np.full((len(order), len(runs)), None, dtype=object)
    for at, rows in enumerate(found):
        if not rows.tasks:
            continue
        where = np.array([number[identities.get(task, task)] for task in rows.tasks])
        for column, name in enumerate(sums):
            values = rows.sums[:, column]
            sums[name][at, where] = np.nan_to_num(values, nan=0.0) if name in COUNTS else values
        tasks[where, at] = rows.tasks
    keys = [names[identity].rpartition("\t")[0] for identity in order]
    return Tables(
        runs,
        keys,
        [tuple(row) for row in tasks.tolist()],
        sums,
        [rows.texts for rows in found] if details else None,
    )


COUNTS = {"scored", "timed", "input_known", "output_known", "masked"}


@dataclass(frozen=True)
class _Rows:
    """One evaluation by task: `sums` [tasks, SUMS and “masked”], `texts` that end with DETAILS, for
    tasks with scored samples.
    """

    tasks: list[str]
    keys: list[str]
    sums: np.ndarray
    texts: list[tuple]


def _rows_of(run: EvalRun, details: dict[str, Any]) -> _Rows:
    samples = run.samples.order_by()
    scored = _by_task(samples.filter(masked=False), "task_key", packed=PACKED, **details)
    masked = {
        task: (key, n)
        for task, key, n in _by_task(samples.filter(masked=True), "task_key", n=Count("*"))
    }
    only = list(masked.keys() - {row[0] for row in scored}) if masked else []
    sums = np.zeros((len(scored) + len(only), len(SUMS) + 1))
    if scored:
        sums[: len(scored), :-1] = np.frombuffer(b"".join(row[2] for row in scored), ">f8").reshape(
            -1, len(SUMS)
        )
    tasks = [*(row[0] for row in scored), *only]
    if masked:
        sums[:, -1] = [masked.get(task, ("", 0))[1] for task in tasks]
    keys = [*(row[1] for row in scored), *(masked[task][0] for task in only)]
    return _Rows(tasks, keys, sums, scored if details else [])


def _by_task(samples: QuerySet[Sample], *fields: str, **sums: Any) -> list[tuple]:
    """(task, fields, sums)"""
    return _fetched(samples.values_list("task_id", *fields).annotate(**sums))


def _fetched(rows: QuerySet) -> list[tuple]:
    """As the database returns them, bypassing the ORM's conversion of each value: JSON and ids stay
    text.
    """
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.cursor.adapters.register_loader("uuid", TextLoader)  # for this cursor only
        # with the default work_mem, 10,000 tasks with their texts would spill to disk
        cursor.execute("SET LOCAL work_mem = '64MB'")
        cursor.execute(*rows.query.sql_with_params())
        return cursor.fetchall()


def _identities(runs: Sequence[EvalRun]) -> dict[str, Hashable]:
    """Across several sets a task is identified by its request; within one set by itself."""
    sets = {run.eval_set_id for run in runs}
    if len(sets) < 2:
        return {}
    return dict(
        _fetched(
            Task.objects.filter(eval_set__in=sets).order_by().values_list("pk", "canonical_hash")
        )
    )
