"""Where a mapping finds a value: the name of a column, or a JMESPath into nested JSON."""

from __future__ import annotations

import ast
import json
import re
import tokenize
from io import StringIO
from typing import Any

import jmespath
from jmespath.exceptions import JMESPathError

from apps.trajectories.decoding import RowError, clean

MAX_PATH = 300
MAX_LITERAL = 2 * 1024 * 1024
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
DOTTED = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)+")


# Two items of a list with nothing but space between them, as numpy prints an array; or its name.
BY_NUMPY = re.compile(r"""['"\]})]\s+[rbuf]?['"\[{(]|\barray\(""")
MAX_PRINTED = 200_000  # characters: a second's work


class PathError(ValueError):
    """A text that is no path."""


class Path:
    """`get` finds a value in a record: by the column's whole name, else by JMESPath (`$.` before it
    is allowed).

    `=text` is the same text for every record. JSON inside a column's text is read where a path goes
    into it.
    """

    def __init__(self, text: str) -> None:
        self.text = text = text.strip()
        if len(text) > MAX_PATH:
            raise PathError(f"longer than {MAX_PATH} characters")
        self.constant = text[1:] if text.startswith("=") else None
        bare = text.removeprefix("$.")
        self.root = found[0] if (found := NAME.match(bare)) else ""
        self.steps = bare.split(".") if DOTTED.fullmatch(bare) else []
        self._compiled: Any = None
        if self.constant is None:
            try:
                self._compiled = jmespath.compile(bare)
            except (JMESPathError, ValueError, RecursionError) as error:
                self._problem = str(error)

    def check(self, columns: set[str] | None = None) -> None:
        """Raises PathError if it is neither a path nor a column; where the columns are not known,
        it may be one.
        """
        if (
            self.constant is None
            and self._compiled is None
            and columns is not None
            and self.text not in columns
        ):
            raise PathError(f"“{self.text}” is neither a column nor a JMESPath")

    def get(self, record: dict) -> Any:
        """None if there is no such value."""
        if self.constant is not None:
            return self.constant
        if self.text in record:
            return record[self.text]
        if self._compiled is None:
            return None
        if isinstance(record.get(self.root), str):
            record = record | {self.root: loose(record[self.root])}
        try:
            return self._compiled.search(record)
        except (JMESPathError, TypeError, RecursionError):
            return None


def loose(value: Any) -> Any:
    """The object or list that a text holds as JSON, or as Python prints it (what pandas writes into
    a CSV).
    """
    if not isinstance(value, str) or not value.lstrip().startswith(("{", "[", "array(")):
        return value
    try:
        return clean(json.loads(value))
    except RowError:
        return value
    except (ValueError, RecursionError):
        pass
    if len(value) > MAX_LITERAL:
        return value
    try:
        found = literal(value.strip())
        json.dumps(found, allow_nan=False)
        return clean(found)
    except (
        ValueError,
        SyntaxError,
        TypeError,
        RecursionError,
        MemoryError,
        RowError,
        tokenize.TokenError,
    ):
        return value


def literal(text: str) -> Any:
    """The value of a Python literal, or of an array as numpy prints it: `['a' 'b']` is two texts
    there, and one to Python.

    Python itself never prints two texts side by side. Raises ValueError, SyntaxError and what
    `ast.literal_eval` raises.
    """
    if not BY_NUMPY.search(text):
        return ast.literal_eval(text)
    if len(text) > MAX_PRINTED:
        raise ValueError("too long")
    found = ast.literal_eval(_with_commas(text))
    inner = found[0] if isinstance(found, list) and len(found) == 1 else None
    return inner if isinstance(inner, list) and "array(" in text else found


def _with_commas(text: str) -> str:
    """A list without commas between its items with them, and what `array(…, dtype=object)` holds
    without its name.
    """
    parts: list[str] = []
    open_arrays: list[int] = []  # the depth of each
    depth, ended, skipping = 0, False, False
    tokens = [
        token for token in tokenize.generate_tokens(StringIO(text).readline) if token.string.strip()
    ]
    for token, following in zip(tokens, [*tokens[1:], None], strict=True):
        word = token.string
        if word == "array" and following and following.string == "(":
            parts += [","] * ended
            open_arrays.append(depth + 1)
            ended = False
            continue
        if word in ("(", "[", "{"):
            depth += 1
            if open_arrays and depth == open_arrays[-1] and word == "(":
                continue
        elif word in (")", "]", "}"):
            depth -= 1
            if open_arrays and depth == open_arrays[-1] - 1:
                open_arrays.pop()
                skipping, ended = False, True
                continue
        if skipping:
            continue
        if word == "," and open_arrays and depth == open_arrays[-1]:
            skipping = True  # dtype=…
            continue
        starts = word in ("(", "[", "{") or token.type in (
            tokenize.STRING,
            tokenize.NUMBER,
            tokenize.NAME,
        )
        parts += [","] * (ended and starts)
        parts.append(word)
        ended = word in (")", "]", "}") or token.type in (
            tokenize.STRING,
            tokenize.NUMBER,
            tokenize.NAME,
        )
    return " ".join(parts)
