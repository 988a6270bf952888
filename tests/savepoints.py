"""Savepoints go to PostgreSQL with the statement that comes next, and those around no statement do
not go at all. A test is one transaction, so that each transaction of the product is a savepoint:
every sixth statement of a test set one or released it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db import connection
from django.db.backends.postgresql.base import Cursor, DatabaseWrapper, ServerSideCursor
from psycopg import Connection, errors
from psycopg.pq import ExecStatus, TransactionStatus

from apps.core import pipelined


def send_with_the_next_statement() -> None:
    for name in ("_savepoint", "_savepoint_commit", "_savepoint_rollback"):
        setattr(DatabaseWrapper, name, globals()[name])
    for name in ("_commit", "_rollback"):
        setattr(DatabaseWrapper, name, _forgetting(getattr(DatabaseWrapper, name)))
    for kind, names in (
        (Cursor, ("executemany", "copy", "stream")),
        (ServerSideCursor, ("execute", "executemany")),
    ):
        for name in names:
            setattr(kind, name, _sending(getattr(kind, name)))
    Cursor._execute_send, Cursor._set_results = _execute_send, _set_results
    pipelined._exchange = _sending_before(pipelined._exchange)


def waiting(connection: Connection) -> list[str]:
    """Statements about savepoints that PostgreSQL does not know of."""
    return vars(connection).setdefault("savepoints_of_tests", [])


def _savepoint(self: DatabaseWrapper, sid: str) -> None:
    self.ensure_connection()
    waiting(self.connection).append(self.ops.savepoint_create_sql(sid))


def _savepoint_commit(self: DatabaseWrapper, sid: str) -> None:
    begun, statements = self.ops.savepoint_create_sql(sid), waiting(self.connection)
    if begun in statements:
        del statements[statements.index(begun) :]
    else:
        statements.append(self.ops.savepoint_commit_sql(sid))


def _savepoint_rollback(self: DatabaseWrapper, sid: str) -> None:
    begun, statements = self.ops.savepoint_create_sql(sid), waiting(self.connection)
    if begun in statements:
        del statements[statements.index(begun) + 1 :]
    else:
        statements.clear()  # all within what is rolled back
        with self.cursor() as cursor:
            cursor.execute(self.ops.savepoint_rollback_sql(sid))


def _forgetting(end: Callable[..., Any]) -> Callable[..., Any]:
    def ending(self: DatabaseWrapper) -> Any:
        if self.connection is not None:
            waiting(self.connection).clear()
        return end(self)

    return ending


def _sending(execute: Callable[..., Any]) -> Callable[..., Any]:
    """Of what takes one statement alone."""

    def executing(self: Any, *args: Any, **options: Any) -> Any:
        _send(self.connection)
        return execute(self, *args, **options)

    return executing


def _sending_before(exchange: Callable[..., None]) -> Callable[..., None]:
    """Of what takes statements together, on the connection of this thread."""

    def exchanging(*args: Any) -> None:
        connection.ensure_connection()
        _send(connection.connection)
        exchange(*args)

    return exchanging


def _send(server: Connection) -> None:
    if statements := waiting(server):
        is_idle = server.info.transaction_status == TransactionStatus.IDLE
        text = "; ".join([*(["BEGIN"] if is_idle else []), *statements])
        statements.clear()
        result = server.pgconn.exec_(text.encode())
        if result.status != ExecStatus.COMMAND_OK:
            raise errors.error_from_result(result)


def _execute_send(self: Cursor, query: Any, **options: Any) -> None:
    statements = waiting(self.connection)
    self.sent_before = len(statements)
    if statements:
        before = "; ".join([*statements, ""]).encode()
        statements.clear()
        self._query = query
        self.connection.pgconn.send_query(before + query.query)
    else:
        super(Cursor, self)._execute_send(query, **options)


def _set_results(self: Cursor, results: list[Any]) -> None:
    super(Cursor, self)._set_results(results[self.sent_before :])
