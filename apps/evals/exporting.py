"""Tasks as files: our JSONL, NeMo Gym rows, a package for verifiers. One split per file; a hold-out
only on its own.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from tempfile import SpooledTemporaryFile
from typing import IO, Any

from django.db.models import QuerySet

from apps.evals import actions
from apps.evals.formats import TaskRow, package, write
from apps.evals.holdout import groups
from apps.evals.holdout.view_log import record_view
from apps.evals.models import WAITING, EvalSet, Split, Task

FLYWHEEL = "flywheel"  # metadata: {origin, set, trajectory?, variant_of?}
VERIFIERS = "verifiers"
FORMATS = {
    "flywheel": "Flywheel JSONL",
    "nemo-gym": "NeMo Gym rows",
    "csv": "CSV",
    VERIFIERS: "verifiers package",
}
IN_MEMORY = 8 * 1024 * 1024
DATED = (
    2026,
    1,
    1,
    0,
    0,
    0,
)  # every file in the archive has this date, so the same tasks give the same bytes


@dataclass(frozen=True)
class Export:
    name: str
    kind: str
    chunks: Iterator[bytes] | IO[bytes]


def tasks_of(eval_set: EvalSet, split: Split) -> QuerySet[Task]:
    """The tasks of one split, without unreviewed variants."""
    tasks = eval_set.tasks.filter(split=split).exclude(**WAITING)
    return tasks.select_related("eval_set", "trajectory", "variant_of").order_by("key")


def row_of(task: Task) -> TaskRow:
    """The task as a file row, including its origin: a synthetic task stays marked as synthetic."""
    ours: dict[str, Any] = {"origin": task.origin, "set": str(task.eval_set)}
    if task.groups != [task.group_key]:
        ours["groups"] = task.groups
    if task.trajectory:
        ours["trajectory"] = task.trajectory.external_id
    if task.variant_of:
        ours["variant_of"] = task.variant_of.key
    return TaskRow(
        key=task.key,
        messages=task.messages,
        expected=task.expected,
        tools=task.tools,
        demonstration=task.demonstration,
        group=task.group,
        split=task.split,
        metadata=task.metadata | {FLYWHEEL: ours},
    )


def export(*, eval_set: EvalSet, format: str, split: Split, by: Any) -> Export:
    """A file of one split. Exporting the hold-out counts as a view. Raises EvalSetError for an
    empty split.
    """
    tasks = tasks_of(eval_set, split)
    if format not in FORMATS:
        raise actions.EvalSetError(
            f"Unknown export format “{format}”. Choose one of {', '.join(FORMATS)}."
        )
    if not tasks.exists():
        raise actions.EvalSetError(f"{eval_set} has no tasks in its {split.label} split.")
    if split == Split.TRAIN and (refused := groups.refusal(eval_set.project, tasks)):
        raise actions.HoldoutLeak(refused.sentence, held=refused.held)
    if split == Split.HOLDOUT:
        record_view(eval_set=eval_set, by=by, detail=f"export as {FORMATS[format]}")
    name = f"{eval_set.slug}-v{eval_set.version}-{split}"
    rows = map(row_of, tasks.iterator(chunk_size=500))
    if format == VERIFIERS:
        return Export(f"{name}.zip", "application/zip", packed(rows, name))
    lines = (line.encode() for line in write(format, rows))
    ending = {FLYWHEEL: "jsonl", "csv": "csv"}.get(format, f"{format}.jsonl")
    return Export(
        f"{name}.{ending}", "text/csv" if format == "csv" else "application/x-ndjson", lines
    )


def packed(rows: Iterator[TaskRow], name: str) -> IO[bytes]:
    """The package as a zip archive, positioned at its start."""
    file = SpooledTemporaryFile(max_size=IN_MEMORY)  # noqa: SIM115
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, text in package(rows, name).items():
            archive.writestr(zipfile.ZipInfo(path, DATED), text, zipfile.ZIP_DEFLATED)
    file.seek(0)
    return file
