"""NeMo Gym task rows: `responses_create_params` (OpenAI Responses) and `ground_truth` calls.

A written row stores below `verifier_metadata.flywheel` what the format has no place for, so it can
be read back unchanged. If the row's own fields were changed in between, the two contradict each
other and the row is a problem.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from apps.evals.formats.rows import (
    Bad,
    Line,
    Read,
    TaskRow,
    each,
    expected_of,
    parsed_arguments,
    task,
    want,
)
from workers.lib.environments.gym_rows import ANSWER, ASKED, TRUTH, row_of
from workers.lib.messages import ItemError, from_items

OURS = ("key", "messages", "expected", "tools", "demonstration", "group", "split", "metadata")
NAMES = {"messages": f"{ASKED}.input", "tools": f"{ASKED}.tools", "expected": TRUTH}


def read(lines: Iterable[Line]) -> Iterator[Read]:
    return each(lines, _row)


def _row(record: dict) -> TaskRow:
    asked = want(record.get(ASKED), dict, ASKED, "Give the request with “input” and “tools”.")
    if "response" in record and "reward" in record:
        raise Bad("response", "this is a scored rollout, not a task. Import it as a trajectory.")
    exported = _exported(record)
    if exported is not None:
        return _restored(record, exported)
    rest = {name: value for name, value in record.items() if name not in (ASKED, TRUTH, ANSWER)}
    rest[ASKED] = {name: value for name, value in asked.items() if name not in ("input", "tools")}
    messages = chat_messages(asked.get("input"))
    if isinstance(asked.get("instructions"), str):
        messages.insert(0, {"role": "system", "content": asked["instructions"]})
    return task(
        key=f"nemo-gym-{record['id']}" if isinstance(record.get("id"), int | str) else "",
        messages=messages,
        expected=_expected(record),
        tools=asked.get("tools"),
        metadata={"nemo_gym": rest},
        names=NAMES,
    )


def _expected(record: dict) -> dict:
    if ANSWER in record and TRUTH not in record:
        return {"answer": record[ANSWER]}
    given = want(
        record.get(TRUTH), list, TRUTH, "Give the list of expected calls, or “expected_answer”."
    )
    calls = []
    for index, call in enumerate(given):
        here = f"{TRUTH}[{index}]"
        want(call, dict, here, 'Give {"name", "arguments"}.')
        name = want(call.get("name"), str, f"{here}.name", "Give the tool's name.")
        calls.append(
            {"tool": name, "args": parsed_arguments(call.get("arguments"), f"{here}.arguments")}
        )
    return expected_of(calls)


def _exported(record: dict) -> dict | None:
    metadata = record.get("verifier_metadata")
    exported = metadata.get("flywheel") if isinstance(metadata, dict) else None
    return exported if isinstance(exported, dict) else None


def _restored(record: dict, exported: dict) -> TaskRow:
    row = task(
        **{name: exported.get(name) for name in OURS},
        names={"messages": "verifier_metadata.flywheel.messages"},
    )
    again = _record(row, 0)
    changed = [name for name in (ASKED, TRUTH, ANSWER) if again.get(name) != record.get(name)]
    if changed:
        advice = "Remove verifier_metadata.flywheel to read the row as it is."
        raise Bad(changed[0], f"was changed since Flywheel wrote the row. {advice}")
    return row


# Writing


def write(rows: Iterable[TaskRow]) -> Iterator[str]:
    """Lines with line ends; `id` is the row's number from 0, as in NeMo Gym."""
    for index, row in enumerate(rows):
        yield json.dumps(_record(row, index), ensure_ascii=False) + "\n"


def _record(row: TaskRow, index: int) -> dict:
    task = {
        "id": index,
        "messages": row.messages,
        "expected": row.expected,
        "metadata": row.metadata,
    }
    made = row_of(task, row.tools)
    made[ASKED] = {"parallel_tool_calls": len(row.expected.get("calls", [])) > 1} | made[ASKED]
    old = made["verifier_metadata"]
    ours = {name: getattr(row, name) for name in OURS}
    return made | {"verifier_metadata": (old if isinstance(old, dict) else {}) | {"flywheel": ours}}


# Messages


def chat_messages(given: Any) -> list[dict]:
    """Items of the Responses API as chat messages. Raises Bad for an item that has no
    equivalent.
    """
    name = f"{ASKED}.input"
    try:
        return from_items(
            want(given, (str, list), name, "Give text or a list of Responses items."),
            strict=True,
            other=_other,
        )
    except ItemError as error:
        where = f"{name}[{error.index}]" + (f".{error.field}" if error.field else "")
        raise Bad(where, f"{error.text}. Give Responses items.") from error


def _other(item: dict, index: int, messages: list[dict]) -> None:
    if item.get("type") != "reasoning":  # reasoning of an earlier turn is not part of a chat
        raise ItemError(index, "type", f"items of the type “{item.get('type')}” are not read")
