"""Small readers of hostile JSON: each takes anything and raises nothing."""

from __future__ import annotations

import ast
import json
import math
import re
from typing import Any

import msgspec

from apps.trajectories import decoding
from workers.lib.storable import storable

ROOM = 12  # levels that the row itself adds around a value, out of decoding.MAX_DEPTH
MAX_LITERAL = 1024 * 1024  # characters of Python's notation that are read
DEPTH = decoding.MAX_DEPTH - ROOM


class _NotKept(Exception):
    """A value that a row cannot keep: nested too deep, or not a JSON number."""


def letters(said: str) -> str:
    """Letters and digits alone: quotes and escapes of JSON do not make another text."""
    return "".join(filter(str.isalnum, said)).casefold()


def tidy(value: str) -> str:
    """The string as the database can keep it."""
    return storable(value)


def _tidied(value: Any, levels: int) -> Any:
    kind = type(value)
    if kind is str:
        return tidy(value)
    if kind is dict:
        if not levels:
            raise _NotKept
        return {tidy(str(key)): _tidied(item, levels - 1) for key, item in value.items()}
    if kind is list:
        if not levels:
            raise _NotKept
        return [_tidied(item, levels - 1) for item in value]
    if (kind is float and not math.isfinite(value)) or (
        kind is int and not -(2**63) <= value < 2**63
    ):
        raise _NotKept
    return value


def structured(value: Any) -> Any:
    """The JSON that a string carries, if it looks like an object or a list and is one that a row
    can keep.
    """
    if not isinstance(value, str) or value.lstrip()[:1] not in ("{", "["):
        return value
    try:
        found = msgspec.json.decode(value)
        if decoding.is_suspicious(value.encode()):
            return _tidied(found, DEPTH)
        shallow = value.count("{") + value.count("[") <= DEPTH  # then nothing needs a walk
        return found if shallow or not decoding.deeper(found, DEPTH) else value
    except (msgspec.DecodeError, _NotKept, RecursionError, UnicodeError):
        return value


def python_literal(value: str) -> Any:
    """The list or object in Python's notation, which some write instead of JSON; the text itself if
    it is none.
    """
    try:
        found = ast.literal_eval(value.strip()) if len(value) <= MAX_LITERAL else value
        is_object = isinstance(found, list | dict)
        return (
            _tidied(json.loads(json.dumps(found)), DEPTH) if is_object else value
        )  # tuples become lists
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError, _NotKept):
        return value


# A string, or what Python prints of an object without a literal form, in which an enum's value is.
PRINTED = re.compile(
    r"""('[^'\\]*(?:\\.[^'\\]*)*'|"[^"\\]*(?:\\.[^"\\]*)*")|<(?:[\w.]+: ('[^'<>]*'|\d+)|[^<>]*)>"""
)


def printed_fields(value: str) -> dict[str, Any] | None:
    """The fields of an object as Python prints it, `Call(name='look', id=None)`, as far as these
    are plain values; None if the text is no such object.
    """
    if len(value) > MAX_LITERAL:
        return None
    literal = PRINTED.sub(lambda found: found[1] or found[2] or "None", value.strip())
    try:
        made = ast.parse(literal, mode="eval").body
        if not isinstance(made, ast.Call) or made.args:
            return None
        named = [(field.arg, field.value) for field in made.keywords if field.arg]
        fields = {name: ast.literal_eval(node) for name, node in named if _is_plain(node)}
        return _tidied(json.loads(json.dumps(fields)), DEPTH)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError, _NotKept):
        return None


def _is_plain(node: ast.expr) -> bool:
    return not any(isinstance(inner, ast.Call | ast.Name) for inner in ast.walk(node))


OPENS_JSON = re.compile(r'\s*(?:\[\s*){0,3}\{\s*"[^"\\]{0,200}"\s*:')
OPENS_PYTHON = re.compile(r"\s*(?:\[\s*){0,3}\{\s*'[^'\\]{0,200}'\s*:")
JSON_SIGNS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|[{}\[\],]', re.DOTALL)
PYTHON_SIGNS = re.compile(
    r""""[^"\\]*(?:\\.[^"\\]*)*"?|'[^'\\]*(?:\\.[^'\\]*)*'?|[{}()\[\],]""", re.DOTALL
)
CLOSERS = {"{": "}", "[": "]", "(": ")"}
CUT_TEXT = re.compile(r"""["'](?:text|content)["']\s*:\s*["]((?:[^"\\]|\\.)*)\\?$""", re.DOTALL)
MIN_CUT = 32  # characters: exporters do not cut shorter


