"""A server that refuses a connection because all that it allows are in use: SQLSTATE 53300, an
answer of a server that works.
"""

from __future__ import annotations

TOO_MANY_CONNECTIONS = "53300"
# libpq tells no SQLSTATE of a connection that was refused, only the text: PostgreSQL's four, and
# PgBouncer's.
TEXTS = (
    "too many clients already",
    "remaining connection slots are reserved",
    "too many connections for role",
    "too many connections for database",
    "no more connections allowed",
)


def is_full(error: BaseException | None) -> bool:
    while error is not None:
        if getattr(error, "sqlstate", None) == TOO_MANY_CONNECTIONS:
            return True
        if any(text in str(error) for text in TEXTS):
            return True
        error = error.__cause__
    return False
