"""Whether the database has the schema that this version of Flywheel works with, and what to do
where it has another.

A migration is known by a digest of its file, which is kept in the database (in the comment of
Django's table of migrations) when it is applied: another version may have one of the same name that
did something else.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from sys import modules
from typing import Any

from django.apps import apps
from django.core.management import CommandError
from django.db import DatabaseError, connection
from django.db.migrations import Migration
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder
from django.db.models import TextChoices
from psycopg import sql

from flywheel.outages import is_away
from flywheel.version import VERSION

Name = tuple[str, str]  # app, migration
TABLE = MigrationRecorder.Migration._meta.db_table
MOST_NAMED = 3


class Kind(TextChoices):
    CURRENT = "current"
    EMPTY = "empty"
    BEHIND = "behind"  # of an earlier version
    UNFINISHED = "unfinished"  # an update was interrupted
    NEWER = "newer"
    DIFFERENT = "different"  # of another program, or of a version that is no release


OTHER_BACKUP = (
    "This backup was made by another version of Flywheel{of}, and this is {here}: {names}. Nothing"
    " was changed. Restore it with the version that made it, or a later release."
)
MIGRATABLE = (Kind.CURRENT, Kind.EMPTY, Kind.BEHIND, Kind.UNFINISHED)
SENTENCES = {
    Kind.EMPTY: "This database is empty. Run “manage.py prepare”, which makes its tables.",
    Kind.BEHIND: (
        "This database is of an earlier version{of}, and this is Flywheel {here}. It lacks {names}."
        " Make a backup, then run “manage.py migrate”; “up” and “prepare” do that, too"
        " (docs/upgrading.md)."
    ),
    Kind.UNFINISHED: (
        "An update of this database was interrupted in {names}. Run “manage.py migrate” with the"
        " version that began it{of}: it continues there. Or restore the backup"
        " (docs/upgrading.md)."
    ),
    Kind.NEWER: (
        "This database is newer than this Flywheel {here}: it has {names}{of}. Nothing was changed."
        " Start the newer version, or restore the backup that was made before the update"
        " (docs/upgrading.md)."
    ),
    Kind.DIFFERENT: (
        "This database belongs to another version of Flywheel{of}, or to another program: {names}."
        " Nothing was changed. Start the version that it was made with, or name another database"
        " with DATABASE_URL (or another data folder with FLYWHEEL_DATA_DIR)."
    ),
}


@dataclass(frozen=True)
class SchemaState:
    """How the database's schema compares with the code of this process."""

    kind: Kind
    sentence: str = ""  # what is wrong and what to do; "" if nothing is
    # Whether a process that runs already may go on: while an update is under way, old processes
    # work beside new ones.
    fits: bool = False


def schema_state() -> SchemaState:
    """Changes nothing. Raises DatabaseError if the database cannot be asked."""
    applied = set(MigrationRecorder(connection).applied_migrations())
    noted = _noted()
    unknown, begun = _unknown(applied, noted), noted.begun - applied
    if wrong := [*_wrong_history(applied, noted)]:
        return _state(Kind.DIFFERENT, wrong, noted)
    if unknown or (begun and not begun <= _migrations().keys()):
        names = [".".join(name) for name in sorted(unknown | begun)]
        return _state(Kind.NEWER, names, noted, fits=not any(_other_columns()))
    if begun:
        return _state(Kind.UNFINISHED, [".".join(name) for name in sorted(begun)], noted)
    missing = _missing(applied)
    if missing:
        behind = Kind.BEHIND if ("core", "0001_initial") in applied else Kind.EMPTY
        return _state(behind, [".".join(name) for name in sorted(missing)], noted)
    if columns := [*_other_columns()]:
        return _state(Kind.DIFFERENT, columns, noted)
    return SchemaState(Kind.CURRENT, fits=True)


def recorded() -> dict[str, Any]:
    """For a backup: which migrations this database has, and of which content."""
    noted = _noted()
    applied = sorted(set(MigrationRecorder(connection).applied_migrations()))
    return {
        "version": noted.version,
        "applied": applied,
        "digests": noted.digests,
        "begun": sorted(noted.begun),
    }


def why_not_restore(backup: dict[str, Any]) -> str:
    """Of what `recorded` returned in a backup: why this version could not use its database; "" if
    it can, perhaps after a migration.
    """
    applied = {(app, name) for app, name in backup["applied"]}
    begun = {(app, name) for app, name in backup["begun"]} - applied
    noted = Note(backup["version"], backup["digests"], begun)
    wrong = [f"it has {'.'.join(name)}" for name in sorted(_unknown(applied, noted) | begun)]
    wrong += [
        f"its migration {name} differs from the one here"
        for name in map(".".join, sorted(_changed(applied, noted)))
    ]
    if not wrong:
        return ""
    of = f" ({noted.version})" if noted.version else ""
    return OTHER_BACKUP.format(of=of, here=VERSION, names="; ".join(wrong[:MOST_NAMED]))