class Part(msgspec.Struct):
    """What is whole of JSON that breaks off. The last member of each of the outer `depth` objects
    and lists goes on beyond the cut.
    """

    value: Any
    depth: int = 0


def whole_part(value: str) -> Part | None:
    """The items of lists and the members of objects before the cut, where exporters limit the
    length of an attribute; also in Python's notation. None if the text is not such JSON.
    """
    is_python = OPENS_PYTHON.match(value) is not None
    if len(value) < MIN_CUT or not (is_python or OPENS_JSON.match(value)):
        return None
    open_: list[str] = []
    end = 0
    for found in (PYTHON_SIGNS if is_python else JSON_SIGNS).finditer(value):
        sign = found[0]
        if sign in CLOSERS:
            open_.append(sign)
            end = found.end()
        elif sign in ("}", "]", ")"):
            if not open_ or CLOSERS[open_.pop()] != sign or not open_:
                return None  # no JSON, or JSON that ends before the text does
            end = found.end()
        elif sign == ",":
            end = found.start()
    if not open_:
        return None
    whole = value[:end] + "".join(CLOSERS[sign] for sign in reversed(open_))
    part = python_literal(whole) if is_python else structured(whole)
    return Part([]) if isinstance(part, str) else Part(part, len(open_))


def cut_text(value: str) -> str:
    """The words of a text part in which the JSON of a content breaks off, as far as they came."""
    found = CUT_TEXT.search(value)
    said = structured(f'["{found[1]}"]') if found else []
    return said[0] if isinstance(said, list) and said else ""


def is_cut(value: Any) -> bool:
    """Whether a value is the text of JSON that breaks off."""
    return isinstance(value, str) and structured(value) is value and whole_part(value) is not None


def kept(value: Any) -> Any:
    """The value if a row can keep it, else a note that it could not be."""
    try:
        return _tidied(value, DEPTH)
    except _NotKept:
        return "(not kept: nested too deep, or not a JSON number)"


def unquoted(value: Any) -> Any:
    """The text inside a JSON string; anything else as it is."""
    if not isinstance(value, str) or len(value) < 2 or not value[0] == value[-1] == '"':
        return value
    try:
        found = msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeError):
        return value
    return tidy(found) if isinstance(found, str) else value


def dumps(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def text(value: Any) -> str:
    """Text as it is, anything else as JSON; nothing is ""."""
    if value is None:
        return ""
    return value if isinstance(value, str) else dumps(value)


def label(value: Any) -> str:
    """A short identifier: text or a number, stripped; "" for anything else."""
    if isinstance(value, str):
        return value.strip()
    return str(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else ""


def number(value: Any) -> float | None:
    """A finite number not below zero, also from a string."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        found = float(value)
    except (ValueError, OverflowError):
        return None
    return found if math.isfinite(found) and found >= 0 else None


def nest(attributes: dict[str, Any], prefix: str) -> list:
    """What flattened keys say: `{prefix}0.role` and so on as a list of values in the order of their
    numbers.
    """
    tree: dict[str, Any] = {}
    for key, value in attributes.items():
        if key.startswith(prefix):
            path = key[len(prefix) :].split(".", 12)
            node = tree
            for part in path[:-1]:
                inner = node.get(part)
                if not isinstance(inner, dict):
                    inner = node[part] = {}
                node = inner
            if not isinstance(node.get(path[-1]), dict):
                node[path[-1]] = value
    return _numbered(tree) if tree else []


def _numbered(tree: dict[str, Any]) -> list:
    keys = sorted((key for key in tree if key.isdecimal() and len(key) < 7), key=int)
    return [_lists(tree[key]) for key in keys]


def _lists(node: Any) -> Any:
    if not isinstance(node, dict):
        return node
    if node and all(key.isdecimal() for key in node):
        return _numbered(node)
    return {key: _lists(value) for key, value in node.items()}
