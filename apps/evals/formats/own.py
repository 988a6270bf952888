"""Flywheel's own JSONL: one TaskRow per line, lossless."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import fields

from apps.evals.formats.rows import Line, Read, TaskRow, each, only, task

FIELDS = tuple(field.name for field in fields(TaskRow) if field.name != "line")


def read(lines: Iterable[Line]) -> Iterator[Read]:
    return each(lines, _row)


def _row(record: dict) -> TaskRow:
    only(record, FIELDS, f"Fields are {', '.join(FIELDS)}; put more below “metadata”.")
    given = {name: record.get(name) for name in FIELDS}
    return task(**given)


def write(rows: Iterable[TaskRow]) -> Iterator[str]:
    """Lines with line ends. Empty fields are left out."""
    for row in rows:
        given = {name: getattr(row, name) for name in FIELDS}
        kept = {name: value for name, value in given.items() if value or name in ("key", "messages", "expected")}
        yield json.dumps(kept, ensure_ascii=False) + "\n"
