"""Which format a file has, and its rows."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, islice

from apps.trajectories.decoding import RowError
from apps.trajectories.importers.choices import objects, who_asks
from apps.trajectories.importers.encodings import ENCODINGS
from apps.trajectories.importers.formats import FORMATS, belongs_elsewhere, recognised
from apps.trajectories.importers.guess import LOOKED_AT, guess
from apps.trajectories.importers.mapping import Mapping, MappingError, Report, check, rows, settled
from apps.trajectories.importers.otlp_files import looks_like_protobuf, protobuf_rows
from apps.trajectories.importers.records import (
    ImportError_,
    Readable,
    Record,
    Source,
    cleaned,
    records,
)
from apps.trajectories.importers.shapes import Row, with_words
from apps.trajectories.importers.tables import (
    PARQUET,
    SHEETS,
    csv_records,
    looks_like_csv,
    parquet_records,
    sheet_records,
)
from apps.trajectories.importers.yaml_files import looks_like_yaml, yaml_records

MAPPED = "mapped"
TABLE_NAME = re.compile(r"\.(csv|tsv|txt)(\.gz)?$")
FIRST_RECORDS = 50  # of a file with records of many kinds, among which one says the format
HEAD_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True)
class OpenFile:
    """A file being read: `rows` are (position, raw row or RowError), positions count `unit`s
    ("line", "item" …) from 1.

    `head` are the first records, where the format was detected or is “mapped”. Of the format
    “mapped” there is also a `mapping` (`guessed`: nobody has confirmed it; `problem`: why it gives
    no rows), and a `report` that fills as rows are read.
    """

    name: str
    format: str
    unit: str
    rows: Iterator[Row]
    source: Source
    mapping: Mapping | None = None
    guessed: bool = False
    problem: str = ""
    head: list[Record] = field(default_factory=list)
    report: Report = field(default_factory=Report)


def read(
    file: Readable,
    name: str,
    format: str = "auto",
    limit: int | None = None,
    stop: bool = False,
    mapping: Mapping | None = None,
    encoding: str = "",
) -> OpenFile:
    """Starts to read; at most `limit` bytes, unpacked (see Source). Raises ImportError_, here and
    while rows are taken.

    With a `mapping`, or if no format is known, the records are mapped (see `mapping`).
    """
    if encoding not in ("", *ENCODINGS):
        raise ImportError_(
            f"Unknown encoding “{encoding[:40]}”. Available encodings: {', '.join(ENCODINGS)}."
        )
    source = Source(file, name, limit, stop, encoding)
    if format not in ("auto", MAPPED, *FORMATS):
        raise ImportError_(f"Unknown format “{format}”. Available formats: {', '.join(FORMATS)}.")
    if looks_like_protobuf(source.sample):
        return OpenFile(name, "otlp", "run", protobuf_rows(source), source)
    unit, found = opened(source)
    format = MAPPED if mapping else format
    head: list[Record] = []
    if format in ("auto", MAPPED):
        head = _head(found, source)
        if source.columns and not head and mapping is None:
            raise ImportError_(f"{name} has a header line but no rows.")
        found = chain(head, found)
        format = format if format == MAPPED else _format_of(source, name, unit, head)
    if format != MAPPED:
        known = FORMATS[format]
        read_rows = known.read(found, name)
        read_rows = read_rows if known.may_be_silent else with_words(read_rows)
        return OpenFile(name, format, unit, read_rows, source, head=head)
    guessed, report = mapping is None, Report()
    mapping = mapping or guess([record for _, record in head if isinstance(record, dict)])
    try:
        check(mapping, _columns(head))
        mapping = settled(mapping, objects(head, mapping))
    except MappingError as error:
        return OpenFile(
            name, format, unit, iter(()), source, mapping, guessed, str(error), head, report
        )
    if guessed and (problem := who_asks(head, mapping)):
        return OpenFile(
            name, format, unit, iter(()), source, mapping, guessed, problem, head, report
        )
    mapped = with_words(rows(found, name, mapping, report))
    return OpenFile(name, format, unit, mapped, source, mapping, guessed, "", head, report)


def opened(source: Source) -> tuple[str, Iterator[Record]]:
    """What positions count, and the records: of JSON, YAML, CSV, a spreadsheet, or Parquet. Raises
    ImportError_ for anything else.
    """
    sample = source.sample
    if sample.startswith(b"%PDF"):
        raise ImportError_(f"{source.name} is a PDF. Save it as CSV, JSON Lines, or Parquet.")
    if sample.startswith(PARQUET):
        return "row", cleaned(parquet_records(source, source.limit), source)
    if sample.startswith(SHEETS):
        return "row", cleaned(sheet_records(source), source)
    begin = sample.removeprefix(codecs.BOM_UTF8).lstrip()[:1]
    if looks_like_yaml(source.name, sample):
        return "item", cleaned(yaml_records(source), source)
    if begin not in (b"", b"{", b"[") and (
        TABLE_NAME.search(source.name.lower()) or looks_like_csv(sample)
    ):
        return "line", cleaned(csv_records(source), source)
    return records(source)


def _head(found: Iterator[Record], source: Source) -> list[Record]:
    head = []
    for record in islice(found, LOOKED_AT):
        head.append(record)
        if source.read_bytes > HEAD_BYTES:
            break
    return head


def _columns(head: list[Record]) -> set[str]:
    return {name for _, record in head if isinstance(record, dict) for name in record}


def _format_of(source: Source, name: str, unit: str, head: list[Record]) -> str:
    """A known format, or “mapped”. A table's cells are texts: only exports that are known to be
    tables are one there.
    """
    known = [record for _, record in head if isinstance(record, dict) and record]
    first = next(iter(known), None)
    if first is None and source.columns:
        return MAPPED
    if first is None:
        problem = next((f" ({record})" for _, record in head if isinstance(record, RowError)), "")
        raise ImportError_(f"{name} has no record with fields in its first part{problem}.")
    found = recognised(known[:FIRST_RECORDS])
    if found is None and (elsewhere := belongs_elsewhere(first)):
        raise ImportError_(f"{name} is {elsewhere}")
    is_table = bool(source.columns)
    return found.name if found and (found.is_table or not is_table) else MAPPED
