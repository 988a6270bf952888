"""JSON as agents and tools write it: strict and bounded. Only the standard library."""

from __future__ import annotations

import json
import math
from typing import Any

MAX_DEPTH = 60  # objects and lists inside one another, as many as a stored trajectory may have
_UNSTORABLE = dict.fromkeys((0, *range(0xD800, 0xE000)), "\ufffd")  # NUL and lone surrogates


class TooDeep(ValueError):
    def __init__(self) -> None:
        super().__init__(f"nested deeper than {MAX_DEPTH} levels")


def read_json(text: str) -> Any:
    """The value of a JSON text. Of a name that is given twice the last value counts, as for nearly every reader.

    Raises ValueError for what is not JSON, NaN and numbers beyond a double's range, TooDeep for nesting deeper than MAX_DEPTH.
    """
    try:
        value, end = _scan(text, 0)
        if end != len(text):
            raise StopIteration
    except StopIteration:  # space around it, or no JSON: the decoder says which
        value = _decode(text)
    except RecursionError as error:
        raise TooDeep from error
    if text.count("{") + text.count("[") > MAX_DEPTH and not is_json(value):
        raise TooDeep
    return value


def json_of(text: str) -> Any:
    """The same, but None where the text is not such JSON."""
    try:
        return read_json(text)
    except ValueError:
        return None


def _refuse(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    found = float(text)
    return found if math.isfinite(found) else _refuse(text)


_DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=_refuse)  # made once: json.loads makes one each time
_scan = _DECODER.scan_once


def _decode(text: str) -> Any:
    try:
        return _DECODER.decode(text)
    except RecursionError as error:
        raise TooDeep from error


def is_json(value: Any) -> bool:
    """Whether a Python value is JSON that `read_json` could have read: its types, finite numbers, bearable depth.

    Level by level instead of recursive, so that no depth is too much for it.
    """
    if type(value) is dict and _TEXT.issuperset(map(type, value)) and _PLAIN.issuperset(map(type, value.values())):
        return True  # as nearly all arguments are
    level = [value]
    for depth in range(MAX_DEPTH + 1):
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                below += item.values()
            elif isinstance(item, list):
                below += item
            if not _is_sound(item) or (depth == MAX_DEPTH and isinstance(item, dict | list)):
                return False
        level = below
    return True


_TEXT, _PLAIN = frozenset((str,)), frozenset((str, int, bool, type(None)))


def _is_sound(item: Any) -> bool:
    """Whether a value, apart from what it holds, is JSON."""
    if isinstance(item, dict):
        return all(isinstance(name, str) for name in item)
    if isinstance(item, float):
        return math.isfinite(item)
    return item is None or isinstance(item, str | int | list)


def unpacked(value: Any) -> Any:
    """What a text says as JSON; a text that is not JSON, and anything but text, as it is."""
    if not isinstance(value, str):
        return value
    try:
        return read_json(value)
    except ValueError:
        return value


def clean(text: str) -> str:
    """A text without the characters that no database stores."""
    return text.translate(_UNSTORABLE)


def cleaned(value: Any) -> Any:
    """A JSON value with all its texts and names `clean`."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, list):
        return [cleaned(item) for item in value]
    if isinstance(value, dict):
        return {clean(name): cleaned(item) for name, item in value.items()}
    return value
