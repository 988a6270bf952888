"""All texts in the files of a package, whatever the file is for: its code may show any of them to
an agent, as a prompt, a tool's result or a start state. Pure.
"""

from __future__ import annotations

import ast
import base64
import codecs
import io
import json
import re
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath
from typing import Any

from workers.lib.environments.packages.files import Files

UTF_16 = (b"\xff\xfe", b"\xfe\xff")
PRINTABLE = re.compile(r"[^\x00-\x1f\x7f-\x9f]{8,}")
LEAST_WORDS = 5  # of a task's text that is left out of a longer text


def texts_of(files: Files) -> dict[str, list[str]]:
    """{path: texts}: the strings and comments of code, the strings of JSON, the whole of any other
    file; the path itself is the first.
    """
    found = {}
    for path, content in sorted(files.items()):
        text = _decoded(base64.b64decode(content))
        texts = _of_code(text) if PurePosixPath(path).suffix == ".py" else _of_data(text)
        found[path] = [path, *texts]
    return found


def without_tasks(
    texts: dict[str, list[str]], tasks: Iterable[dict[str, Any]]
) -> dict[str, list[str]]:
    """The texts without those of the given tasks, which are rows of the package's own `tasks()`.
    Those of a task are left out of one file, where most tasks are, and each once: a second copy is
    something else that shows it.
    """
    rest = {path: [_spaced(text) for text in some] for path, some in texts.items()}
    for path, own in _homes(rest, tasks).items():
        left = [text for text in rest[path] if not _take(own, text, 1)]
        parts = [text for text in own if own[text] and len(text.split()) >= LEAST_WORDS]
        parts.sort(key=len, reverse=True)  # one may be a part of another
        rest[path] = [_cut(text, parts, own) for text in left]
    return rest


def _homes(files: dict[str, list[str]], tasks: Iterable[dict[str, Any]]) -> dict[str, Counter[str]]:
    """The texts of the tasks by the file that has the longest of them; of several such files, the
    one with the most tasks.
    """
    rows = [sorted(map(_spaced, _strings(task)), key=len, reverse=True) for task in tasks]
    whole = {path: set(some) for path, some in files.items()}
    joined = {path: "\n".join(some) for path, some in files.items()}

    def has(path: str, text: str) -> bool:
        return text in whole[path] or text in joined[path]

    counts = {path: sum(has(path, row[0]) for row in rows) for path in files}
    order = sorted(files, key=lambda path: (-counts[path], path))
    homes: dict[str, Counter[str]] = {}
    for row in rows:
        places = (path for text in row for path in order if has(path, text))
        if home := next(places, None):
            homes.setdefault(home, Counter()).update(row)
    return homes


def _cut(text: str, parts: list[str], own: Counter[str]) -> str:
    for part in parts if len(text.split()) > LEAST_WORDS else ():
        if part in text and (times := _take(own, part, text.count(part))):
            text = text.replace(part, " ", times)
    return text


def _take(own: Counter[str], text: str, times: int) -> int:
    taken = min(own[text], times)
    own[text] -= taken
    return taken


def _spaced(text: str) -> str:
    """The text on one line, with quotes as they are outside of CSV."""
    return " ".join(text.replace('""', '"').split())


def _decoded(content: bytes) -> str:
    """A file as text; of one that is not text, what can be read in it."""
    try:
        return content.decode("utf-16" if content.startswith(UTF_16) else "utf-8-sig")
    except UnicodeDecodeError:
        text = content.replace(b"\0", b"").decode("utf-8", "as_latin_1")
        return "\n".join(PRINTABLE.findall(text))


def _as_latin_1(error: UnicodeError) -> tuple[str, int]:
    """The bytes that are no UTF-8."""
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return error.object[error.start : error.end].decode("latin-1"), error.end


codecs.register_error("as_latin_1", _as_latin_1)


def _of_code(source: str) -> Iterator[str]:
    """The string constants, joined where they are added, and the comments."""
    try:
        tree = ast.parse(source)
        tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    except (SyntaxError, ValueError, RecursionError, MemoryError, tokenize.TokenError):
        yield source
        return
    left: list[ast.AST] = [tree]
    while left:
        node = left.pop()
        if (joined := _joined(node)) is not None:
            yield joined
            continue
        left += reversed(list(ast.iter_child_nodes(node)))
    comments = [token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT]
    if comments:
        yield "\n".join(comments)


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
    """The strings of a JSON text or of the lines of one; else the text."""
    values = [_parsed(text)]
    if values[0] is None:
        values = [_parsed(line) for line in text.splitlines() if line.strip()]
    if not values or any(value is None for value in values):
        yield text
    else:
        yield from _strings(values)


def _strings(value: Any) -> Iterator[str]:
    """The strings in a JSON value, names included. A loop, so that no depth is too much for it."""
    left = [value]
    while left:
        value = left.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            left += [*value, *value.values()][::-1]
        elif isinstance(value, list):
            left += value[::-1]


def _parsed(text: str) -> Any:
    """None for anything that is no JSON object or list."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict | list) else None
