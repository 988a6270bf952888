"""OpenAI evals' JSONL: {"input": messages or text, "ideal": answer or list of answers}."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from apps.evals.formats.rows import Bad, Line, Read, TaskRow, each, task

NAMES = {"messages": "input", "expected": "ideal", "key": "id"}
TAKEN = {"input", "ideal", "id", "tools"}


def read(lines: Iterable[Line]) -> Iterator[Read]:
    return each(lines, _row)


def _row(record: dict) -> TaskRow:
    ideal, asked = record.get("ideal"), record.get("input")
    if ideal is None or ideal in ([], ""):
        raise Bad(
            "ideal",
            "missing. Each row needs an expected answer; rows that only a model can grade are not"
            " supported.",
        )
    if not isinstance(ideal, str | int | float | list) or isinstance(ideal, bool):
        raise Bad("ideal", "expected text, a number or a list of them.")
    return task(
        key=record.get("id"),
        messages=[{"role": "user", "content": asked}] if isinstance(asked, str) else asked,
        expected={"answer": ideal},
        tools=record.get("tools"),
        metadata={name: value for name, value in record.items() if name not in TAKEN},
        names=NAMES,
    )
