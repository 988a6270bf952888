"""Monthly partitions of the tables whose rows carry a time in their id."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from django.db import connection, transaction
from django.db.migrations import CreateModel
from django.utils import timezone

from apps.trajectories.ids import OLDEST, floor_of, month_of, next_month

TABLES = {
    "trajectories_trajectory": "id",
    "trajectories_content": "trajectory_id",
    "trajectories_searchtext": "trajectory_id",
}
LOCK = 0x666C7977  # the advisory lock of those who make partitions
AHEAD = timedelta(days=45)

_known: set[datetime | None] = set()


def ensure(months: Iterable[datetime | None]) -> None:
    """Makes the partitions of these months where they are missing. Must run in a transaction, before its first write."""
    missing = {month for month in months if month not in _known}
    if not missing:
        return
    with connection.cursor() as cursor:
        for month in sorted(missing, key=lambda month: month or OLDEST):
            if not _exists(cursor, month):
                cursor.execute("SELECT pg_advisory_xact_lock(%s)", [LOCK])
                if not _exists(cursor, month):
                    _make(cursor, month)
    transaction.on_commit(lambda: _known.update(missing))


def ensure_ahead() -> None:
    """The partitions of now and of the weeks to come, so that no request has to make one."""
    now = timezone.now()
    with transaction.atomic():
        ensure({None, month_of(now), month_of(now + AHEAD)})


def suffix(month: datetime | None) -> str:
    return f"{month:%Y_%m}" if month else "older"


def _exists(cursor: Any, month: datetime | None) -> bool:
    cursor.execute("SELECT to_regclass(%s)", [f"trajectories_searchtext_{suffix(month)}"])
    return cursor.fetchone()[0] is not None


def _make(cursor: Any, month: datetime | None) -> None:
    """A table of its own that is attached when it is whole: readers of the others are not held up."""
    bounds = (
        f"FROM ('{floor_of(month)}') TO ('{floor_of(next_month(month))}')"
        if month
        else f"FROM (MINVALUE) TO ('{floor_of(OLDEST)}')"
    )
    for table in TABLES:
        name = f"{table}_{suffix(month)}"
        cursor.execute(f"CREATE TABLE {name} (LIKE {table} INCLUDING ALL)")
        if table == "trajectories_content":
            cursor.execute(f"ALTER TABLE {name} ALTER data SET STORAGE EXTERNAL")
        cursor.execute(f"ALTER TABLE {table} ATTACH PARTITION {name} FOR VALUES {bounds}")


class CreatePartitionedModel(CreateModel):
    """Migration operation: a model's table, partitioned by ranges of a column."""

    def __init__(self, *args: Any, partition_by: str, **named: Any) -> None:
        super().__init__(*args, **named)
        self.partition_by = partition_by

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        plain = schema_editor.sql_create_table
        schema_editor.sql_create_table = f"{plain} PARTITION BY RANGE ({self.partition_by})"
        try:
            super().database_forwards(app_label, schema_editor, from_state, to_state)
        finally:
            schema_editor.sql_create_table = plain
