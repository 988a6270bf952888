"""JSON that comes as text, as the arguments of tool calls do. Pure; hostile input."""

from __future__ import annotations

import json
from typing import Any


def parsed(value: Any) -> Any:
    """What a text says as JSON; a text that is none, and anything but a text, as it is."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value
