"""Files into a store, a batch at a time, with a count of what became of each row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Protocol

from apps.trajectories.decoding import RowError
from apps.trajectories.importers.detect import OpenFile
from apps.trajectories.importers.records import ImportError_
from apps.trajectories.schema import parse_row

ROWS = 1000
BYTES = 64 * 1024 * 1024
MAX_ERRORS = 20


class Stored(Protocol):
    """The result of storing a batch; `rejected` is [{index, path, error}], `warnings` [{index,
    path, warning}].
    """

    accepted: int
    duplicates: int
    updated: int
    rejected: list[dict]
    warnings: list[dict]


@dataclass
class Checked:
    """A store's answer that stores nothing."""

    accepted: int = 0
    duplicates: int = 0
    updated: int = 0
    rejected: list[dict] = field(default_factory=list)
    warnings: list[dict] = field(default_factory=list)


@dataclass
class Summary:
    """`errors` has the first MAX_ERRORS: {file, position ("line 7"), path, error}; `rejected`
    counts all.

    `warnings` has the first MAX_ERRORS of what is odd in rows that were stored: {file, position,
    path, warning}; `warned` counts all.
    """

    done: int = 0
    accepted: int = 0
    duplicates: int = 0
    updated: int = 0
    rejected: int = 0
    errors: list[dict] = field(default_factory=list)
    warnings: list[dict] = field(default_factory=list)
    warned: int = 0
    formats: dict[str, str] = field(default_factory=dict)

    def warn(self, file: str, position: str, path: str, warning: str, count: int = 1) -> None:
        self.warned += count
        if len(self.warnings) < MAX_ERRORS:
            self.warnings.append(
                {"file": file, "position": position, "path": path, "warning": warning}
            )

    def reject(self, file: str, position: str, path: str, error: str) -> None:
        self.rejected += 1
        if len(self.errors) < MAX_ERRORS:
            self.errors.append(
                {"file": file, "position": position, "path": path, "error": error[:1000]}
            )


def check(rows: Iterable[dict]) -> Checked:
    """Which rows have the form of a row, without storing any."""
    answer = Checked()
    for index, row in enumerate(rows):
        try:
            parsed = parse_row(row)
            answer.accepted += 1
            answer.warnings += [{"index": index} | warning for warning in parsed.warnings]
        except RowError as error:
            answer.rejected.append({"index": index, "path": error.path, "error": error.problem})
    return answer


def run(
    names: Iterable[str],
    opened: Callable[[str], AbstractContextManager[OpenFile]],
    store: Callable[[list[dict]], Stored],
    on_batch: Callable[[Summary, OpenFile], Any] = lambda summary, reading: None,
) -> Summary:
    """Sends every row of every file to `store`, at most ROWS rows or about BYTES at once;
    `on_batch` is called after each batch.

    A file that cannot be read counts as one rejected row; the others continue.
    """
    summary = Summary()
    for name in names:
        try:
            with opened(name) as reading:
                summary.formats[name] = reading.format
                for _ in batches(reading, store, summary):
                    on_batch(summary, reading)
        except ImportError_ as error:
            summary.reject(name, "", "", str(error))
    return summary


def batches(
    reading: OpenFile, store: Callable[[list[dict]], Stored], summary: Summary, skip: int = 0
) -> Iterator[None]:
    """Stores the rows of a file, but the first `skip`, and adds what became of them to `summary`;
    yields after each batch.

    Raises ImportError_ if the file breaks off, with what came before stored.
    """
    batch: list[tuple[str, dict]] = []
    flushed = 0

    def flush() -> None:
        answer = store([row for _, row in batch]) if batch else Checked()
        summary.accepted += answer.accepted
        summary.duplicates += answer.duplicates
        summary.updated += answer.updated
        for item in answer.rejected:
            summary.reject(reading.name, batch[item["index"]][0], item["path"], item["error"])
        for item in answer.warnings:
            summary.warn(reading.name, batch[item["index"]][0], item["path"], item["warning"])
        batch.clear()

    try:
        for position, row in islice(reading.rows, skip, None):
            where = f"{reading.unit} {position}"
            summary.done += 1
            if isinstance(row, RowError):
                summary.reject(reading.name, where, row.path, row.problem)
                continue
            batch.append((where, row))
            if len(batch) >= ROWS or reading.source.read_bytes - flushed > BYTES:
                flushed = reading.source.read_bytes
                flush()
                yield
    except ImportError_:  # what came before the break is kept
        flush()
        _warn_of_file(reading, summary)
        yield
        raise
    flush()
    _warn_of_file(reading, summary)
    yield


def _warn_of_file(reading: OpenFile, summary: Summary) -> None:
    """What only reading the whole file shows: what was mended in it, and values that a mapped field
    could not take.
    """
    source = reading.source
    for item in source.mended:
        summary.warn(
            reading.name, f"{reading.unit} {item['position']}", item["path"], item["warning"]
        )
    summary.warned += source.mendings - len(source.mended)
    for name, found in reading.report.unread.items():
        where = f"{reading.unit} {found.position}"
        summary.warn(reading.name, where, name, found.sentence(name), found.count)
