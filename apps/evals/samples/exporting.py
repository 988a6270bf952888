"""Samples as files, by the filters of the page: JSON Lines with everything, CSV with a line for
each.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from django.db.models import QuerySet
from django.http import StreamingHttpResponse

from apps.core.spreadsheets import as_text
from apps.evals.costs import cost, price_of
from apps.evals.models import EvalRun, Sample

FORMATS = {"jsonl": "application/x-ndjson", "csv": "text/csv; charset=utf-8"}
COLUMNS = (
    "task",
    "index",
    "outcome",
    "bucket",
    "reward",
    "tools",
    "tags",
    "latency_ms",
    "input_tokens",
    "output_tokens",
    "cost_usd",
    "turns",
    "stop_reason",
    "details",
    "output",
)
LONGEST_CELL = 32_000  # what spreadsheets take
AT_ONCE = 200


def outcome_of(sample: Sample) -> str:
    return "masked" if sample.masked else "passed" if sample.success else "failed"


def row_of(sample: Sample, run: EvalRun) -> dict[str, Any]:
    """Everything that is known of a sample, its task with it."""
    task = sample.task
    return {
        "run": str(run.pk),
        "model_version": str(run.model_version),
        "eval_set": str(run.eval_set),
        "split": run.split,
        "task": sample.task_key,
        "task_id": str(sample.task_id),
        "index": sample.index,
        "outcome": outcome_of(sample),
        "bucket": sample.mode,
        "request": task.messages,
        "expected": task.expected,
        "output": sample.output,
        "messages": sample.messages,
        "reward": sample.reward,
        "components": sample.components,
        "details": sample.details,
        "unsafe": sample.unsafe,
        "valid": sample.valid,
        "mask_reason": sample.mask_reason,
        "tools": sample.tools,
        "tags": sample.tags,
        "latency_ms": sample.latency_ms,
        "input_tokens": sample.input_tokens,
        "output_tokens": sample.output_tokens,
        "cost_usd": cost(price_of(run), sample.input_tokens, sample.output_tokens),
        "turns": sample.turns,
        "truncated": sample.truncated,
        "stop_reason": sample.stop_reason,
    }


def file_of(run: EvalRun, rows: QuerySet[Sample], format: str) -> StreamingHttpResponse:
    name = f"samples-{run.eval_set.slug}-v{run.eval_set.version}-{run.split}-{run.model_version}.{format}"  # noqa: E501
    headers = {"Content-Disposition": f'attachment; filename="{quote(name)}"'}
    return StreamingHttpResponse(
        written(run, rows, format), content_type=FORMATS[format], headers=headers
    )


def written(run: EvalRun, rows: QuerySet[Sample], format: str) -> Iterator[bytes]:
    """The file in chunks; memory does not grow with the number of samples."""
    samples = rows.select_related("task").order_by("task_key", "index").iterator(chunk_size=AT_ONCE)
    found = (row_of(sample, run) for sample in samples)
    return _csv(found) if format == "csv" else _json_lines(found)


def _json_lines(rows: Iterator[dict[str, Any]]) -> Iterator[bytes]:
    for row in rows:
        yield json.dumps(row, ensure_ascii=False).encode() + b"\n"


def _csv(rows: Iterator[dict[str, Any]]) -> Iterator[bytes]:
    yield csv_line(COLUMNS)
    for row in rows:
        yield csv_line([cell(row[name]) for name in COLUMNS])


def csv_line(cells: Any) -> bytes:
    out = io.StringIO()
    csv.writer(out).writerow(cells)
    return out.getvalue().encode()


def cell(value: Any) -> Any:
    """Lists joined; long text cut; an output that a spreadsheet would take for a formula made
    text.
    """
    if isinstance(value, list):
        value = "; ".join(map(str, value))
    if not isinstance(value, str):
        return "" if value is None else value
    value = value if len(value) <= LONGEST_CELL else f"{value[:LONGEST_CELL]}…"
    return as_text(value)
