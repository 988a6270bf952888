"""Task files: `sniff` the format, `read` tasks or problems, `write` them. Pure: no Django, no
torch.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import IO

from apps.evals.formats import bfcl, csv_file, datasets, nemo_gym, openai_evals, own
from apps.evals.formats.rows import Line, Read, RowProblem, TaskRow
from apps.evals.formats.verifiers_package import package

READERS: dict[str, Callable[[Iterable[Line]], Iterator[Read]]] = {
    "flywheel": own.read,
    "nemo-gym": nemo_gym.read,
    "bfcl": bfcl.read,
    "openai-evals": openai_evals.read,
    "csv": csv_file.read,
}
WRITERS: dict[str, Callable[[Iterable[TaskRow]], Iterator[str]]] = {
    "flywheel": own.write,
    "nemo-gym": nemo_gym.write,
    "csv": csv_file.write,
}
HEAD = 64 * 1024
FORMATS = (*READERS, *datasets.FORMATS)
__all__ = [
    "FORMATS",
    "READERS",
    "WRITERS",
    "RowProblem",
    "TaskRow",
    "format_of",
    "package",
    "read",
    "sniff",
    "write",
]


def format_of(file: IO[bytes], name: str) -> str | None:
    """The format of a file by its content; None if no format matches."""
    head = file.read(HEAD)
    file.seek(0)
    found = sniff(name, head)
    if found in (None, "csv") and (dataset := datasets.recognised(file, name)):
        return dataset
    return found


def sniff(name: str, head: str | bytes) -> str | None:
    """The format of a file by its name and first lines; None if no format matches."""
    text = (head.decode("utf-8", "replace") if isinstance(head, bytes) else head).removeprefix(
        "\ufeff"
    )
    line = next((line for line in re.split(r"[\r\n]", text) if line.strip()), "")
    if line.lstrip().startswith("{"):
        return _by_fields(line)
    try:
        cells = {cell.strip().casefold() for cell in next(csv.reader([line]), [])}
    except csv.Error:
        return None
    return "csv" if "prompt" in cells or name.casefold().endswith(".csv") else None


def _by_fields(line: str) -> str | None:
    try:
        keys = set(json.loads(line))
    except (ValueError, RecursionError):
        return None
    if nemo_gym.ASKED in keys:
        return "nemo-gym"
    if {"question", "function"} <= keys:
        return "bfcl"
    if "input" in keys and "ideal" in keys:
        return "openai-evals"
    return "flywheel" if {"messages", "expected"} <= keys else None


def read(
    format: str, lines: Iterable[Line], answers: Iterable[Line] | None = None
) -> Iterator[Read]:
    """Yields a TaskRow or a RowProblem for each row; `answers` is BFCL's second file.

    A row is read completely or is a problem; a repeated key is a problem. A file without rows is
    one problem. Raises ValueError for an unknown format, or if the format has no `answers`.
    """
    if format not in FORMATS:
        raise ValueError(
            f"Unknown task file format “{format}”. Known formats: {', '.join(FORMATS)}."
        )
    if answers is not None and format != "bfcl":
        raise ValueError(f"An answers file is only used with the format bfcl, not with {format}.")
    if format in datasets.FORMATS:
        return _keyed(datasets.read(format, lines))
    return _keyed(bfcl.read(lines, answers) if format == "bfcl" else READERS[format](lines))


def _keyed(found: Iterable[Read]) -> Iterator[Read]:
    """The same, without repeated keys."""
    keys: set[str] = set()
    nothing = True
    for row in found:
        nothing = False
        if isinstance(row, TaskRow) and row.key in keys:
            yield RowProblem(
                row.line, row.key_name, f"“{row.key}” or its request occurs twice. Remove one."
            )
            continue
        if isinstance(row, TaskRow):
            keys.add(row.key)
        yield row
    if nothing:
        yield RowProblem(1, "", "the file has no rows. Write one task per line.")


def write(format: str, rows: Iterable[TaskRow]) -> Iterator[str]:
    """Lines of a file. Raises ValueError for a format that cannot be written."""
    if format not in WRITERS:
        raise ValueError(f"Unknown export format “{format}”. Known formats: {', '.join(WRITERS)}.")
    return WRITERS[format](rows)
