"""Several statements in one round trip: all or nothing, and nothing is called done that is not."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from django.db import IntegrityError, OperationalError, connection, transaction

from apps.core.pipelined import one_trip, send

pytestmark = pytest.mark.django_db(transaction=True)
INSERT = "INSERT INTO pipelined_b VALUES ($1, $2, $3) RETURNING id"


@pytest.fixture(autouse=True)
def tables() -> Iterator[None]:
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE TABLE pipelined_a (id int PRIMARY KEY); INSERT INTO pipelined_a VALUES (1)"
        )
        cursor.execute(
            "CREATE TABLE pipelined_b (id int PRIMARY KEY, a int REFERENCES pipelined_a DEFERRABLE"
            " INITIALLY DEFERRED, data bytea)"
        )
    yield
    connection.close()
    with connection.cursor() as cursor:
        cursor.execute("DROP TABLE pipelined_b; DROP TABLE pipelined_a")


def another() -> psycopg.Connection:
    return psycopg.connect(**connection.get_connection_params())


def committed() -> list[int]:
    """As another connection sees it."""
    with another() as other:
        return [pk for (pk,) in other.execute("SELECT id FROM pipelined_b ORDER BY id").fetchall()]


def test_answers_are_there_after_the_trip_and_the_commit_is_part_of_it() -> None:
    hooks: list[list[int]] = []
    with transaction.atomic():
        transaction.on_commit(lambda: hooks.append(committed()))
        with one_trip(commit=True):
            first = send(INSERT, ["1", "1", b"\x00'\\"])
            second = send("SELECT data, NULL, 'ü' FROM pipelined_b WHERE id = $1", ["1"])
        assert committed() == [1]
    assert hooks == [[1]]
    assert first.rows() == [("1",)] and second.rows() == [("\\x00275c", None, "ü")]


@pytest.mark.parametrize("commit", [False, True])
@pytest.mark.parametrize("bad", [("2", "1"), ("3", "99")])  # a key that is there; one at the commit
def test_an_error_of_any_statement_is_raised_and_nothing_is_stored(
    bad: tuple[str, str], commit: bool
) -> None:
    send(INSERT, ["2", "1", b""])
    for _ in range(2):  # prepared, and prepared before
        with pytest.raises(IntegrityError), transaction.atomic(), one_trip(commit=commit):
            send(INSERT, ["1", "1", b""])
            send(INSERT, [*bad, b""])
            send(INSERT, ["4", "1", b""])
        assert committed() == [2]
    send(INSERT, ["5", "1", b""])
    assert committed() == [2, 5]


def test_a_text_with_nul_is_refused_instead_of_cut() -> None:
    with pytest.raises(ValueError, match="NUL"):
        send("SELECT $1::text", ["a\0b"])


def test_only_the_outermost_transaction_is_committed() -> None:
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        with transaction.atomic(), one_trip(commit=True):
            send(INSERT, ["1", "1", b""])
        assert not committed()
        raise ZeroDivisionError
    assert not committed()


def test_what_fails_before_the_trip_is_over_is_not_sent() -> None:
    with pytest.raises(ZeroDivisionError), transaction.atomic(), one_trip(commit=True):
        send(INSERT, ["1", "1", b""])
        raise ZeroDivisionError
    assert not committed()
    send(INSERT, ["2", "1", b""])
    assert committed() == [2]


def test_a_connection_that_the_server_closed_is_noticed_without_asking() -> None:
    send("SELECT 1", [])
    assert connection.is_usable()
    with another() as other:
        other.autocommit = True  # in a transaction the view stays what it was at the first look
        other.execute("SELECT pg_terminate_backend(%s)", [connection.connection.info.backend_pid])
        while other.execute(
            "SELECT 1 FROM pg_stat_activity WHERE pid = %s",
            [connection.connection.info.backend_pid],
        ).fetchone():
            pass
    assert not connection.is_usable()
    with pytest.raises(OperationalError), transaction.atomic(), one_trip(commit=True):
        send(INSERT, ["1", "1", b""])
    connection.close_if_unusable_or_obsolete()
    send(INSERT, ["2", "1", b""])
    assert committed() == [2]
