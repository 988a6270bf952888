"""Which format a file has, and its rows."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice

from apps.trajectories.importers import (
    atif,
    chat,
    langfuse,
    langsmith,
    nemo_gym,
    nvidia_flywheel,
    otlp_files,
    sharegpt,
    swe_agent,
    tau_bench,
)
from apps.trajectories.importers.choices import objects, who_asks
from apps.trajectories.importers.guess import LOOKED_AT, guess
from apps.trajectories.importers.mapping import Mapping, MappingError, Report, check, rows, settled
from apps.trajectories.importers.otlp_files import looks_like_protobuf, protobuf_rows
from apps.trajectories.importers.paths import loose
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
    ARCHIVES,
    PARQUET,
    csv_records,
    looks_like_csv,
    parquet_records,
)
from apps.trajectories.importers.turns import CONTENT_KEYS

READERS: dict[str, Callable[[Iterable[Record], str], Iterator[Row]]] = {
    "chat": chat.rows,
    "tau-bench": tau_bench.rows,
    "nvidia-flywheel": nvidia_flywheel.rows,
    "nemo-gym": nemo_gym.rows,
    "langfuse": langfuse.rows,
    "openai-sft": chat.sft_rows,
    "swe-agent": swe_agent.rows,
    "langsmith": langsmith.rows,
    "sharegpt": sharegpt.rows,
    "history": sharegpt.history_rows,
    "atif": atif.rows,
    "otlp": otlp_files.rows,
}
MAY_BE_SILENT = ("langfuse", "langsmith", "otlp")  # runs whose sender captured no content
MAPPED = "mapped"
FORMATS = tuple(READERS)
TABLE = re.compile(r"\.(csv|tsv|txt)(\.gz)?$")
HEAD_BYTES = 16 * 1024 * 1024
MESSAGE_KEYS = {
    "role",
    "content",
    "name",
    "tool_calls",
    "tool_call_id",
    "refusal",
    "reasoning_content",
    "function_call",
    "audio",
    "annotations",
}
TOKEN = re.compile(rb'"((?:[^"\\]|\\.)*)"|[{}\[\]:,]')
LINES_LOOKED_AT = 50
LOOKED_AT_TURNS = 20
CALLS = ("tool_calls", "tool_responses", "function_call")


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
) -> OpenFile:
    """Starts to read; at most `limit` bytes, unpacked (see Source). Raises ImportError_, here and
    while rows are taken.

    With a `mapping`, or if no format is known, the records are mapped (see `mapping`).
    """
    source = Source(file, name, limit, stop)
    if format not in ("auto", MAPPED, *READERS):
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
        read_rows = READERS[format](found, name)
        return OpenFile(
            name,
            format,
            unit,
            read_rows if format in MAY_BE_SILENT else with_words(read_rows),
            source,
            head=head,
        )
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
    """What positions count, and the records: of JSON, CSV, or Parquet. Raises ImportError_ for
    anything else.
    """
    sample = source.sample
    for mark, what in ARCHIVES.items():
        if sample.startswith(mark):
            raise ImportError_(
                f"{source.name} is {what}. Save it as CSV, JSON Lines, or Parquet, or unpack it."
            )
    if sample.startswith(PARQUET):
        return "row", cleaned(parquet_records(source, source.limit), source)
    begin = sample.removeprefix(codecs.BOM_UTF8).lstrip()[:1]
    if begin not in (b"", b"{", b"[") and (
        TABLE.search(source.name.lower()) or looks_like_csv(sample)
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
    first = next((record for _, record in head if isinstance(record, dict) and record), {})
    keys = set(first) if first else first_keys(source.sample)
    found = next((format for format, fits in RULES if fits(keys, name, first)), MAPPED)
    if (
        unit == "line"
        and source.sample.lstrip(codecs.BOM_UTF8)[:1] != b"{"
        and found not in ("langsmith", "langfuse")
    ):
        return MAPPED
    if found == MAPPED and not keys:
        raise ImportError_(f"{name} has no record with fields in its first part.")
    return found


def detect(sample: bytes, name: str) -> str:
    """The format, by the fields of the first record in the file's first bytes. Raises
    ImportError_.
    """
    keys = first_keys(sample)
    for format, fits in RULES:
        if fits(keys, name, {}):
            return format
    found = ", ".join(sorted(keys)[:12]) or "none"
    raise ImportError_(
        f"{name} has no known format (fields of its first record: {found}). Choose the format"
        " yourself."
    )


def _langfuse(keys: set[str], name: str, record: dict) -> bool:
    owner = {"traceId", "trace_id", "userId", "sessionId", "session_id", "user_id"}
    exported = {
        "timestamp",
        "createdAt",
        "release",
        "environment",
        "bookmarked",
        "public",
        "projectId",
        "htmlPath",
        "totalCost",
        "scores",
    }
    return (
        "observations" in keys
        or {"data", "meta"} <= keys
        or bool({"traceId", "trace_id"} & keys and "type" in keys)
        or ({"input", "output"} <= keys and bool(owner & keys) and len(exported & keys) > 1)
    )


def _langsmith(keys: set[str], name: str, record: dict) -> bool:
    inside = record.get("runs") if isinstance(record.get("runs"), list) else record.get("data")
    first = inside[0] if isinstance(inside, list) and inside else {}
    return "run_type" in keys or (isinstance(first, dict) and "run_type" in first)


def _has_turns(record: dict, *names: str) -> bool:
    """Whether there is a list of turns under one of these names; also if the record is too long to
    be seen completely.

    Turns say who speaks: an object with a `source` or `type` alone may be anything.
    """
    value = next((loose(record[name]) for name in names if name in record), None)
    turns = (
        [one for one in value[:LOOKED_AT_TURNS] if isinstance(one, dict)]
        if isinstance(value, list)
        else []
    )
    return not record or any(
        {"from", "role", "source", "type"} & set(one) and {*CONTENT_KEYS, *CALLS} & set(one)
        for one in turns
    )


def _are_of_chat(messages: object) -> bool:
    """Messages that say a role as such; lists of the same name in helpdesks' exports do not."""
    turns = messages[:LOOKED_AT_TURNS] if isinstance(messages, list) else None
    objects_ = [one for one in turns or () if isinstance(one, dict)]
    return turns is not None and (
        not objects_ or any({"role", "lc"} & one.keys() for one in objects_)
    )


