"""Where a child's events enter: from here on they hold nothing that PostgreSQL cannot store. Pure;
hostile input.
"""

from __future__ import annotations

import json
import logging
import math

from workers.lib.storable import storable_json

log = logging.getLogger(__name__)
DIGITS = 18  # a whole number with no more than these fits into 64 bits


def parse_event(line: bytes) -> dict | None:
    """The event of a line; None for a line that is none.

    NUL and lone surrogates become U+FFFD. Numbers are read as JavaScript would: whole ones of more
    than 18 digits as floats; NaN, infinity and what is too large for a float become null.
    """
    if not line.strip():
        return None
    try:
        event = json.loads(
            line, parse_int=_whole, parse_float=_float, parse_constant=lambda _: None
        )
        is_event = isinstance(event, dict) and isinstance(event.get("seq"), int) and "type" in event
        if is_event:
            return storable_json(event)
    except (ValueError, RecursionError):
        pass
    log.warning(
        "A line of %d bytes from a job's program is not an event: %r", len(line), line[:200]
    )
    return None


def _whole(text: str) -> int | float | None:
    return int(text) if len(text.lstrip("-")) <= DIGITS else _float(text)


def _float(text: str) -> float | None:
    value = float(text)
    return value if math.isfinite(value) else None
