"""Writes the cells of the roll-ups: part of the digest's transaction, under ProjectLock.COUNTS."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime
from typing import Any

import msgspec
from django.db import connection

from apps.core.postgres import array, unnested
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
    columns = (*KEY, *COUNTED, *SKETCHED)
    source, values = unnested(
        MetricCell, [[*key, *_columns(cell)] for key, cell in cells.items()], columns
    )
    changed = ", ".join(f"{name} = EXCLUDED.{name}" for name in (*COUNTED, *SKETCHED))
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO trajectories_metriccell (project_id, {', '.join(columns)}) SELECT %s,"
            f" given.* FROM {source} ON CONFLICT (project_id, unit, dimension, at, value) DO UPDATE"
            f" SET {changed}",
            [project, *values],
        )


def _columns(cell: Cell) -> list[Any]:
    return [getattr(cell, name) for name in COUNTED] + [
        msgspec.json.encode(sketch.as_json(getattr(cell, name))).decode() for name in SKETCHED
    ]


def _read(columns: list) -> Cell:
    counted = len(COUNTED)
    sketches = map(msgspec.json.decode, columns[counted:])
    return Cell.from_list([*columns[:counted], *sketches])
