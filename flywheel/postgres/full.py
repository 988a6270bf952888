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
    return bool(why_full(error))


def why_full(error: BaseException | None) -> str:
    """The server's words without addresses and names; "" if it is not full."""
    while error is not None:
        if found := next((text for text in TEXTS if text in str(error)), ""):
            return found
        if getattr(error, "sqlstate", None) == TOO_MANY_CONNECTIONS:
            return f"SQLSTATE {TOO_MANY_CONNECTIONS}"
        error = error.__cause__
    return ""
