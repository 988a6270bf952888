"""JSON texts and calls embedded in other text. Pure."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from itertools import islice
from typing import Any

from workers.lib.messages.json_text import all_values

TRIED = 50  # positions in a text that look like the start of one but are not
LONGEST_CALL = 4_000
_DECODER = json.JSONDecoder(object_pairs_hook=all_values)
_JSON_STARTS = re.compile(r"[\[{](?=\s*[\[{\"\d-])")
_CALL_STARTS = re.compile(r"\b[A-Za-z_][\w.]{0,100}+\((?=\s*[A-Za-z_]\w*\s*=[^=])")


def json_in(text: str) -> Iterator[tuple[int, int, Any]]:
    """(start, end, value) of every JSON object or list in a text."""
    done, tried = 0, 0
    for match in _JSON_STARTS.finditer(text):
        if match.start() < done:
            continue
        try:
            found, done = _DECODER.raw_decode(text, match.start())
            yield match.start(), done, found
        except (ValueError, RecursionError):
            tried += 1
            if tried == TRIED:
                return


def python_calls_in(text: str) -> Iterator[dict]:
    """{"tool", "args"} of every call with named literal values in Python syntax."""
    for match in islice(_CALL_STARTS.finditer(text), TRIED):
        if (call := _parsed(_balanced(text, match.start(), match.end()))) is not None:
            yield call


def _balanced(text: str, start: int, inside: int) -> str:
    """The text up to the bracket that closes the one before `inside`; "" if it is not closed."""
    depth, quote = 1, ""
    for at in range(inside, min(len(text), start + LONGEST_CALL)):
        char = text[at]
        if quote:
            quote = "" if char == quote and text[at - 1] != "\\" else quote
        elif char in "\"'":
            quote = char
        elif char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
            if not depth:
                return text[start : at + 1]
    return ""


def _parsed(text: str) -> dict | None:
    try:
        call = ast.parse(text, mode="eval").body if text else None
        if (
            not isinstance(call, ast.Call)
            or call.args
            or not all(keyword.arg for keyword in call.keywords)
        ):
            return None
        args = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return {"tool": ast.unparse(call.func), "args": args}
