"""What a migration does to tables that are in use: it is applied to tables with rows, and
PostgreSQL is asked which it locked, read, rewrote and changed. No SQL is parsed, so what RunPython
and RunSQL do counts, too.

How a change is made in steps is in docs/upgrading.md. A migration may say of a table why it stays
small (`small = {"core_project": "a row for each project"}`), and of what it drops why nothing that
runs uses it any more (`unused = {"core_project.region": "not read since 0.2.0"}`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from django.contrib.postgres.operations import NotInTransactionMixin
from django.db import connection, transaction
from django.db.migrations import Migration
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState

BLOCK_WRITES = ["ShareLock", "ShareRowExclusiveLock", "ExclusiveLock", "AccessExclusiveLock"]
STATISTICS = """
SELECT coalesce(pg_partition_root(relid), relid)::regclass::text,
    sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0)), sum(n_tup_upd + n_tup_del)
FROM pg_stat_xact_user_tables GROUP BY 1
"""
FILES = """
SELECT coalesce(pg_partition_root(oid), oid)::regclass::text, array_agg(relfilenode ORDER BY oid)
FROM pg_class WHERE relkind IN ('r', 'p') AND relnamespace = 'public'::regnamespace GROUP BY 1
"""
LOCKS = """
SELECT DISTINCT coalesce(pg_partition_root(relation), relation)::regclass::text
FROM pg_locks JOIN pg_class ON pg_class.oid = relation
WHERE pid = pg_backend_pid() AND granted AND mode = ANY(%s) AND relkind IN ('r', 'p')
"""
COLUMNS = """
SELECT relname || '.' || attname, attnotnull AND NOT atthasdef AND attidentity = ''
FROM pg_class JOIN pg_attribute ON attrelid = pg_class.oid
WHERE relkind IN ('r', 'p') AND NOT relispartition AND attnum > 0 AND NOT attisdropped
    AND relnamespace = 'public'::regnamespace
"""


@dataclass
class Snapshot:
    """The tables as this transaction sees them. Partitions count as their table."""

    counters: dict[str, tuple[int, int]]  # rows read, rows changed
    files: dict[str, Any]
    locked: set[str]  # against writing
    columns: dict[str, bool]  # "table.column": whether a row cannot be inserted without it

    @classmethod
    def take(cls) -> Snapshot:
        with connection.cursor() as cursor:
            counters = {
                table: (read, changed) for table, read, changed in _rows(cursor, STATISTICS)
            }
            files, columns = dict(_rows(cursor, FILES)), dict(_rows(cursor, COLUMNS))
            locked = {table for (table,) in _rows(cursor, LOCKS, [BLOCK_WRITES])}
        return cls(counters, files, locked, columns)


def _rows(cursor: Any, query: str, given: list[Any] | None = None) -> list[Any]:
    cursor.execute(query, given)
    return cursor.fetchall()


def apply_and_judge(migration: Migration, state: ProjectState) -> list[str]:
    """Applies it; `state` is that before it, and becomes that after it. Returns why it must not be
    released; [] if it may.
    """
    steps = [migration.operations]
    if not migration.atomic:
        steps = [[operation] for operation in migration.operations]
    reasons = []
    for operations in steps:
        if any(isinstance(operation, NotInTransactionMixin) for operation in operations):
            _apply(migration, operations, state, atomic=False)  # such as CONCURRENTLY
            continue
        with transaction.atomic():
            before = Snapshot.take()
            _apply(migration, operations, state, atomic=True)
            reasons += _reasons(migration, before, Snapshot.take())
    return reasons


def _apply(
    migration: Migration, operations: list[Operation], state: ProjectState, *, atomic: bool
) -> None:
    with connection.schema_editor(atomic=atomic) as editor:
        for operation in operations:
            before = state.clone()
            operation.state_forwards(migration.app_label, state)
            operation.database_forwards(migration.app_label, editor, before, state)


def _reasons(migration: Migration, before: Snapshot, after: Snapshot) -> Iterator[str]:
    small, unused = getattr(migration, "small", {}), getattr(migration, "unused", {})
    tables = {column.partition(".")[0] for column in before.columns} - small.keys()
    for table in sorted(tables & after.files.keys()):
        read, changed = (
            now - then
            for now, then in zip(
                after.counters.get(table, (0, 0)), before.counters.get(table, (0, 0)), strict=True
            )
        )
        if before.files[table] != after.files[table]:
            yield f"{table} is rewritten while nobody can use it"
        elif table in after.locked - before.locked and read:
            yield f"{table} is read from end to end while nobody can write to it"
        if changed:
            yield f"{table}: all rows are changed in one transaction"
    for column in sorted(before.columns.keys() - after.columns.keys() - unused.keys()):
        yield f"{column} goes, and processes of the version before use it"
    for column, required in sorted(after.columns.items()):
        if required and not before.columns.get(column) and column.partition(".")[0] in tables:
            yield f"{column} has no default, and processes of the version before do not know it"
