"""CSV, spreadsheets and Parquet as records: one object a row, by the names of the columns."""

from __future__ import annotations

import codecs
import csv
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from threading import Timer
from typing import Any

from apps.trajectories.decoding import RowError
from apps.trajectories.importers.records import CHUNK, MAX_RECORD, ImportError_, Record, Source

PARQUET = b"PAR1"
DELIMITERS = ",;\t|"
HINT = re.compile(rf"sep=([{DELIMITERS}])\r?\n", re.IGNORECASE)
MAX_COLUMNS = 2_000
TITLES = 12  # lines in which a header is looked for below titles
READER_MEMORY_MIB = 2_048
PARQUET_READER = [sys.executable, "-m", "workers.read_parquet"]
CRASHED = "{} cannot be read as Parquet: its reader crashed."
SHEETS = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0")  # xlsx, xlsb and ods; xls
SHEET_S = 120.0
SHEET_READER = [sys.executable, "-m", "workers.read_sheet"]
LINE_END_IN_CELL = "\u2028"  # what the reader writes, so that each row of a sheet is one line


def csv_records(source: Source) -> Iterator[Record]:
    """Rows by the header's names; positions are lines. A row with more cells than the header is
    refused.

    One with fewer cells is noted, and so are a header that is repeated and a title above the
    header, which are skipped. A line that is not UTF-8, in a file that otherwise is, is read as
    Windows-1252, which is noted. Raises ImportError_ if there is no header.
    """
    lines = _Lines(source)
    csv.field_size_limit(MAX_RECORD)
    reader = csv.reader(lines, delimiter=delimiter_of(source.sample), strict=True)
    header = _header(reader, source)
    names = _names(header, source)
    source.columns = names
    while True:
        begin = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield begin, _broken(error, reader.line_num - begin)
            continue
        if not any(cell.strip() for cell in cells):
            continue
        if cells == header:
            source.note(begin, [{"path": "", "warning": "repeats the header: it was skipped"}])
        elif any(cells[len(names) :]):
            yield (
                begin,
                RowError(
                    "", f"has {len(cells)} cells, the header has {len(names)}: is a quote missing?"
                ),
            )
        else:
            if len(cells) < len(names):
                warning = (
                    f"has {len(cells)} of the header's {len(names)} cells: the others are empty"
                )
                source.note(begin, [{"path": "", "warning": warning}])
            yield (
                begin,
                {name: cell for name, cell in zip(names, cells, strict=False) if cell != ""},
            )


def _broken(error: csv.Error, more: int) -> RowError:
    problem = str(error)
    if "field limit" in problem or "unexpected end" in problem:
        problem = "a quote that is opened here is not closed"
    elif "expected after" in problem:
        problem = "a quote inside a quoted cell is not doubled"
    return RowError(
        "",
        f"not CSV: {problem}"
        + (f"; this and {more:,} more lines were not read" if more > 0 else ""),
    )


def _header(reader: Iterator[list[str]], source: Source) -> list[str]:
    """The cells of the first line that is not empty, nor for Excel (“sep=;”), nor a title."""
    titles = _titles(source.sample)
    header: list[str] = []
    try:
        for number, cells in enumerate(reader, 1):
            if titles and (filled := _filled(cells)) == titles[:1]:
                warning = f"“{filled[0][:80]}” is a title above the header: it was skipped"
                source.note(number, [{"path": "", "warning": warning}])
                titles.pop(0)
            elif _filled(cells) and not _is_hint(cells):
                header = cells
                break
    except csv.Error as error:
        raise ImportError_(f"{source.name} is not CSV: {error}.") from error
    if not header:
        raise ImportError_(f"{source.name} has no header line.")
    if len(header) > MAX_COLUMNS:
        raise ImportError_(
            f"{source.name} has {len(header):,} columns; at most {MAX_COLUMNS:,} are read."
        )
    return header


def _filled(cells: list[str]) -> list[str]:
    return [said for cell in cells if (said := cell.strip())]


