"""Receiving comes first: what works in the background gives way to it, by its niceness.

A part of the product is made nicer before it starts threads (NICENESS), and with each of its
threads the process of its connection to the embedded PostgreSQL, which does most of the work. A
thread may take the place of receivers where that is allowed (root, RLIMIT_NICE).
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

from flywheel import embedded

# Runs are assembled and digested before they are classified, clustered and judged.
NICENESS = {"ingest": 10, "default": 15, "judge": 15}
# The variables that say to a process and its children what they are, and where receivers stand.
PART, RECEIVERS = "FLYWHEEL_PART", "FLYWHEEL_NICENESS"


def start(part: str) -> None:
    """For a process that becomes this part, before it has threads."""
    receivers = os.getpriority(os.PRIO_PROCESS, 0)
    os.environ |= {PART: part, RECEIVERS: str(receivers)}
    _set(0, receivers + NICENESS.get(part, 0))


def share(connection: Any, **_: Any) -> None:
    """Gives the database process of a connection the niceness of the thread that uses it."""
    if connection.connection is not None and embedded.wants_postgres():
        _set(connection.connection.info.backend_pid, os.getpriority(os.PRIO_PROCESS, 0))


def gives_way() -> bool:
    """Whether this process is of a part that does."""
    return os.environ.get(PART, "") in NICENESS


def take(is_late: bool, connection: Any) -> None:
    """Lets a thread of a part that gives way work like a receiver where it is late."""
    part = os.environ[PART]
    before = os.getpriority(os.PRIO_PROCESS, 0)
    receivers = int(os.environ.get(RECEIVERS, 0))
    _set(0, receivers if is_late else receivers + NICENESS[part])
    if os.getpriority(os.PRIO_PROCESS, 0) != before:
        share(connection)


def _set(pid: int, niceness: int) -> None:
    with suppress(PermissionError, ProcessLookupError):
        if os.getpriority(os.PRIO_PROCESS, pid) != niceness:
            os.setpriority(os.PRIO_PROCESS, pid, niceness)
