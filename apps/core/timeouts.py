"""Queries that a page does not wait for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import OperationalError, connection, transaction
from psycopg.errors import QueryCanceled


class TooLong(Exception):
    """A query that was given up."""


@contextmanager
def patience(milliseconds: int) -> Iterator[None]:
    """No query inside takes longer. Raises TooLong."""
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(f"SET LOCAL statement_timeout = {milliseconds:d}")
            yield
            cursor.execute(
                "SET LOCAL statement_timeout TO DEFAULT"
            )  # if this is inside another transaction
    except OperationalError as error:
        if not isinstance(error.__cause__, QueryCanceled):
            raise
        raise TooLong from error
