"""JSON from an agent or a tool, held to what can be stored and judged. Light and pure."""

from __future__ import annotations

from typing import Any

from workers.lib.messages import read_json

_BAD = dict.fromkeys((0, *range(55296, 57344)), "�")  # NUL and lone surrogates: no database takes them


def clean(text: str) -> str:
    return text.translate(_BAD)


def parsed(text: str) -> Any:
    """The value of a JSON text. Raises ValueError where it is none, holds NaN, or is nested too deep (`read_json`)."""
    return _cleaned(read_json(text))


def _cleaned(value: Any) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, list):
        return [_cleaned(item) for item in value]
    if isinstance(value, dict):
        return {clean(name): _cleaned(item) for name, item in value.items()}
    return value
