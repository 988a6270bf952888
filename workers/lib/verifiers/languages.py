"""Parses Java and JavaScript values in BFCL's answers, which are text in the language: `100L`, `new
ArrayList<>(Arrays.asList(1, 2))`, `{'a': [1, true]}`. Pure, linear in the text.

Anything that is not a literal of the declared type is a variable or an expression, and stays text.
"""

from __future__ import annotations

import re
from typing import Any

from workers.lib.messages.json_text import MAX_DEPTH

CODE = "x-code"  # in the schema of an argument: {"language", "type", "items"}
LONGEST = 20_000
WHOLE, REAL = ("byte", "short", "integer", "long", "Bigint"), ("float", "double")
_NUMBERS = {
    "byte": r"-?\d+",
    "short": r"-?\d+",
    "integer": r"-?\d+",
    "long": r"(-?\d+)[lL]",
    "Bigint": r"(-?\d+)n",
    "float": r"(-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)[fF]",
    "double": r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?",
}
_JS_FLOAT = r"-?\d+(?:\.\d+)?"
_ANY_NUMBER = re.compile(r"(-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)[lLfFn]?", re.ASCII)
_JAVA_LIST = re.compile(
    r"new\s+ArrayList<[^>]*>\s*\(\s*(?:Arrays\.asList\s*\((.*)\)\s*)?\)", re.DOTALL
)
_JAVA_ADDS = re.compile(
    r"new\s+(ArrayList|HashMap)<.*?>\s*\(\s*\)\s*\{\s*\{?(.*?)\}?\s*\}", re.DOTALL
)
_JAVA_MAP = re.compile(r"new\s+HashMap<.*?>\s*\(\s*\)", re.DOTALL)
_JAVA_ARRAY = re.compile(r"new\s+\w+\[\]\s*\{(.*)\}", re.DOTALL)
_JS_ARRAY = re.compile(r"(?:new\s+Array\s*\((.*)\)|\[(.*)\])", re.DOTALL)
_JS_OBJECT = re.compile(r"\{(.*)\}", re.DOTALL)
_PAIRS = {"(": ")", "[": "]", "{": "}"}


def value_of(text: str, code: dict) -> Any:
    """The value of the text in the language and type that `code` names; the text itself if it is
    not such a literal. As on the leaderboard, spaces around a literal make it another one, except
    for collections in JavaScript.
    """
    kind = str(code.get("type"))
    if len(text) > LONGEST:
        return text
    java = code.get("language") == "java"
    found = _typed(
        text if java or kind not in ("array", "dict") else text.strip(),
        kind,
        code.get("items"),
        java,
        0,
    )
    return text if found is None else found


def schema_of(code: dict) -> dict:
    """The JSON Schema type of a value after parsing."""
    kind = code.get("type")
    name = (
        "integer"
        if kind in WHOLE
        else "number"
        if kind in REAL
        else "boolean"
        if kind in ("boolean", "Boolean")
        else None
    )
    return (
        {"type": name}
        if name
        else {"items": schema_of({"type": code["items"]})}
        if code.get("items")
        else {}
    )


def _typed(text: str, kind: str, items: Any, java: bool, depth: int) -> Any:
    """None if the text is not a literal of the type."""
    if kind in WHOLE or kind in REAL:
        found = re.fullmatch(
            _JS_FLOAT if kind == "float" and not java else _NUMBERS[kind], text, re.ASCII
        )
        number = found and (found.groups() or (found[0],))[0]
        return None if not number else _number(number, kind in REAL)
    if kind in ("boolean", "Boolean"):
        return {"true": True, "false": False}.get(text)
    if kind == "String" and not java:
        return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else None
    if kind in ("Array", "ArrayList", "array", "HashMap", "dict"):
        return _collection(text, kind, items, java, depth)
    return None


def _collection(text: str, kind: str, items: Any, java: bool, depth: int) -> Any:
    if depth >= MAX_DEPTH:
        return None
    if kind == "HashMap" or kind == "dict":
        return _java_map(text, depth) if java else _js_object(text, depth)
    parts = _java_parts(text, kind) if java else _js_parts(text)
    return None if parts is None else [_item(part, items, java, depth + 1) for part in parts]


def _item(text: str, items: Any, java: bool, depth: int) -> Any:
    """A list item, by the declared type of items where that is more specific than the literal
    itself.
    """
    if items in (*WHOLE, *REAL, "boolean", "Boolean"):
        found = _typed(text, str(items), None, java, depth)
        return text if found is None else found
    return _literal(text, java, depth)


def _literal(text: str, java: bool, depth: int) -> Any:
    """A value by its own syntax."""
    if text in ("true", "false"):
        return text == "true"
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        return text[1:-1]
    if found := _ANY_NUMBER.fullmatch(text):
        return _number(found[1], bool(set(found[1]) & set(".eE")) or text[-1] in "fF")
    for kind in ("Array", "ArrayList", "HashMap") if java else ("array", "dict"):
        if (inner := _collection(text, kind, None, java, depth + 1)) is not None:
            return inner
    return text


def _number(text: str, real: bool) -> Any:
    return float(text) if real else int(text) if len(text) < 400 else None


def _java_parts(text: str, kind: str) -> list[str] | None:
    if kind == "Array":
        found = _JAVA_ARRAY.fullmatch(text)
        return None if found is None else split(found[1])
    if found := _JAVA_LIST.fullmatch(text):
        return split(found[1] or "")
    found = _JAVA_ADDS.fullmatch(text)
    return None if found is None or found[1] != "ArrayList" else _arguments(found[2], "add")


def _java_map(text: str, depth: int) -> dict | None:
    if _JAVA_MAP.fullmatch(text):
        return {}
    found = _JAVA_ADDS.fullmatch(text)
    if found is None or found[1] != "HashMap":
        return None
    pairs = [split(put) for put in _arguments(found[2], "put")]
    return {
        pair[0].strip("\"'"): _literal(pair[1], True, depth + 1) for pair in pairs if len(pair) == 2
    }


def _arguments(body: str, method: str) -> list[str]:
    """The text between the brackets of each `method(…);`."""
    calls = (part.strip() for part in split(body, ";"))
    return [
        call[len(method) + 1 : -1].strip()
        for call in calls
        if call.startswith(f"{method}(") and call.endswith(")")
    ]


def _js_parts(text: str) -> list[str] | None:
    found = _JS_ARRAY.fullmatch(text)
    return None if found is None else split(found[1] if found[1] is not None else found[2])


def _js_object(text: str, depth: int) -> dict | None:
    if (found := _JS_OBJECT.fullmatch(text)) is None:
        return None
    pairs = [split(member, ":", 1) for member in split(found[1])]
    if any(len(pair) != 2 for pair in pairs):
        return None
    return {name.strip("\"'"): _literal(value, False, depth + 1) for name, value in pairs}


def split(text: str, by: str = ",", most: int = 0) -> list[str]:
    """The parts between separators outside of brackets and quotes; [] for an empty text."""
    parts, start, closing, quote = [], 0, list[str](), ""
    for at, char in enumerate(text):
        if quote:
            quote = "" if char == quote and text[at - 1] != "\\" else quote
        elif char in "\"'":
            quote = char
        elif char in _PAIRS:
            closing.append(_PAIRS[char])
        elif closing and char == closing[-1]:
            closing.pop()
        elif char == by and not closing and not (most and len(parts) >= most):
            parts.append(text[start:at].strip())
            start = at + 1
    last = text[start:].strip()
    return [*parts, last] if parts or last else []