def _history(keys: set[str], name: str, record: dict) -> bool:
    listed = bool({"history", "chat_history", "conversation"} & keys) and _has_turns(
        record, "history", "chat_history", "conversation"
    )
    autogen = {"source", "content", "type"} <= keys and sharegpt.is_event(
        record
    )  # a list of AutoGen's events
    return listed or autogen or ({"role", "content"} <= keys and keys <= MESSAGE_KEYS)


def _swe(keys: set[str], name: str, record: dict) -> bool:
    return "trajectory_format" in keys or bool(
        ("trajectory" in keys or ".traj" in name)
        and {"history", "info", "environment", "trajectory"} & keys
    )


RULES: tuple[tuple[str, Callable[[set[str], str, dict], bool]], ...] = (
    ("otlp", lambda keys, name, record: bool(keys & set(otlp_files.KINDS))),
    (
        "atif",
        lambda keys, name, record: (
            "steps" in keys and bool(keys & {"schema_version", "final_metrics"}) and "agent" in keys
        ),
    ),
    ("nemo-gym", lambda keys, name, record: "responses_create_params" in keys),
    (
        "nvidia-flywheel",
        lambda keys, name, record: (
            {"request", "response"} <= keys and isinstance(record.get("request", {}), dict)
        ),
    ),
    ("tau-bench", lambda keys, name, record: "traj" in keys and bool({"task_id", "reward"} & keys)),
    ("swe-agent", _swe),
    ("langsmith", _langsmith),
    (
        "openai-sft",
        lambda keys, name, record: (
            "messages" in keys and bool({"parallel_tool_calls", "functions"} & keys)
        ),
    ),
    (
        "chat",
        lambda keys, name, record: "messages" in keys and _are_of_chat(record.get("messages", [])),
    ),
    (
        "sharegpt",
        lambda keys, name, record: "conversations" in keys and _has_turns(record, "conversations"),
    ),
    ("history", _history),
    ("openai-sft", lambda keys, name, record: keys - {"id"} == {"prompt", "completion"}),
    ("langfuse", _langfuse),
)


def first_keys(sample: bytes) -> set[str]:
    """The fields of the first record, also where the sample ends within it."""
    for line in sample.splitlines()[:LINES_LOOKED_AT]:
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict) and value:
            return set(value)
    return _scanned(sample)


def _scanned(sample: bytes) -> set[str]:
    keys: set[str] = set()
    depth, base, last = 0, 0, None
    for token in TOKEN.finditer(sample):
        mark = token[0]
        if mark in (b"{", b"["):
            depth += 1
            base = depth if not base and mark == b"{" else base
        elif mark in (b"}", b"]"):
            depth -= 1
            if base and depth < base:
                break
        elif mark == b":" and depth == base and last is not None:
            keys.add(last.decode("utf-8", "replace"))
        last = token[1]
    return keys
