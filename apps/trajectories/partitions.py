"""Monthly partitions of the tables whose rows carry a time in their id."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from django.apps import AppConfig
from django.db import IntegrityError, OperationalError, connection, transaction
from django.db.migrations import CreateModel
from django.db.models.signals import post_migrate
from django.dispatch import receiver
from django.utils import timezone

from apps.core import locks
from apps.core.locks import Lock
from apps.trajectories.ids import OLDEST, floor_of, month_of, next_month

TABLES = {
    "trajectories_trajectory": "id",
    "trajectories_content": "trajectory_id",
    "trajectories_searchtext": "trajectory_id",
    "trajectories_step": "trajectory_id",
}
FIRST = next(iter(TABLES))
AHEAD = timedelta(days=45)
SOON = timedelta(days=7)
LACKS_PARTITION = "no partition of relation"
KEPT = timedelta(days=62)  # a month that ended less long ago keeps its partitions, empty or not
MONTH = re.compile(r"trajectories_trajectory_(\d{4})_(\d{2})")

log = logging.getLogger(__name__)
_known: set[datetime | None] = set()


def ensure(months: Collection[datetime | None]) -> None:
    """Makes the partitions of these months where they are missing. Must run in a transaction,
    before its first write.

    Months that `drop_empty` may take away are looked up each time, under a shared lock that keeps
    them till the end.
    """
    droppable = {month for month in months if month and may_go(month)}
    missing = droppable | {month for month in months if month not in _known}
    if not missing:
        return
    with connection.cursor() as cursor:
        if droppable:
            locks.acquire(Lock.OLD_MONTHS, shared=True)
        for month in sorted(missing, key=lambda month: month or OLDEST):
            if _lacking(cursor, month):
                locks.acquire(Lock.MAKE_PARTITIONS)
                _make(cursor, month, _lacking(cursor, month))
    transaction.on_commit(lambda: _known.update(missing - droppable))


@contextmanager
def expected() -> Iterator[None]:
    """Around a transaction that relies on partitions that this process has seen. One that was taken
    away meanwhile is an outage (OperationalError): when the request is sent again, it is made.
    """
    try:
        yield
    except IntegrityError as error:
        if LACKS_PARTITION not in str(error):
            raise
        _known.clear()
        raise OperationalError(str(error)) from None


def drop_empty(now: datetime | None = None) -> list[str]:
    """Drops the partitions of past months that retention has emptied. Returns the months, as they
    are named.

    One that is in use is left for the next time: nobody waits behind the drop for longer than
    `lock_timeout`.
    """
    return [suffix(month) for month in months() if may_go(month, now) and drop(month, _is_empty)]


def drop_removed(month: datetime) -> bool:
    """Drops the partitions of a month whose runs were all removed but for their rows
    (`store.remove`): no key names one any more.
    """
    return drop(month, _is_removed)


def drop(month: datetime, may_be: Callable[[Any, datetime], bool]) -> bool:
    """True if it went. `may_be` is asked while nobody can write to the month."""
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SET LOCAL lock_timeout = '500ms'")
            locks.acquire(Lock.OLD_MONTHS)
            if not may_be(cursor, month):
                return False
            for table in TABLES:  # detached first: foreign keys hold what is attached
                cursor.execute(f"ALTER TABLE {table} DETACH PARTITION {table}_{suffix(month)}")
                cursor.execute(f"DROP TABLE {table}_{suffix(month)}")
            return True
    except OperationalError as error:
        log.info("The partitions of %s are in use and stay for now: %s", suffix(month), error)
        return False


def projects_of(month: datetime) -> set[int]:
    """Whose runs a month has: a look at an index for each project."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT id FROM core_project AS project WHERE EXISTS (SELECT FROM"
            f" {FIRST}_{suffix(month)} AS run WHERE run.project_id = project.id)"
        )
        return {pk for (pk,) in cursor.fetchall()}


def may_go(month: datetime, now: datetime | None = None) -> bool:
    return next_month(month) + KEPT < (now or timezone.now())


