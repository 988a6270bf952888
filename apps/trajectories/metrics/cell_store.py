"""Writes the cells of the roll-ups: part of the digest's transaction, under ProjectLock.COUNTS."""

from __future__ import annotations

import json
from collections import defaultdict
from datetime import datetime

from django.db import connection

from apps.core.postgres import array
from apps.trajectories.metrics import sketch
from apps.trajectories.metrics.cells import COUNTED, SKETCHED, Cell
from apps.trajectories.models import MetricCell
from apps.trajectories.rollups import Counts

Key = tuple[str, str, str, str]  # unit, time, dimension, value
KEY = ("unit", "at", "dimension", "value")
AT_ONCE = 1_000


def add(project: int, counts: Counts) -> None:
    """Adds the cells to those of their hour and of their day. Sketches are added here and not in
    SQL, which has no sum of them: the lock keeps others from writing what is read."""
    found: defaultdict[Key, Cell] = defaultdict(Cell)
    for (at, dimension, value), cell in counts.cells.items():
        midnight = datetime.fromisoformat(at).replace(hour=0).isoformat()
        found["hour", at, dimension, value].merge(cell)
        found["day", midnight, dimension, value].merge(cell)
    keys = sorted(found)
    for some in (keys[first : first + AT_ONCE] for first in range(0, len(keys), AT_ONCE)):
        _add(project, {key: found[key] for key in some})


def _add(project: int, cells: dict[Key, Cell]) -> None:
    given = [array(column) for column in zip(*cells, strict=True)]
    names = ", ".join(f"cell.{name}" for name in (*COUNTED, *SKETCHED))
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT given.n, {names} FROM unnest(%s::text[], %s::timestamptz[], %s::text[],"
            " %s::text[]) WITH ORDINALITY AS given(unit, at, dimension, value, n) JOIN"
            " trajectories_metriccell AS cell ON cell.project_id = %s AND (cell.unit, cell.at,"
            " cell.dimension, cell.value) = (given.unit, given.at, given.dimension, given.value)",
            [*given, project],
        )
        found, rows = list(cells.values()), cursor.fetchall()
    for n, *columns in rows:
        found[n - 1].merge(_read(columns))
    MetricCell.objects.bulk_create(
        [
            MetricCell(project_id=project, **dict(zip(KEY, key, strict=True)), **_columns(cell))
            for key, cell in cells.items()
        ],
        update_conflicts=True,
        unique_fields=["project", "unit", "dimension", "at", "value"],
        update_fields=[*COUNTED, *SKETCHED],
    )


def _columns(cell: Cell) -> dict:
    return {name: getattr(cell, name) for name in COUNTED} | {
        name: sketch.as_json(getattr(cell, name)) for name in SKETCHED
    }


def _read(columns: list) -> Cell:
    counted = len(COUNTED)
    return Cell.from_list([*columns[:counted], *(json.loads(item) for item in columns[counted:])])
