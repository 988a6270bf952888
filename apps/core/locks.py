"""PostgreSQL advisory locks, every number in one place: two purposes that share a number would wait
for each other.

All are held until the transaction ends, except those of `holding_in` and `try_holding`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum, unique
from typing import Any

from django.db import connection

from flywheel.postgres.direct import direct


@unique
class Lock(IntEnum):
    """Bigint locks. PostgreSQL keeps those of one bigint and those of two ints apart."""

    MAKE_PARTITIONS = 0x666C7977
    USER_NAMES = 0x666C756E
    BACKUP = 0x666C6275
    OLD_MONTHS = 0x666C7979  # shared by those who write to an old month, exclusive to who drops one


@unique
class ProjectLock(IntEnum):
    """The first of two ints; the second is the project."""

    CLUSTERS = 0x666C636C
    TASKS = 0x6C65616B
    # shared by those who digest new runs, exclusive to who digests changed ones or counts all again
    DIGEST = 0x666C6469
    COUNTS = 0x666C636F  # of who adds to the counts of a project
    STITCHING = 0x666C7374
    NAMES = 0x666C6E61
    # shared by those who refer to policy rules, exclusive to who adds or removes some
    POLICY = 0x666C706F
    REPLIES = 0x666C7265
    HOLDOUT_SCORES = 0x6C6F6F6B
    # shared by those who store runs, exclusive for whoever gives feedback on a run that does not
    # exist
    FEEDBACK = 0x666C6662
    PARQUET = 0x666C7071
    STEP_TOTALS = 0x666C746F


@unique
class NameLock(IntEnum):
    """The first of two ints; the second is a digest's first four bytes. Two names that share them
    wait for each other, no more.
    """

    ARTIFACT = 0x666C6172


def acquire(lock: Lock, *, shared: bool = False) -> None:
    _call(f"pg_advisory_xact_lock{'_shared' if shared else ''}", lock)


def acquire_in(project_id: int, lock: ProjectLock, *, shared: bool = False) -> None:
    _call(f"pg_advisory_xact_lock{'_shared' if shared else ''}", lock, project_id)


def acquire_named(lock: NameLock, digest: str) -> None:
    _call("pg_advisory_xact_lock", lock, int.from_bytes(bytes.fromhex(digest[:8]), signed=True))


def try_acquire_in(project_id: int, lock: ProjectLock, *, shared: bool = False) -> bool:
    return bool(_call(f"pg_try_advisory_xact_lock{'_shared' if shared else ''}", lock, project_id))


@contextmanager
def holding_in(project_id: int, lock: ProjectLock) -> Iterator[None]:
    """Outside of a transaction: one that begins inside sees all that the holder before has
    committed.
    """
    _call("pg_advisory_lock", lock, project_id, of=direct())
    try:
        yield
    finally:
        _call("pg_advisory_unlock", lock, project_id, of=direct())


@contextmanager
def try_holding(lock: Lock) -> Iterator[bool]:
    """Outside of a transaction, without waiting: whether the lock is held."""
    is_held = bool(_call("pg_try_advisory_lock", lock, of=direct()))
    try:
        yield is_held
    finally:
        if is_held:
            _call("pg_advisory_unlock", lock, of=direct())


@contextmanager
def try_holding_in(project_id: int, lock: ProjectLock) -> Iterator[bool]:
    """As `holding_in`, without waiting: whether the lock is held."""
    is_held = bool(_call("pg_try_advisory_lock", lock, project_id, of=direct()))
    try:
        yield is_held
    finally:
        if is_held:
            _call("pg_advisory_unlock", lock, project_id, of=direct())


def _call(function: str, *numbers: int, of: Any = connection) -> object:
    with of.cursor() as cursor:
        cursor.execute(
            f"SELECT {function}({', '.join(['%s'] * len(numbers))})",
            [int(number) for number in numbers],
        )
        return cursor.fetchone()[0]
