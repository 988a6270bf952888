"""A comparison as a file: CSV with a line for each task, JSON with everything."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from django.http import HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase

from apps.evals.comparison import report
from apps.evals.comparison.report import Comparison
from apps.evals.comparison.tasks import Filters, TaskRow, TaskScore, TaskTable
from apps.evals.samples.exporting import cell, csv_line

FORMATS = {"csv": "text/csv; charset=utf-8", "json": "application/json"}
COLUMNS = ("passed", "scored", "masked", "reward")  # fields of each evaluation


def file_of(found: Comparison, given: Filters, format: str) -> HttpResponseBase:
    """The tasks that match the filters; JSON also has the measures, groups and failure modes."""
    headers = {
        "Content-Disposition": f'attachment; filename="comparison-of-{len(found.runs)}.{format}"'
    }
    table = TaskTable(found.tables, given)
    if format == "csv":
        return StreamingHttpResponse(
            _csv(found, table), content_type=FORMATS[format], headers=headers
        )
    body = report.as_json(found) | {"results": [row_json(row) for row in table.rows()]}
    return HttpResponse(
        json.dumps(body, indent=1, allow_nan=False), content_type=FORMATS[format], headers=headers
    )


def _csv(found: Comparison, table: TaskTable) -> Iterator[bytes]:
    names = [f"{at}. {run.model_version}" for at, run in enumerate(found.runs, 1)]
    yield csv_line(
        [
            cell(name)
            for name in (
                "task",
                "change",
                *(f"{name}: {column}" for name in names for column in COLUMNS),
            )
        ]
    )
    for _, number in table.order:
        row = table.row(number)
        yield csv_line(
            [cell(row.key), row.change, *(value for score in row.cells for value in _values(score))]
        )


def _values(score: TaskScore | None) -> tuple[Any, ...]:
    return (
        ("",) * len(COLUMNS)
        if score is None
        else (score.passed, score.n, score.masked, cell_number(score.reward))
    )


def cell_number(value: float | None) -> Any:
    return "" if value is None else round(value, 6)


def row_json(row: TaskRow) -> dict[str, Any]:
    return {
        "key": row.key,
        "change": row.change,
        "cells": [score and _score_json(score) for score in row.cells],
    }


def _score_json(score: TaskScore) -> dict[str, Any]:
    return {
        "task": str(score.task),
        "n": score.n,
        "passed": score.passed,
        "reward": score.reward,
        "masked": score.masked,
    }
