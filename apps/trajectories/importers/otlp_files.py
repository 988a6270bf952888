"""OTLP in files: what a collector's file exporter writes (a request a line), one request as JSON,
or protobuf.

All spans of a file are read together, so that a trace whose spans are in several requests is whole.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from apps.trajectories.decoding import RowError
from apps.trajectories.importers.records import CHUNK, ImportError_, Record, Source
from apps.trajectories.importers.shapes import Row
from apps.trajectories.otlp import (
    DecodeError,
    LogRecord,
    Span,
    assemble,
    decode_logs,
    decode_traces,
    placed,
)

MAX_SPANS = 500_000
MAX_BODY = 256 * 1024 * 1024
KINDS = ("resourceSpans", "resource_spans", "resourceLogs", "resource_logs")


def rows(records: Iterable[Record], name: str) -> Iterator[Row]:
    spans: list[Span] = []
    logs: list[LogRecord] = []
    for position, record in records:
        try:
            if not isinstance(record, dict) or not any(kind in record for kind in KINDS):
                raise (
                    record
                    if isinstance(record, RowError)
                    else RowError("", "expected resourceSpans or resourceLogs")
                )
            body = json.dumps(record).encode()
            traced = (
                decode_traces(body, json=True) if KINDS[0] in record or KINDS[1] in record else None
            )
            logged = (
                decode_logs(body, json=True) if KINDS[2] in record or KINDS[3] in record else None
            )
        except (DecodeError, RowError) as error:
            yield position, error if isinstance(error, RowError) else RowError("", str(error))
            continue
        for found, kept in ((traced, spans), (logged, logs)):
            if found:
                kept += found.items  # type: ignore[arg-type]
                if found.rejected:
                    yield (
                        position,
                        RowError("", f"{found.rejected} spans or records without valid ids"),
                    )
        if len(spans) + len(logs) > MAX_SPANS:
            raise ImportError_(
                f"{name} has more than {MAX_SPANS:,} spans. Split it, whole traces together."
            )
    yield from assembled(spans, logs)


def assembled(spans: list[Span], logs: list[LogRecord]) -> Iterator[Row]:
    runs = assemble(*placed(spans, logs))
    if not runs and spans:
        yield 1, RowError("", f"{len(spans):,} spans, but no model call, agent or tool among them")
    for number, run in enumerate(runs, 1):
        yield number, run.row


def looks_like_protobuf(sample: bytes) -> bool:
    """The first field of a request (1, length-delimited), also behind the length that a collector's
    files begin with.
    """
    return (sample[:1] == b"\x0a" and b"\x00" in sample[:4096]) or (
        sample[4:5] == b"\x0a" and sample[:1] == b"\x00"
    )


def protobuf_rows(source: Source) -> Iterator[Row]:
    """Rows of one request, or of several, each behind four bytes that say its length. Raises
    ImportError_.
    """
    body = bytearray()
    while chunk := source.read(CHUNK):
        body += chunk
        if len(body) > MAX_BODY:
            raise ImportError_(
                f"{source.name} is larger than {MAX_BODY // 2**20} MiB. Split it, whole traces"
                " together."
            )
    if source.stopped:
        raise ImportError_(f"{source.name} is too large to be previewed: protobuf is read whole.")
    spans: list[Span] = []
    logs: list[LogRecord] = []
    for number, part in enumerate(_requests(bytes(body)), 1):
        try:
            found = decode_traces(part, json=False).items
            spans += found
            if not found:
                logs += decode_logs(part, json=False).items
        except DecodeError as error:
            yield number, RowError("", str(error))
    yield from assembled(spans, logs)


def _requests(body: bytes) -> Iterator[bytes]:
    if body[:1] == b"\x0a":
        yield body
        return
    at = 0
    while at + 4 <= len(body):
        size = int.from_bytes(body[at : at + 4], "big")
        yield body[at + 4 : at + 4 + size]
        at += 4 + size
