"""Where a pooler (PgBouncer in transaction mode) stands between processes and PostgreSQL, each
transaction may have another of its sessions. What needs one session for longer (a lock that
outlives a transaction, LISTEN, pg_dump) has it at DATABASE_DIRECT_URL.
"""

from __future__ import annotations

from typing import Any

from django.db import connection, connections

DIRECT = "direct"


def is_pooled() -> bool:
    return DIRECT in connections.settings


def direct() -> Any:
    """Of this thread: Django's connection whose session is one server process."""
    return connections[DIRECT] if is_pooled() else connection


def has_pooler(link: Any) -> bool:
    """Whether something stands between: it says another process of the server than the server
    itself.
    """
    with link.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return cursor.fetchone()[0] != link.connection.info.backend_pid
