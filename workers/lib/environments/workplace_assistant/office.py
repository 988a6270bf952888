"""An Office layers the changes of one episode on tables that all episodes share. Light and pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from workers.lib.environments.workplace_assistant.tables import (
    BOARDS,
    COLUMNS,
    COMPARED,
    LISTS,
    PRODUCTS,
    STATUSES,
    Tables,
)

KEPT_CASE = ("status", "list_name", "board")
CHOICES = {"status": STATUSES, "product_interest": PRODUCTS, "list_name": LISTS, "board": BOARDS}
FORMATS = {"event_start": "%Y-%m-%d %H:%M:%S", "due_date": "%Y-%m-%d"}
ADDRESS = re.compile(r"[^@\s]+@[^@\s]+\.[^@\s]+")


class OfficeError(Exception):
    """A call that the office rejects; the agent reads the message."""


class Office:
    """`changes` {table: {id: row, or None if deleted}} is everything that an episode did; it is
    JSON.
    """

    def __init__(
        self, tables: Tables, now: str, changes: dict[str, dict[str, dict | None]] | None = None
    ) -> None:
        self.tables, self.now = tables, now
        self.changes: dict[str, dict[str, dict | None]] = changes or {}

    # Rows

    def rows(self, table: str) -> Iterator[dict]:
        changed = self.changes.get(table, {})
        for name, row in self.tables[table].items():
            row = changed.get(name, row)
            if row is not None:
                yield row
        yield from (
            row
            for name, row in changed.items()
            if row is not None and name not in self.tables[table]
        )

    def find(self, table: str, name: str, what: str) -> dict:
        changed = self.changes.get(table, {})
        row = changed[name] if name in changed else self.tables[table].get(name)
        if row is None:
            raise OfficeError(f"There is no {what} with the ID {name}.")
        return row

    def put(self, table: str, name: str, row: dict | None) -> None:
        self.changes.setdefault(table, {})[name] = row

    def next_id(self, table: str) -> str:
        """One more than the highest ID ever used, so that no ID is used twice."""
        names = [*self.tables[table], *self.changes.get(table, {})]
        return f"{max((int(name) for name in names if name.isdigit()), default=-1) + 1:08d}"

    def add(self, table: str, **fields: Any) -> str:
        name = self.next_id(table)
        self.put(table, name, {COLUMNS[table][0]: name} | fields)
        return name

    def set(self, table: str, name: str, field: str, value: str, what: str) -> None:
        row = self.find(table, name, what)
        allowed = COLUMNS[table][1:]
        if field not in allowed:
            raise OfficeError(
                f"“{field}” is no field that can be updated. Fields: {', '.join(allowed)}."
            )
        self.put(table, name, row | {field: checked(field, value)})

    def end_state(self) -> dict:
        """{table: {id: row or None}} for the rows that differ from the start, normalised for
        comparison.

        All episodes have the same start, so equal differences mean equal tables. Case is ignored
        except in KEPT_CASE.
        """
        return {
            table: {
                name: _comparable(row)
                for name, row in sorted(self.changes.get(table, {}).items())
                if _comparable(row) != _comparable(self.tables[table].get(name))
            }
            for table in COMPARED
        }


def _comparable(row: dict | None) -> dict | None:
    if row is None:
        return None
    return {
        name: value.lower() if isinstance(value, str) and name not in KEPT_CASE else value
        for name, value in row.items()
    }


def checked(field: str, value: str) -> str:
    """A value as the table stores it. Raises OfficeError for an invalid one."""
    if field in CHOICES and value not in CHOICES[field]:
        raise OfficeError(f"“{value}” is no {field}. One of: {', '.join(CHOICES[field])}.")
    if field in ("assigned_to_email", "participant_email"):
        value = value.lower()
        if not ADDRESS.fullmatch(value):
            raise OfficeError(f"“{value}” is no email address.")
    if field in FORMATS:
        moment(value, FORMATS[field], field)
    if field == "duration" and not (
        value.isascii() and value.isdigit() and 0 < int(value[:9]) <= 24 * 60
    ):
        raise OfficeError("The duration must be a number of minutes.")
    return value


def moment(value: str, form: str, field: str) -> datetime:
    try:
        return datetime.strptime(value, form)
    except ValueError:
        raise OfficeError(f"“{value}” is no {field} of the form {form}.") from None
