"""Behind a pooler in transaction mode nothing is left in a session. `make proof` has a real one
(test_machines.py).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, transaction

from apps.core import locks, pipelined
from apps.core.models import Project
from flywheel.postgres import base, direct

pytestmark = pytest.mark.django_db(transaction=True)
ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def pooled(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (pipelined, base, direct):
        monkeypatch.setattr(module, "is_pooled", lambda: True)


def names() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_prepared_statements WHERE from_sql IS NOT NULL")
        return cursor.fetchone()[0]


def test_statements_are_not_prepared(pooled: None) -> None:
    before = names()
    for number in ("1", "2"):
        sent = pipelined.send("SELECT $1::int + 40, $2::text, $3::bytea", [number, None, b"x"])
        assert sent.rows() == [(f"{40 + int(number)}", None, "\\x78")]
    with transaction.atomic(), pipelined.one_trip(commit=True):
        both = [pipelined.send("SELECT $1::int", [number]) for number in ("3", "4")]
    assert [sent.rows() for sent in both] == [[("3",)], [("4",)]]
    assert names() == before


def test_rows_come_at_once_outside_of_a_transaction(pooled: None, project: Project) -> None:
    cursor = connection.chunked_cursor()
    assert cursor.cursor.name is None if hasattr(cursor.cursor, "name") else True
    assert list(Project.objects.iterator()) == [project]
    with transaction.atomic():
        assert connection.chunked_cursor().cursor.name
        assert list(Project.objects.iterator()) == [project]


def test_locks_of_sessions_are_taken_past_the_pooler(monkeypatch: pytest.MonkeyPatch) -> None:
    other = connection.copy()
    monkeypatch.setattr(locks, "direct", lambda: other)
    try:
        with locks.try_holding(locks.Lock.BACKUP) as is_held, connection.cursor() as cursor:
            cursor.execute(
                "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND objid = %s",
                [int(locks.Lock.BACKUP)],
            )
            assert is_held and cursor.fetchone()[0] == other.connection.info.backend_pid
    finally:
        other.close()


def test_a_pooler_is_told_from_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not direct.has_pooler(connection)

    class Behind:
        connection = type("Connection", (), {"info": type("Info", (), {"backend_pid": 1})})

        def cursor(self) -> Any:
            return connection.cursor()

    assert direct.has_pooler(Behind())


def test_commands_go_past_it() -> None:
    """What settings read of the environment."""
    program = (
        "import os; from flywheel import command; command.use_direct_database();"
        " print(os.environ['DATABASE_URL'], 'DATABASE_DIRECT_URL' in os.environ)"
    )
    env = os.environ | {"DATABASE_URL": "pooler", "DATABASE_DIRECT_URL": "server"}
    said = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=env, capture_output=True, text=True
    )
    assert said.stdout.split() == ["server", "False"]
