"""Where a mapping finds a value: the name of a column, or a JMESPath into nested JSON."""

from __future__ import annotations

import ast
import json
import re
from typing import Any

import jmespath
from jmespath.exceptions import JMESPathError

from apps.trajectories.decoding import RowError, clean

MAX_PATH = 300
MAX_LITERAL = 2 * 1024 * 1024
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
DOTTED = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)+")


class PathError(ValueError):
    """A text that is no path."""


class Path:
    """`get` finds a value in a record: by the column's whole name, else by JMESPath (`$.` before it is allowed).

    `=text` is the same text for every record. JSON inside a column's text is read where a path goes into it.
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
        """Raises PathError if it is neither a path nor a column; where the columns are not known, it may be one."""
        if self.constant is None and self._compiled is None and columns is not None and self.text not in columns:
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
    """The object or list that a text holds as JSON, or as Python prints it (what pandas writes into a CSV)."""
    if not isinstance(value, str) or value.lstrip()[:1] not in ("{", "["):
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
        found = ast.literal_eval(value.strip())
        json.dumps(found, allow_nan=False)
        return clean(found)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError, RowError):
        return value
