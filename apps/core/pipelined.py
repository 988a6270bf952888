"""Several statements in one round trip to the database: most of the time of a small write is
waiting for answers. PostgreSQL reads and plans each statement once a connection.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
from django.db import connection


@contextmanager
def one_trip() -> Iterator[None]:
    """What is sent inside waits for no answer: a cursor has its rows once the block ends. A commit
    inside waits for its own answer, and raises what a statement before it raised. No COPY.
    """
    connection.ensure_connection()
    with connection.wrap_database_errors, connection.connection.pipeline():
        yield


def send(query: str, params: Sequence[str | bytes | None]) -> psycopg.Cursor[Any]:
    """Parameters are texts, bytes (`%b`) and None: a statement is the same whatever its numbers
    are.
    """
    connection.ensure_connection()
    server = connection.connection
    server.prepare_threshold = 0
    with connection.wrap_database_errors:
        return psycopg.Cursor(server).execute(query, params)