def _titles(sample: bytes) -> list[str]:
    """What stands alone in the lines above a header: in a line of otherwise empty cells, or above
    an empty line.
    """
    lines = [
        _decoded(line)
        for line in sample.removeprefix(codecs.BOM_UTF8).splitlines(keepends=True)[:TITLES]
    ]
    try:
        rows = [
            cells
            for cells in csv.reader(lines, delimiter=delimiter_of(sample))
            if not _is_hint(cells or [""])
        ]
    except csv.Error:
        return []
    titles: list[str] = []
    for at, cells in enumerate(rows):
        filled = _filled(cells)
        if len(filled) > 1:
            first = next((row for row in rows[at + 1 :] if _filled(row)), [])
            unlike_values = len(set(filled)) == len(filled) and not any(
                cell[0].isdigit() for cell in filled
            )
            return titles if unlike_values and len(first) == len(cells) else []
        if filled and len(cells) < 2 and _filled(next(iter(rows[at + 1 :]), [])):
            return []
        titles += filled
    return []


def _decoded(line: bytes) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError:
        return line.decode("cp1252", "replace")


def _is_hint(cells: list[str]) -> bool:
    """Whether these are the cells of “sep=;”, split at the delimiter that it names."""
    return cells[0].lower() == "sep=" and not any(cells[1:])


def _names(header: list[str], source: Source) -> list[str]:
    """The names, each once: the second `name` is `name (2)`, an empty one `column 3`."""
    names: list[str] = []
    seen: Counter[str] = Counter()
    for number, cell in enumerate(header, 1):
        name = cell.strip()[:200] or f"column {number}"
        seen[name] += 1
        if seen[name] > 1:
            again = f"{name} ({seen[name]})"
            source.note(
                1,
                [
                    {
                        "path": name,
                        "warning": f"column {number} has the name of another: it is “{again}” here",
                    }
                ],
            )
            name = again
        names.append(name)
    return names


def delimiter_of(sample: bytes) -> str:
    """The one that a first line “sep=;” names, else the most frequent outside quotes in the header.

    Where an empty line follows, the first line may be a title: the line below decides unless it has
    fewer.
    """
    head = sample.decode("utf-8", "replace").lstrip("\ufeff\r\n ")
    if found := HINT.match(head):
        return found[1]
    counts = _delimiters(head)
    _, *below = re.split(r"\r?\n[ \t]*\r?\n", head[:65536], maxsplit=1)
    if below and max((after := _delimiters(below[0].lstrip())).values(), default=0) >= max(
        counts.values(), default=0
    ):
        counts = after
    return max(DELIMITERS, key=lambda one: counts[one])


def _delimiters(head: str) -> Counter[str]:
    """Those in the first line, outside quotes."""
    counts: Counter[str] = Counter()
    quoted = False
    for letter in head:
        if letter == '"':
            quoted = not quoted
        elif letter == "\n" and not quoted:
            break
        elif letter in DELIMITERS and not quoted:
            counts[letter] += 1
    return counts


class _Lines:
    """The lines of a source as text, with their ends, as `csv.reader` wants them."""

    def __init__(self, source: Source) -> None:
        self._source, self._number, self._other = source, 0, False

    def __iter__(self) -> Iterator[str]:
        held = b""
        while chunk := self._source.read(CHUNK):
            *lines, held = (held + chunk).splitlines(keepends=True)
            if held.endswith(b"\n"):
                lines, held = [*lines, held], b""
            if len(held) > MAX_RECORD:
                raise ImportError_(
                    f"{self._source.name} has a line that is longer than {MAX_RECORD // 2**20} MiB."
                )
            for line in lines:
                yield self._text(line)
        if held:
            yield self._text(held)

    def _text(self, line: bytes) -> str:
        self._number += 1
        if self._number == 1:
            line = line.removeprefix(codecs.BOM_UTF8)
        try:
            return line.decode()
        except UnicodeDecodeError:
            if not self._other:
                warning = "is not UTF-8: it and other such lines were read as Windows-1252"
                self._source.note(self._number, [{"path": "", "warning": warning}])
            self._other = True
            return line.decode("cp1252", "replace")


