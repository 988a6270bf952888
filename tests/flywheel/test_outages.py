"""What the log says of a database or broker that is away."""

from __future__ import annotations

import logging

import psycopg
import pytest
from django.db import OperationalError
from redis.exceptions import ConnectionError as NoBroker

from flywheel.outages import OneLine


def raised(error: Exception, cause: Exception | None = None) -> Exception:
    try:
        raise error from cause
    except Exception as caught:
        return caught


def line(error: Exception, text: str = "Database gave error") -> str:
    record = logging.LogRecord(
        "beat", logging.ERROR, "x.py", 1, text, (), (type(error), error, error.__traceback__)
    )
    assert OneLine().filter(record)
    return logging.Formatter("%(message)s").format(record)


GONE = psycopg.OperationalError("connection failed:\n\tIs the server running?")


@pytest.mark.parametrize(
    "error",
    [
        raised(OperationalError("connection failed:\n\tIs the server running?"), GONE),
        raised(
            OperationalError("terminating connection"),
            psycopg.errors.AdminShutdown("terminating connection"),
        ),
        raised(NoBroker("Connection refused")),
    ],
    ids=["no database", "it stops", "no broker"],
)
def test_an_outage_is_one_line_that_says_why(error: Exception) -> None:
    said = line(error)
    assert said == f"Database gave error ({' '.join(str(error).split())})"


def test_what_is_said_already_is_not_said_twice() -> None:
    assert line(raised(NoBroker("Connection refused")), "It failed: Connection refused") == (
        "It failed: Connection refused"
    )


@pytest.mark.parametrize(
    "error",
    [
        raised(OperationalError("deadlock"), psycopg.errors.DeadlockDetected("deadlock")),
        raised(KeyError("x")),
    ],
    ids=["deadlock", "a fault"],
)
def test_a_fault_keeps_its_traceback(error: Exception) -> None:
    assert "Traceback" in line(error)
