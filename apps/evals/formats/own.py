"""Flywheel's own JSONL: one TaskRow per line, lossless."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import fields

from apps.evals.formats.rows import Bad, Line, Read, TaskRow, each, only, task

PACKAGE_NAMES = {"key": "id", "messages": "prompt"}
FIELDS = tuple(field.name for field in fields(TaskRow) if field.compare)


def read(lines: Iterable[Line]) -> Iterator[Read]:
    return each(lines, _row)


def _row(record: dict) -> TaskRow:
    """The names of environment packages are taken, too: `id` for `key`, and `prompt`, a text, for
    `messages`.
    """
    for name, packages_name in PACKAGE_NAMES.items():
        if packages_name in record and name in record:
            raise Bad(
                packages_name, f"given besides “{name}”, which means the same. Give one of them."
            )
    called = {name: other if other in record else name for name, other in PACKAGE_NAMES.items()}
    only(
        record,
        (*FIELDS, *PACKAGE_NAMES.values()),
        f"Fields are {', '.join(FIELDS)}; put more below “metadata”.",
    )
    given = {name: record.get(called.get(name, name)) for name in FIELDS}
    if called["messages"] == "prompt" and isinstance(given["messages"], str):
        given["messages"] = [{"role": "user", "content": given["messages"]}]
    return task(**given, names=called)


def write(rows: Iterable[TaskRow]) -> Iterator[str]:
    """Lines with line ends. Empty fields are left out."""
    for row in rows:
        given = {name: getattr(row, name) for name in FIELDS}
        kept = {
            name: value
            for name, value in given.items()
            if value or name in ("key", "messages", "expected")
        }
        yield json.dumps(kept, ensure_ascii=False) + "\n"
