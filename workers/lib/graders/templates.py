"""`{{ item.answer }}` and `{{ sample.output_tools[0].function.name }}` in a grader's texts.

Rendered in one pass: braces in an inserted value are plain text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from workers.lib.graders.errors import RunError

_PATH = re.compile(r"\s*(item|sample)((?:\.[^\s.\[\]{}]+|\[\d+\]|\[(?:'[^']*'|\"[^\"]*\")\])*)\s*")
_STEP = re.compile(r"\.([^\s.\[\]{}]+)|\[(\d+)\]|\['([^']*)'\]|\[\"([^\"]*)\"\]")
MAX_TEMPLATE, MAX_RENDERED = 200_000, 4_000_000  # characters
Path = tuple[str | int, ...]


def parse(expression: str) -> Path:
    """("sample", "output_tools", 0, "name") from the text between the braces. Raises ValueError if
    it is not such a path.
    """
    found = _PATH.fullmatch(expression)
    if not found:
        raise ValueError(
            f"“{expression.strip()}” is not a path such as item.answer or"
            " sample.output_tools[0].name"
        )
    steps = (match.groups() for match in _STEP.finditer(found[2]))
    return (
        found[1],
        *(int(index) if index else name or one or two or "" for name, index, one, two in steps),
    )


def pieces(template: str) -> Iterator[tuple[str, str | None]]:
    """(text, the expression in the next braces); the second is None after the last text."""
    at = 0
    while (start := template.find("{{", at)) >= 0 and (end := template.find("}}", start + 2)) >= 0:
        yield template[at:start], template[start + 2 : end]
        at = end + 2
    yield template[at:], None


def check(template: str) -> None:
    """Raises ValueError for a template that is too long, and for the first placeholder that is not
    a path.
    """
    if len(template) > MAX_TEMPLATE:
        raise ValueError(f"it has {len(template):,} characters; {MAX_TEMPLATE:,} are allowed")
    for _, hole in pieces(template):
        if hole is not None:
            parse(hole)


def render(template: str, values: dict[str, Any]) -> str:
    """The template with `values["item"]` and `values["sample"]` inserted: text unchanged, anything
    else as JSON.

    Raises RunError: invalid_variable_error for a path that does not exist, sample_parse_error if
    the answer should be JSON but is not, other_error for more than MAX_RENDERED characters.
    """
    made, size = [], 0
    for text, hole in pieces(template):
        made += [text, "" if hole is None else _text(look_up(parse(hole), values))]
        size += len(made[-2]) + len(made[-1])
        if size > MAX_RENDERED:
            raise RunError(
                "other_error", f"Filled in, the text has more than {MAX_RENDERED:,} characters."
            )
    return "".join(made)


def look_up(path: Path, values: dict[str, Any]) -> Any:
    found: Any = values
    for at, step in enumerate(path):
        try:
            found = found[int(step) if isinstance(found, list) else str(step)]
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise _missing(path, at) from error
    if found is None and path[:2] == ("sample", "output_json"):
        raise _missing(path, 1)
    return found


def _missing(path: Path, at: int) -> RunError:
    where = ".".join(map(str, path[: at + 1]))
    if path[0] == "sample" and path[1:2] == ("output_json",) and at <= 2:
        return RunError(
            "sample_parse_error",
            f"The answer is no JSON object with “{'.'.join(map(str, path[2:]))}”.",
        )
    return RunError("invalid_variable_error", f"There is no “{where}”.")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
