"""Strict and bounded parsing of JSON from agents and tools. Light."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from workers.lib.storable import storable_json

MAX_DEPTH = 60  # nesting of objects and lists, as for stored trajectories
# An escape of one of these in JSON; that of a whole surrogate pair looks the same.
_ESCAPED = re.compile(r"\\u(?:0000|[dD][89a-fA-F])")


class TooDeep(ValueError):
    def __init__(self) -> None:
        super().__init__(f"nested deeper than {MAX_DEPTH} levels")


def read_json(text: str) -> Any:
    """Parse JSON text.

    Raises ValueError for anything that is not JSON, for NaN, numbers beyond a double's range and an
    object with a duplicate name (parsers differ in which value they take: RFC 8259, section 4);
    TooDeep for nesting deeper than MAX_DEPTH.
    """
    return _read(text, _DECODER)


def read_repeated(text: str) -> Any:
    """The same, but a repeated name gets a list of all its values: for checks that must see
    each.
    """
    return _read(text, _MERGING)


def _read(text: str, decoder: json.JSONDecoder) -> Any:
    try:
        value, end = decoder.scan_once(text, 0)
        if end != len(text):
            raise StopIteration
    except StopIteration:  # surrounding space, or invalid JSON: the decoder tells which
        value = _decode(text, decoder)
    except RecursionError as error:
        raise TooDeep from error
    if text.count("{") + text.count("[") > MAX_DEPTH and not is_json(value):
        raise TooDeep
    return value


def json_of(text: str) -> Any:
    """For what is shown or stored: `storable_json`, and None if the text is not valid JSON."""
    try:
        value = read_json(text)
    except ValueError:
        return None
    return storable_json(value) if _ESCAPED.search(text) else value


def _refuse(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    found = float(text)
    return found if math.isfinite(found) else _refuse(text)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("an object gives a name twice")
    return found


def all_values(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object in which a repeated name has a list of all its values."""
    found: dict[str, list] = {}
    for name, value in pairs:
        found.setdefault(name, []).append(value)
    return {name: values[0] if len(values) == 1 else values for name, values in found.items()}


# Created once, because json.loads creates a decoder each time.
_DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=_refuse, object_pairs_hook=_once)
_MERGING = json.JSONDecoder(
    parse_float=_finite, parse_constant=_refuse, object_pairs_hook=all_values
)


def _decode(text: str, decoder: json.JSONDecoder) -> Any:
    try:
        return decoder.decode(text)
    except RecursionError as error:
        raise TooDeep from error


def is_json(value: Any) -> bool:
    """Whether a Python value is JSON that `read_json` could have returned: its types, finite
    numbers, limited depth.

    Works level by level instead of recursively, so that deep nesting cannot overflow it.
    """
    if (
        type(value) is dict
        and _TEXT.issuperset(map(type, value))
        and _PLAIN.issuperset(map(type, value.values()))
    ):
        return True  # as for nearly all arguments
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
    """Whether a value, apart from its items, is valid JSON."""
    if isinstance(item, dict):
        return all(isinstance(name, str) for name in item)
    if isinstance(item, float):
        return math.isfinite(item)
    return item is None or isinstance(item, str | int | list)


def unpacked(value: Any) -> Any:
    """The value of a JSON text, `storable_json`; invalid JSON and what is no text are returned
    unchanged.
    """
    if not isinstance(value, str):
        return value
    try:
        found = read_json(value)
    except ValueError:
        return value
    return storable_json(found) if _ESCAPED.search(value) else found
