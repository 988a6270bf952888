"""What PostgreSQL reads that psycopg writes slowly. Pure."""

from __future__ import annotations

from collections.abc import Iterable


def array(values: Iterable[str]) -> str:
    """PostgreSQL's text form of text[]. psycopg's own converts every element separately: a fifth of
    a batch's time.
    """
    if not (known := list(values)):
        return "{}"
    joined = "\0".join(known)  # which no text here holds, so that all values are escaped at once
    escaped = joined.replace("\\", "\\\\").replace('"', '\\"').replace("\0", '","')
    return f'{{"{escaped}"}}'