def require_current() -> None:
    """For what starts and expects this version's schema. Raises CommandError; a database that is
    away is waited for by whoever uses it.
    """
    try:
        state = schema_state()
    except DatabaseError as error:
        if is_away(error):
            return
        raise
    if state.kind != Kind.CURRENT:
        raise CommandError(state.sentence)


def require_migratable() -> SchemaState:
    """Before anything is migrated. Raises CommandError."""
    state = schema_state()
    if state.kind not in MIGRATABLE:
        raise CommandError(state.sentence)
    return state


def note_plan(plan: list[tuple[Migration, bool]], **_: Any) -> None:
    """Listens to `pre_migrate`: what is about to be applied is known by its digest from then on."""
    digests = _digests()
    names = [".".join((migration.app_label, migration.name)) for migration, _ in plan]
    if planned := {name: digests[name] for name in names if name in digests}:
        noted = _noted()
        _write_note(noted.version, noted.digests | planned, noted.begun)


def note_begun(migration: Migration, *, is_over: bool) -> None:
    """One that is not atomic may be interrupted halfway; one that is leaves nothing behind."""
    if not migration.atomic:
        noted, name = _noted(), {(migration.app_label, migration.name)}
        begun = noted.begun - name if is_over else noted.begun | name
        _write_note(VERSION, noted.digests, begun)


def note_version() -> None:
    """After all that was planned was applied."""
    noted = _noted()
    if noted.version != VERSION:
        _write_note(VERSION, noted.digests, noted.begun)


@dataclass(frozen=True)
class Note:
    """What the database says of its own schema."""

    version: str  # that migrated it last
    digests: dict[str, str]
    begun: set[Name]  # migrations that are not atomic and were not seen to end


def _state(kind: Kind, found: list[str], noted: Note, *, fits: bool = False) -> SchemaState:
    more = len(found) - MOST_NAMED
    names = "; ".join(found[:MOST_NAMED]) + (f"; and {more} more" if more > 0 else "")
    of = f" ({noted.version})" if noted.version and noted.version != VERSION else ""
    return SchemaState(kind, SENTENCES[kind].format(names=names, of=of, here=VERSION), fits)


def _wrong_history(applied: set[Name], noted: Note) -> Iterator[str]:
    """What no update of a release explains."""
    for app, name in sorted(_changed(applied, noted)):
        yield f"its migration {app}.{name} differs from the one here"
    graph = _loader().graph
    for name in sorted(applied & graph.nodes.keys()):
        for parent in sorted({node.key for node in graph.node_map[name].parents} - applied):
            yield f"its migration {'.'.join(name)} was applied and {'.'.join(parent)} was not"
    begun = {app for app, _ in applied}
    if "core" not in begun:
        for table in _taken_tables(begun):
            yield f"its table {table} was not made by this version"


def _missing(applied: set[Name]) -> set[Name]:
    return {
        name
        for name, migration in _migrations().items()
        if not migration.replaces and name not in applied
    }


@lru_cache
def _loader() -> MigrationLoader:
    return MigrationLoader(None)


@lru_cache
def _migrations() -> dict[Name, Migration]:
    return _loader().disk_migrations


@lru_cache
def _digests() -> dict[str, str]:
    """Of our own migrations. Those of libraries keep what they do under a name."""
    return {
        f"{app}.{name}": file_digest(Path(str(modules[migration.__module__].__file__)))
        for (app, name), migration in _migrations().items()
        if migration.__module__.startswith("apps.")
    }


def file_digest(path: Path) -> str:
    """Of a migration: of its text, which no version of Python or Django writes in another way."""
    return hashlib.sha256(path.read_text().encode()).hexdigest()[:16]


def _noted() -> Note:
    with connection.cursor() as cursor:
        cursor.execute("SELECT obj_description(to_regclass(%s), 'pg_class')", [TABLE])
        kept = json.loads(cursor.fetchone()[0] or "{}")
    begun = {(app, name) for app, name in kept.get("begun", [])}
    return Note(kept.get("version", ""), kept.get("migrations", {}), begun)


def _write_note(version: str, digests: dict[str, str], begun: set[Name]) -> None:
    MigrationRecorder(connection).ensure_schema()
    kept = {"version": version, "migrations": digests, "begun": sorted(begun)}
    with connection.cursor() as cursor:
        cursor.execute(
            sql.SQL("COMMENT ON TABLE {} IS {}").format(
                sql.Identifier(TABLE), sql.Literal(json.dumps(kept))
            )
        )


def _changed(applied: set[Name], noted: Note) -> set[Name]:
    digests = _digests()
    return {
        name
        for name in applied
        if (key := ".".join(name)) in digests and noted.digests.get(key) != digests[key]
    }


def _unknown(applied: set[Name], noted: Note) -> set[Name]:
    migrations = _migrations()
    known = set(migrations) | {
        tuple(old) for migration in migrations.values() for old in migration.replaces
    }
    labels = {app.label for app in apps.get_app_configs()}
    return {
        name for name in applied - known if name[0] in labels or ".".join(name) in noted.digests
    }


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
