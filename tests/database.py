"""The suite's databases are copies of one that is migrated once: migrating costs each process 10
CPU s, a copy next to none.
"""

from __future__ import annotations

import fcntl
import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import django
from django.apps import apps
from django.conf import settings
from django.core.management import call_command
from django.db.backends.postgresql.creation import DatabaseCreation
from django.utils import timezone
from psycopg import sql

from apps.core import schema
from flywheel import embedded

NAMES = "flywheel_migrated_"
OURS = re.compile(rb"^(?:from|import) ((?:apps|workers)[\w.]+)", re.MULTILINE)


def create_test_db(
    self: DatabaseCreation,
    verbosity: int = 1,
    autoclobber: bool = False,
    serialize: bool = False,
    keepdb: bool = False,
) -> str:
    """In place of Django's. A database that is kept (`--reuse-db`) is made anew where the
    migrations have changed.
    """
    name = self._get_test_db_name()
    with _one_at_a_time():
        made = migrated(self)
        if not (keepdb and copied_from(self, name) == made):
            _copy(self, made, name)
    self.connection.close()
    settings.DATABASES[self.connection.alias]["NAME"] = self.connection.settings_dict["NAME"] = name
    return name


def migrated(creation: DatabaseCreation) -> str:
    """The name of a database in which these migrations have run, and nothing else; it is made where
    there is none.
    """
    name, making = NAMES + _digest(), NAMES + "unfinished"
    connection = creation.connection
    if _exists(creation, name):
        return name
    with creation._nodb_cursor() as cursor:
        cursor.execute("SELECT datname FROM pg_database WHERE starts_with(datname, %s)", [NAMES])
        for (old,) in cursor.fetchall():
            cursor.execute(_named("DROP DATABASE {}", old))
        cursor.execute(_named("CREATE DATABASE {}", making))
    connection.close()
    before, connection.settings_dict["NAME"] = connection.settings_dict["NAME"], making
    try:
        call_command("migrate", verbosity=0, interactive=False, database=connection.alias)
        call_command("createcachetable", database=connection.alias)
    finally:
        connection.close()
        connection.settings_dict["NAME"] = before
    with creation._nodb_cursor() as cursor:
        cursor.execute(_named("ALTER DATABASE {} RENAME TO {}", making, name))
    return name


def copied_from(creation: DatabaseCreation, name: str) -> str | None:
    with creation._nodb_cursor() as cursor:
        cursor.execute(
            "SELECT shobj_description(oid, 'pg_database') FROM pg_database WHERE datname = %s",
            [name],
        )
        found = cursor.fetchone()
        return found and found[0]


def copy_migrated(creation: DatabaseCreation, name: str) -> None:
    with _one_at_a_time():
        _copy(creation, migrated(creation), name)


def _copy(creation: DatabaseCreation, made: str, name: str) -> None:
    with creation._nodb_cursor() as cursor:
        cursor.execute(_named("DROP DATABASE IF EXISTS {} WITH (FORCE)", name))
        cursor.execute(_named("CREATE DATABASE {} TEMPLATE {}", name, made))
        cursor.execute(_named("COMMENT ON DATABASE {} IS ", name) + sql.Literal(made))


def _exists(creation: DatabaseCreation, name: str) -> bool:
    with creation._nodb_cursor() as cursor:
        cursor.execute("SELECT FROM pg_database WHERE datname = %s", [name])
        return cursor.fetchone() is not None


def _digest() -> str:
    """Of all migrations and what they import from us; of the month too, since they make the
    partitions of the months to come.
    """
    read, files = hashlib.sha256(f"{django.VERSION} {timezone.now():%Y-%m}".encode()), set()
    for app in apps.get_app_configs():
        files |= set(Path(app.path, "migrations").glob("*.py"))
    files.add(Path(schema.__file__))
    for file in sorted(files | {path for one in files for path in _ours(one)}):
        read.update(file.read_bytes())
    return read.hexdigest()[:16]


def _ours(migration: Path) -> Iterator[Path]:
    for module in OURS.findall(migration.read_bytes()):
        path = Path(settings.BASE_DIR, *module.decode().split(".")).with_suffix(".py")
        if path.exists():
            yield path


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Of the processes of a run; no database is copied while another one is connected to it."""
    folder = embedded.data_dir()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "migrated.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _named(words: str, *names: str) -> sql.Composed:
    return sql.SQL(words).format(*map(sql.Identifier, names))  # type: ignore[arg-type]
