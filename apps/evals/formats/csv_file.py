"""CSV with a header: prompt and expected, or tool and args, or answer; each row is a task.

A prompt of several messages is their JSON. A cell that a spreadsheet would run as a formula is
written with a leading apostrophe, which is removed on reading.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from apps.core.spreadsheets import FORMULA
from apps.evals.formats.rows import (
    Bad,
    Line,
    Read,
    RowProblem,
    TaskRow,
    decoded,
    parsed_arguments,
    task,
    want,
)
from workers.lib.messages import TooDeep, read_json

COLUMNS = (
    "key",
    "prompt",
    "system",
    "expected",
    "tool",
    "args",
    "answer",
    "demonstration",
    "group",
    "split",
    "tags",
    "tools",
    "metadata",
)
WRITTEN = (
    "key",
    "prompt",
    "system",
    "expected",
    "demonstration",
    "group",
    "split",
    "tags",
    "tools",
    "metadata",
)
PREFIXES = ("args.", "metadata.")
HELP = f"Columns are {', '.join(COLUMNS)}, args.NAME and metadata.NAME."
NAMES = {"messages": "prompt"}
MAX_CELL = 2_000_000


def read(lines: Iterable[Line]) -> Iterator[Read]:
    """An invalid header is a single problem, and nothing else is read."""
    csv.field_size_limit(MAX_CELL)
    reader = csv.reader(_text(lines), strict=True)
    header: list[str] | None = None
    while True:
        try:
            cells = next(reader, None)
            if cells is None:
                return
            if not any(cell.strip() for cell in cells):
                continue
            if header is None:
                header = _header(cells)
                continue
            yield replace(_row(_cells(header, cells)), line=reader.line_num)
        except Bad as error:
            yield RowProblem(max(1, reader.line_num), error.field, error.message)
            if header is None:
                return
        except csv.Error as error:
            yield RowProblem(
                max(1, reader.line_num),
                "",
                f"not CSV: {error}. Quote cells with commas, quotes or line ends.",
            )
            return


def _text(lines: Iterable[Line]) -> Iterator[str]:
    for number, line in enumerate(lines):
        text = decoded(line)
        text = text.removeprefix("\ufeff") if not number else text
        yield text if text.endswith("\n") else text + "\n"


def _header(cells: list[str]) -> list[str]:
    names = [
        cell.strip().casefold() if not cell.strip().startswith(PREFIXES) else cell.strip()
        for cell in cells
    ]
    for name in names:
        if name not in COLUMNS and not name.startswith(PREFIXES):
            raise Bad(name or "(empty)", f"unknown column. {HELP}")
        if names.count(name) > 1:
            raise Bad(name, "occurs twice in the header.")
    if "prompt" not in names:
        raise Bad("prompt", f"this required column is missing. {HELP}")
    if not {"expected", "tool", "answer"} & set(names):
        raise Bad(
            "expected",
            "the file has no expected answers. Add a column expected, tool (with args) or answer.",
        )
    return names


def _cells(header: list[str], cells: list[str]) -> dict[str, str]:
    if len(cells) != len(header):
        raise Bad(
            "",
            f"{len(cells)} cells, but the header has {len(header)}. Quote cells that contain"
            " commas.",
        )
    return {name: _unquoted(cell) for name, cell in zip(header, cells, strict=True)}


def _unquoted(cell: str) -> str:
    return cell[1:] if cell.startswith("'") and cell.lstrip("'").startswith(FORMULA) else cell


def _row(cells: dict[str, str]) -> TaskRow:
    system = (
        [{"role": "system", "content": cells["system"]}] if cells.get("system", "").strip() else []
    )
    return task(
        key=cells.get("key", "").strip(),
        messages=[*system, *_messages(cells["prompt"])],
        expected=_expected(cells),
        demonstration=cells.get("demonstration", ""),
        group=cells.get("group", "").strip(),
        split=cells.get("split", ""),
        tools=_json(cells, "tools", []),
        metadata=want(_json(cells, "metadata", {}), dict, "metadata", "Give an object.")
        | {
            name.removeprefix("metadata."): cell
            for name, cell in cells.items()
            if name.startswith("metadata.") and cell
        }
        | (
            {"tags": tags}
            if (tags := [tag.strip() for tag in cells.get("tags", "").split(",") if tag.strip()])
            else {}
        ),
        names=NAMES,
    )


def _messages(prompt: str) -> list[dict]:
    """The messages of a cell that is a JSON list of messages, otherwise a user message."""
    if prompt.lstrip().startswith("[{"):
        try:
            found = read_json(prompt)
        except ValueError:
            found = None
        if isinstance(found, list) and all(
            isinstance(message, dict) and "role" in message for message in found
        ):
            return found
    return [{"role": "user", "content": prompt}]


def _json(cells: dict[str, str], name: str, empty: Any) -> Any:
    if not cells.get(name, "").strip():
        return empty
    try:
        return read_json(cells[name])
    except ValueError as error:
        raise Bad(name, f"not JSON: {error}. Leave the cell empty, or give JSON.") from error


def write(rows: Iterable[TaskRow]) -> Iterator[str]:
    """With a byte order mark, by which spreadsheets recognise UTF-8."""
    yield "\ufeff" + _line(WRITTEN)
    for row in rows:
        said = [
            message.get("content")
            for message in row.messages
            if message.keys() == {"role", "content"}
        ]
        plain = len(said) == len(row.messages) and all(
            isinstance(text, str) and text.strip() for text in said
        )
        roles = [message["role"] for message in row.messages] if plain else []
        system, prompt = (
            ("", said[0])
            if roles == ["user"]
            else said
            if roles == ["system", "user"]
            else ("", _text_of(row.messages))
        )
        prompt = (
            _text_of(row.messages)
            if prompt.lstrip().startswith("[{") and roles == ["user"]
            else prompt
        )
        tags = row.metadata.get("tags", [])
        tags = (
            tags
            if isinstance(tags, list)
            and all(isinstance(tag, str) and "," not in tag for tag in tags)
            else []
        )
        rest = {
            name: value for name, value in row.metadata.items() if name != "tags" or value != tags
        }
        cells = (
            row.key,
            prompt,
            system,
            _text_of(row.expected),
            row.demonstration,
            row.group,
            row.split,
            ", ".join(tags),
            _text_of(row.tools) if row.tools else "",
            _text_of(rest) if rest else "",
        )
        yield _line(f"'{cell}" if cell.lstrip("'").startswith(FORMULA) else cell for cell in cells)


def _text_of(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _line(cells: Iterable[str]) -> str:
    out = io.StringIO()
    csv.writer(out).writerow(cells)
    return out.getvalue()


def _expected(cells: dict[str, str]) -> dict:
    given = [name for name in ("expected", "tool", "answer") if cells.get(name, "").strip()]
    if len(given) != 1:
        raise Bad(
            "expected",
            f"{' and '.join(given) or 'nothing'} given. Fill in exactly one of expected, tool and"
            " answer.",
        )
    if given == ["answer"]:
        return {"answer": cells["answer"].strip()}
    if given == ["tool"]:
        return {"tool": cells["tool"].strip(), "args": _args(cells)}
    return _json_or_answer(cells["expected"].strip())


def _args(cells: dict[str, str]) -> dict:
    args = parsed_arguments(cells.get("args", "").strip() or "{}", "args")
    named = {
        name.removeprefix("args."): _value(name, cell)
        for name, cell in cells.items()
        if name.startswith("args.") and cell
    }
    if both := sorted(args.keys() & named.keys()):
        raise Bad(f"args.{both[0]}", "also given in the column args. Give it only once.")
    return args | named


def _value(name: str, cell: str) -> Any:
    """Numbers, true, false, lists and objects as in JSON; everything else is text. Raises Bad."""
    try:
        value = read_json(cell)
    except TooDeep as error:
        raise Bad(name, f"{error}. Give a flatter value.") from error
    except ValueError:
        return cell
    plain_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if not plain_number or json.dumps(value) == cell.strip() else cell


def _json_or_answer(cell: str) -> dict:
    """An object is used as is; other text is the answer."""
    if not cell.startswith("{"):
        return {"answer": cell}
    return parsed_arguments(cell, "expected")
