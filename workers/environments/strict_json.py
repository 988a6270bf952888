"""JSON from an agent or a tool, held to what can be stored and judged. Light and pure."""

from __future__ import annotations

import json
from typing import Any

from workers.verifiers import MAX_DEPTH

_BAD = dict.fromkeys((0, *range(55296, 57344)), "�")  # NUL and lone surrogates: no database takes them


def clean(text: str) -> str:
    return text.translate(_BAD)


def parsed(text: str) -> Any:
    """The value of a JSON text. Raises ValueError where it is none, holds NaN, or is deeper than MAX_DEPTH."""
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except RecursionError as error:
        raise ValueError("nested too deep") from error
    if not _is_shallow(value):
        raise ValueError("nested too deep")
    return _cleaned(value)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _is_shallow(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [
            item
            for holder in level
            if isinstance(holder, dict | list)
            for item in (holder.values() if isinstance(holder, dict) else holder)
        ]
    return not level


def _cleaned(value: Any) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, list):
        return [_cleaned(item) for item in value]
    if isinstance(value, dict):
        return {clean(name): _cleaned(item) for name, item in value.items()}
    return value
