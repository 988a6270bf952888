"""Whether the database has the schema that this version of Flywheel works with.

A migration is known by a digest of its operations, which is kept in the database (as the comment of
Django's table of migrations) when it is applied: another version may have one of the same name that
did something else.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from django.apps import apps
from django.core.management import CommandError
from django.db import connection
from django.db.migrations import Migration
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder
from django.db.migrations.writer import MigrationWriter
from psycopg import sql

Name = tuple[str, str]  # app, migration
TABLE = MigrationRecorder.Migration._meta.db_table
MOST_NAMED = 3
REFUSED = (
    "This database belongs to another version of Flywheel, or to another program: {}. Nothing was"
    " changed. Start the version that it was made with, or name another database with DATABASE_URL"
    " (or another data folder with FLYWHEEL_DATA_DIR)."
)


def differences() -> list[str]:
    """What another version of Flywheel, or another program, has made otherwise. [] for a database
    that is empty or only has to be migrated.
    """
    applied = set(MigrationRecorder(connection).applied_migrations())
    wrong = sorted(_changed(applied) | _unknown(applied))
    if wrong:
        return [f"its migration {app}.{name} differs from the one here" for app, name in wrong]
    begun = {app for app, _ in applied}
    if "core" not in begun and (taken := _taken_tables(begun)):
        return [f"its table {table} was not made by this version" for table in taken]
    return [] if is_behind() else list(_other_columns())


def is_behind() -> bool:
    """Whether there are migrations that the database has yet to get."""
    applied = set(MigrationRecorder(connection).applied_migrations())
    return any(
        not migration.replaces and name not in applied for name, migration in _migrations().items()
    )


def refuse_another_version(plan: list[tuple[Migration, bool]], **_: Any) -> None:
    """Before anything is migrated: raises CommandError, or notes what is about to be applied."""
    different = differences()
    if different:
        more = len(different) - MOST_NAMED
        named = "; ".join(different[:MOST_NAMED]) + (f"; and {more} more" if more > 0 else "")
        raise CommandError(REFUSED.format(named))
    if plan:
        _recorded_plan([(migration.app_label, migration.name) for migration, _ in plan])


@lru_cache
def _migrations() -> dict[Name, Migration]:
    return MigrationLoader(None).disk_migrations


@lru_cache
def _digests() -> dict[str, str]:
    """Of our own migrations. Those of libraries keep what they do under a name."""
    digests = {}
    for (app, name), migration in _migrations().items():
        if migration.__module__.startswith("apps."):
            text = MigrationWriter(migration, include_header=False).as_string()
            digests[f"{app}.{name}"] = hashlib.sha256(text.encode()).hexdigest()[:16]
    return digests


def _noted() -> dict[str, str]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT obj_description(to_regclass(%s), 'pg_class')", [TABLE])
        return json.loads(cursor.fetchone()[0] or "{}")


def _recorded_plan(names: list[Name]) -> None:
    MigrationRecorder(connection).ensure_schema()
    digests = _digests()
    planned = {key: digests[key] for name in names if (key := ".".join(name)) in digests}
    comment = json.dumps(_noted() | planned)
    with connection.cursor() as cursor:
        cursor.execute(
            sql.SQL("COMMENT ON TABLE {} IS {}").format(sql.Identifier(TABLE), sql.Literal(comment))
        )


def _changed(applied: set[Name]) -> set[Name]:
    noted, digests = _noted(), _digests()
    return {
        name
        for name in applied
        if (key := ".".join(name)) in digests and noted.get(key) != digests[key]
    }


def _unknown(applied: set[Name]) -> set[Name]:
    noted, migrations = _noted(), _migrations()
    known = set(migrations) | {
        tuple(old) for migration in migrations.values() for old in migration.replaces
    }
    labels = {app.label for app in apps.get_app_configs()}
    return {name for name in applied - known if name[0] in labels or ".".join(name) in noted}


def _taken_tables(begun: set[str]) -> list[str]:
    """Tables with the names of ours that are there before any migration of their app."""
    names = [
        model._meta.db_table
        for model in apps.get_models(include_auto_created=True)
        if model._meta.managed and model._meta.app_label not in begun
    ]
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT relname FROM pg_class WHERE relname = ANY(%s) AND pg_table_is_visible(oid)"
            " ORDER BY relname",
            [names],
        )
        return [name for (name,) in cursor.fetchall()]


def _other_columns() -> Iterator[str]:
    """Columns that the models have and the tables lack, or that the tables require and the models
    do not know.
    """
    columns = _columns()
    for model in apps.get_models(include_auto_created=True):
        table = model._meta.db_table
        if not model._meta.managed or model._meta.proxy:
            continue
        expected = {field.column for field in model._meta.local_concrete_fields}
        present = columns.get(table)
        if present is None:
            yield f"the table {table} is missing"
            continue
        for column in sorted(expected - present.keys()):
            yield f"{table} lacks the column {column}"
        for column in sorted(name for name in present.keys() - expected if present[name]):
            yield f"{table} requires a column {column}, which is unknown here"


def _columns() -> dict[str, dict[str, bool]]:
    """{table: {column: whether a row cannot be inserted without it}}"""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            SELECT relname, attname, attnotnull AND NOT atthasdef AND attidentity = ''
            FROM pg_class JOIN pg_attribute ON attrelid = pg_class.oid
            WHERE relkind IN ('r', 'p') AND NOT relispartition AND attnum > 0 AND NOT attisdropped
                AND pg_table_is_visible(pg_class.oid) AND relname = ANY(%s)
            """,
            [[model._meta.db_table for model in apps.get_models(include_auto_created=True)]],
        )
        columns: dict[str, dict[str, bool]] = {}
        for table, column, required in cursor.fetchall():
            columns.setdefault(table, {})[column] = required
        return columns
