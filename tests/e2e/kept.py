"""A project's rows and files, kept and put back: making them takes seconds, and every browser test
wants them untouched.
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, LiteralString

from django.apps import apps
from django.core.management.color import no_style
from django.db import connection
from psycopg import Cursor, sql

from tests.e2e.seed import World
from tests.emptied import STAYS


@contextmanager
def _raw() -> Iterator[Cursor]:
    """A cursor for which no trigger and no foreign key is looked at: what was a whole is one
    again.
    """
    with connection.cursor() as cursor:
        cursor.execute("SET session_replication_role = replica")
        try:
            yield cursor.cursor
        finally:
            cursor.execute("SET session_replication_role = DEFAULT")


def _columns(cursor: Cursor) -> dict[str, list[str]]:
    """{table: its columns} of what is emptied between tests, without those that the database
    computes; a partition's rows are its table's."""
    emptied = {*connection.introspection.django_table_names(only_existing=True)} - STAYS
    cursor.execute(
        """SELECT relname::text, array_agg(attname::text) FROM pg_class JOIN pg_attribute ON \
attrelid = pg_class.oid
        WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition
        AND attnum > 0 AND NOT attisdropped AND attgenerated = '' GROUP BY relname"""
    )
    return {table: columns for table, columns in cursor.fetchall() if table in emptied}


@dataclass
class Kept:
    world: World
    user: dict[str, Any]
    rows: dict[
        str, tuple[list[str], bytes]
    ]  # of each table that has any: its columns, and them as COPY writes them
    files: Path

    @classmethod
    def of(cls, world: World, user: Any, data_dir: Path, folder: Path) -> Kept:
        rows = {}
        with _raw() as cursor:
            for table, columns in _columns(cursor).items():
                with cursor.copy(
                    _named("COPY (SELECT {columns} FROM {table}) TO STDOUT", table, columns)
                ) as copied:
                    if content := b"".join(copied):
                        rows[table] = columns, content
        shutil.copytree(data_dir, folder, dirs_exist_ok=True)
        return cls(copy.deepcopy(world), dict(vars(user)), rows, folder)

    def put_back(self, user: Any, data_dir: Path) -> World:
        """`user` was just made, and becomes the one that made the world."""
        type(user).objects.all().delete()
        with _raw() as cursor:
            for table, (columns, content) in self.rows.items():
                with cursor.copy(
                    _named("COPY {table} ({columns}) FROM STDIN", table, columns)
                ) as copied:
                    copied.write(content)
        shutil.copytree(self.files, data_dir, dirs_exist_ok=True)
        vars(user).update(self.user)
        return copy.deepcopy(self.world)


def count_on() -> None:
    """In a database that did not make these rows, new ones are numbered after them."""
    models = apps.get_models(include_auto_created=True)
    with connection.cursor() as cursor:
        for statement in connection.ops.sequence_reset_sql(no_style(), models):
            cursor.execute(statement)


def _named(words: LiteralString, table: str, columns: list[str]) -> sql.Composed:
    return sql.SQL(words).format(
        table=sql.Identifier(table), columns=sql.SQL(", ").join(map(sql.Identifier, columns))
    )