def months() -> list[datetime]:
    """The months that have partitions."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = %s::regclass",
            [FIRST],
        )
        found = [MONTH.fullmatch(name) for (name,) in cursor.fetchall()]
    return sorted(datetime(int(match[1]), int(match[2]), 1, tzinfo=UTC) for match in found if match)


def _is_empty(cursor: Any, month: datetime) -> bool:
    holds = " OR ".join(f"EXISTS (SELECT 1 FROM {table}_{suffix(month)})" for table in TABLES)
    cursor.execute(f"SELECT NOT ({holds})")
    return cursor.fetchone()[0]


def _is_removed(cursor: Any, month: datetime) -> bool:
    cursor.execute(
        f"SELECT NOT EXISTS (SELECT FROM {FIRST}_{suffix(month)} AS run JOIN"
        " trajectories_trajectorykey AS key ON key.project_id = run.project_id AND key.external_id"
        " = run.external_id AND key.trajectory_id = run.id)"
    )
    return cursor.fetchone()[0]


def ensure_ahead() -> None:
    """The partitions of now and of all months that begin in the weeks to come, so that no request
    has to make one.
    """
    months = [None, *_ahead()]
    _known.difference_update(months)  # one may have been lost
    with transaction.atomic():
        ensure(months)


@receiver(post_migrate)
def after_migrating(sender: AppConfig, **_: Any) -> None:
    """Not a step of a migration: a released one never changes, and which tables have partitions
    does.
    """
    if sender.label != "trajectories":
        return
    with connection.cursor() as cursor:
        is_made = TABLES.keys() <= set(connection.introspection.table_names(cursor))
    if is_made:  # it may be migrated back
        ensure_ahead()


def missing_ahead() -> list[datetime]:
    """This month and those that begin in the weeks to come, without partitions."""
    return _missing(AHEAD)


def missing_soon() -> list[datetime]:
    """Those of them that runs come for already, or in some days."""
    return _missing(SOON)


def _missing(ahead: timedelta) -> list[datetime]:
    with connection.cursor() as cursor:
        return [month for month in _ahead(ahead) if _lacking(cursor, month)]


def _ahead(ahead: timedelta = AHEAD) -> Iterator[datetime]:
    now = timezone.now()
    month = month_of(now)
    while month and month <= now + ahead:
        yield month
        month = next_month(month)


def suffix(month: datetime | None) -> str:
    return f"{month:%Y_%m}" if month else "older"


def _lacking(cursor: Any, month: datetime | None) -> list[str]:
    """The tables without a partition for this month; one that was detached is none."""
    cursor.execute(
        "SELECT name FROM unnest(%s::text[]) AS name WHERE NOT EXISTS (SELECT FROM pg_inherits"
        " WHERE inhparent = name::regclass AND inhrelid = to_regclass(name || '_' || %s))",
        [list(TABLES), suffix(month)],
    )
    return [name for (name,) in cursor.fetchall()]


def _make(cursor: Any, month: datetime | None, tables: Iterable[str]) -> None:
    """Each a table of its own that is attached when it is whole: readers of the others are not held
    up. One that was detached is attached again, with its rows.
    """
    bounds = (
        f"FROM ('{floor_of(month)}') TO ('{floor_of(next_month(month))}')"
        if month
        else f"FROM (MINVALUE) TO ('{floor_of(OLDEST)}')"
    )
    for table in tables:
        name = f"{table}_{suffix(month)}"
        cursor.execute(f"CREATE TABLE IF NOT EXISTS {name} (LIKE {table} INCLUDING ALL)")
        if table == "trajectories_content":
            cursor.execute(f"ALTER TABLE {name} ALTER data SET STORAGE EXTERNAL")
        cursor.execute(f"ALTER TABLE {table} ATTACH PARTITION {name} FOR VALUES {bounds}")


class CreatePartitionedModel(CreateModel):
    """Migration operation: a model's table, partitioned by ranges of a column."""

    def __init__(self, *args: Any, partition_by: str, **named: Any) -> None:
        super().__init__(*args, **named)
        self.partition_by = partition_by

    def database_forwards(
        self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any
    ) -> None:
        plain = schema_editor.sql_create_table
        schema_editor.sql_create_table = f"{plain} PARTITION BY RANGE ({self.partition_by})"
        try:
            super().database_forwards(app_label, schema_editor, from_state, to_state)
        finally:
            schema_editor.sql_create_table = plain
