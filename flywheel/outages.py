"""Outages of the database and the broker: which errors mean one, and how they are logged (one line,
not a page of frames).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import psycopg
from django.db import InterfaceError, OperationalError
from kombu.exceptions import OperationalError as BrokerError
from redis.exceptions import ConnectionError as NoBroker
from redis.exceptions import TimeoutError as SlowBroker

# psycopg's own, too: Django does not translate what is raised inside a COPY.
AWAY = (
    OperationalError,
    InterfaceError,
    psycopg.OperationalError,
    psycopg.InterfaceError,
    BrokerError,
    NoBroker,
    SlowBroker,
)
# Classes of SQLSTATE that pass by themselves: connection, transaction rollback (deadlocks),
# resources, operator; then read-only (a standby during fail-over) and a lock that was not
# available.
TRANSIENT = ("08", "40", "53", "57", "25006", "55P03")
RETRY_AFTER_S = 5


class OneLine(logging.Filter):
    """Takes the traceback from records that tell of a service that is away; what happened stays in
    the line.

    Only connection errors count: a query that fails on a connection that stands (OperationalError
    with an SQLSTATE, as a deadlock has) is a fault worth its frames.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
        if error is not None and is_away(error):
            said = " ".join(str(error).split())
            text = record.getMessage()
            record.msg, record.args = (text if said in text else f"{text} ({said})"), ()
            record.exc_info, record.exc_text = None, None
        return True


def is_away(error: BaseException) -> bool:
    """Whether the error says that the database or the broker cannot be reached."""
    return isinstance(error, AWAY) and not any(_is_answer(part) for part in _chain(error))


def is_transient(error: BaseException) -> bool:
    """Whether the same request may succeed in some seconds, so that its sender should try again."""
    states = [state for part in _chain(error) if (state := getattr(part, "sqlstate", None))]
    return is_away(error) or any(state.startswith(TRANSIENT) for state in states)


def _is_answer(error: BaseException) -> bool:
    """Whether the database itself answered, other than that it starts or stops (class 57P)."""
    state = getattr(error, "sqlstate", None)
    return bool(state) and not state.startswith(("57P", "08"))


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__
