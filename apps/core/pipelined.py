"""Several statements in one round trip to the database: most of the time of a small write is
waiting for answers. PostgreSQL reads and plans each statement once a connection, unless a pooler
stands between.

psycopg's own pipeline sends, and wakes the server, for each statement, and its cursors take longer
than the statements.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary

import psycopg
from django.db import connection
from psycopg import generators, pq

from flywheel import telemetry
from flywheel.postgres.direct import is_pooled

TEXT, BINARY = 0, 1
ANSWERED = (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK)
_names: WeakKeyDictionary[psycopg.Connection[Any], dict[bytes, bytes]] = WeakKeyDictionary()
_numbers = count()
_own = threading.local()


class Statement:
    """A statement with `$1` … for its parameters, and what the server answered. An error of an
    earlier one of the trip is raised before anybody asks for it.
    """

    def __init__(self, query: str, params: Sequence[str | bytes | None]) -> None:
        if any(isinstance(value, str) and "\0" in value for value in params):
            raise ValueError(
                "A text for PostgreSQL cannot contain NUL."
            )  # libpq would cut it there
        self.query = query.encode()
        self.params = [value.encode() if isinstance(value, str) else value for value in params]
        self.formats = [BINARY if isinstance(value, bytes) else TEXT for value in params]
        self.result: Any = None

    def rows(self) -> list[tuple[str | None, ...]]:
        """As texts."""
        result = self.result
        return [
            tuple(
                None if (raw := result.get_value(row, column)) is None else raw.decode()
                for column in range(result.nfields)
            )
            for row in range(result.ntuples)
        ]


@contextmanager
def one_trip(*, commit: bool = False) -> Iterator[None]:
    """What is sent inside leaves together when the block ends. `commit`: together with the commit
    of the transaction, if it is the outermost, so nothing may follow in it.
    """
    assert not hasattr(_own, "waiting"), "Trips are not nested."
    _own.waiting = []
    try:
        yield
        waiting = _own.waiting
    finally:
        del _own.waiting
    if commit and len(connection.atomic_blocks) == 1:
        waiting.append(Statement("COMMIT", ()))
    _exchange(waiting)


def send(query: str, params: Sequence[str | bytes | None]) -> Statement:
    """At once, or with the others of a trip. Texts are in PostgreSQL's text form, bytes are bytea:
    a statement is the same whatever its numbers are. No COPY.
    """
    statement = Statement(query, params)
    if hasattr(_own, "waiting"):
        _own.waiting.append(statement)
    else:
        _exchange([statement])
    return statement


def _exchange(statements: list[Statement]) -> None:
    """All are done, or the error of the first that is not is raised."""
    connection.ensure_connection()
    server: psycopg.Connection[Any] = connection.connection
    is_idle = server.info.transaction_status == pq.TransactionStatus.IDLE
    if is_idle and not server.autocommit:
        statements = [Statement("BEGIN", ()), *statements]
    with connection.wrap_database_errors, server.lock:
        try:
            with telemetry.queries([statement.query for statement in statements]):
                failed = server.wait(_steps(server, statements))
        except BaseException:
            server.close()  # with answers on their way, nobody can go on
            raise
        if failed is not None:
            raise psycopg.errors.error_from_result(failed, encoding=server.info.encoding)


def _steps(
    server: psycopg.Connection[Any], statements: list[Statement]
) -> Generator[Any, Any, Any]:
    """Returns the answer of the first that failed."""
    known = _names.setdefault(server, {})
    server.pgconn.enter_pipeline_mode()
    names = dict(known)
    new = [_queue(server.pgconn, statement, names) for statement in statements]
    server.pgconn.pipeline_sync()
    yield from generators.send(server.pgconn)
    failed = None
    for statement, name in zip(statements, new, strict=True):
        if name:
            (result,) = yield from generators.fetch_many(server.pgconn)
            if result.status in ANSWERED:
                known[statement.query] = name
            elif failed is None and result.status == pq.ExecStatus.FATAL_ERROR:
                failed = result
        (statement.result,) = yield from generators.fetch_many(server.pgconn)
        if failed is None and statement.result.status not in ANSWERED:
            failed = statement.result
    yield from generators.fetch_many(server.pgconn)
    server.pgconn.exit_pipeline_mode()
    return failed


def _queue(pgconn: Any, statement: Statement, names: dict[bytes, bytes]) -> bytes:
    """Returns the name under which the statement is prepared now; none if it was before, or a
    pooler stands between, behind which the next transaction may meet another session.
    """
    new = b""
    if is_pooled():
        pgconn.send_query_params(statement.query, statement.params, param_formats=statement.formats)
        return new
    if statement.query not in names:
        new = names[statement.query] = b"flywheel_%d" % next(_numbers)
        pgconn.send_prepare(new, statement.query)
    pgconn.send_query_prepared(names[statement.query], statement.params, statement.formats)
    return new