def parquet_records(source: Source, limit: int | None) -> Iterator[Record]:
    """Rows of a Parquet file, read by a process of its own (`workers.read_parquet`). Raises
    ImportError_.

    At most `limit` bytes of JSON come out of it: a small file may hold the same value a thousand
    million times.
    """
    with _reader(source, PARQUET_READER, ".parquet") as process:
        yield from _parquet_rows(process.stdout or (), source, limit)
        if not source.stopped and process.wait():
            raise ImportError_(CRASHED.format(source.name))


def sheet_records(source: Source) -> Iterator[Record]:
    """Rows of the first sheet with cells of a spreadsheet, read as CSV that a process of its own
    makes of it (`workers.read_sheet`). Raises ImportError_.
    """
    with _reader(source, SHEET_READER, "") as process:
        first = _first_line(process)
        if "error" in first:
            raise ImportError_(f"{source.name} cannot be read as a spreadsheet: {first['error']}.")
        source.switch(process.stdout)  # type: ignore[arg-type]
        if others := first["others"]:
            more = ", ".join(f"“{name[:60]}”" for name in others[:5])
            warning = f"is the sheet “{first['sheet'][:60]}”; not read: {more}"
            source.note(1, [{"path": "", "warning": warning}])
        for position, record in csv_records(source):
            if isinstance(record, dict):
                record = {
                    name: cell.replace(LINE_END_IN_CELL, "\n") for name, cell in record.items()
                }
            yield position, record
        if not source.stopped and process.wait():
            raise ImportError_(
                f"{source.name} cannot be read as a spreadsheet: its reader crashed."
            )


def _first_line(process: subprocess.Popen) -> dict[str, Any]:
    """What the reader says first; without memory it may hang, and is ended."""
    patience = Timer(SHEET_S, process.kill)
    patience.daemon = True
    patience.start()
    try:
        return json.loads(process.stdout.readline())  # type: ignore[union-attr]
    except ValueError:
        return {"error": "its reader crashed"}
    finally:
        patience.cancel()


@contextmanager
def _reader(source: Source, command: list[str], suffix: str) -> Iterator[subprocess.Popen]:
    """A process that prints what is in the file. Raises ImportError_."""
    with tempfile.NamedTemporaryFile(prefix="flywheel-", suffix=suffix) as file:
        while chunk := source.read(CHUNK):
            file.write(chunk)
        file.flush()
        if source.stopped:
            raise ImportError_(
                f"{source.name} is too large to be previewed: such a file is read from its end."
            )
        command = [*command, file.name, str(READER_MEMORY_MIB)]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as process:
            try:
                yield process
            finally:
                process.kill()


def _parquet_rows(lines: Iterable[bytes], source: Source, limit: int | None) -> Iterator[Record]:
    names: list[str] | None = None
    out = number = 0
    for line in lines:
        out += len(line)
        if limit is not None and out > limit:
            if source.may_stop:
                source.stopped = True
                return
            raise ImportError_(
                f"{source.name} unpacks to more than {limit // 2**20} MiB. Split it."
            )
        if not line.endswith(b"\n"):
            raise ImportError_(CRASHED.format(source.name))
        value = json.loads(line)
        if isinstance(value, dict):
            raise ImportError_(f"{source.name} cannot be read as Parquet: {value['error']}.")
        if names is None:
            names = value
            continue
        number += 1
        if len(line) > MAX_RECORD:
            yield number, RowError("", f"longer than {MAX_RECORD // 2**20} MiB")
        else:
            yield (
                number,
                {name: item for name, item in zip(names, value, strict=True) if item is not None},
            )
    if names is None:
        raise ImportError_(CRASHED.format(source.name))


def looks_like_csv(sample: bytes) -> bool:
    """Whether this is text whose first lines all have the same delimiters, or at least a header of
    words.
    """
    head = sample[:65536].decode("utf-8", "replace").lstrip("\ufeff")
    if sum(letter < " " and letter not in "\r\n\t\f" for letter in head) * 50 > len(head):
        return False
    delimiter = delimiter_of(sample)
    return delimiter in head.split("\n", 1)[0]
