"""What the files of a package may show to an agent: the texts in its code and data, without its
tasks. Pure.

A tool's result and a start state are made when an episode runs; what they are made of is in these
files, or in a task.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from workers.lib.environments.packages.files import Files, text_of

NOT_SHOWN = {".md", ".rst", ".toml", ".cfg", ".lock"}  # read by people and tools
REQUEST = ("prompt", "messages", "request", "question")  # with an id, a row of tasks()


def shown_texts(files: Files) -> Iterator[tuple[str, list[str]]]:
    """(path, texts) of each file that has any."""
    for path, content in sorted(files.items()):
        pure = PurePosixPath(path)
        if pure.suffix in NOT_SHOWN or pure.parts[0] == "tests" or pure.name.startswith("test_"):
            continue
        text = text_of(content)
        found = list(_of_code(text) if pure.suffix == ".py" else _of_data(text))
        if found:
            yield path, found


def _of_code(source: str) -> Iterator[str]:
    """The string constants, joined where they are added, outside of docstrings and of `tasks`."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        yield source
        return
    left: list[ast.AST] = [tree]
    while left:
        node = left.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == "tasks":
            continue
        if isinstance(node, ast.Dict) and _is_task(
            {key.value for key in node.keys if isinstance(key, ast.Constant)}
        ):
            continue
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue
        if (joined := _joined(node)) is not None:
            yield joined
            continue
        left += reversed(list(ast.iter_child_nodes(node)))


def _joined(node: ast.AST) -> str | None:
    """The text of a constant, of an f-string's fixed parts, and of constants that are added; None
    for anything else.
    """
    if isinstance(node, ast.Constant):
        if isinstance(node.value, bytes):
            return node.value.decode(errors="replace")
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return " ".join(part for value in node.values if (part := _joined(value)) is not None)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        one, other = _joined(node.left), _joined(node.right)
        return None if one is None or other is None else one + other
    return None


def _of_data(text: str) -> Iterator[str]:
    """The strings of a JSON text or of the lines of one, without rows of tasks; else the text."""
    values = [_parsed(text)]
    if values[0] is None:
        values = [_parsed(line) for line in text.splitlines() if line.strip()]
    if not values or any(value is None for value in values):
        yield text
        return
    left = values[::-1]
    while left:
        value = left.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            left += [] if _is_task(value) else [*value, *value.values()][::-1]
        elif isinstance(value, list):
            left += value[::-1]


def _parsed(text: str) -> Any:
    """None for anything that is no JSON object or list."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict | list) else None


def _is_task(names: Any) -> bool:
    return "id" in names and any(name in names for name in REQUEST)
