"""NeMo Gym task rows: `responses_create_params` (OpenAI Responses) and `ground_truth` calls.

A written row carries below `verifier_metadata.flywheel` what the format has no place for, so that it is read back as it
was. If the row's own fields were changed since, the two contradict each other and the row is a problem.
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
from workers.lib.environments.responses import truth
from workers.lib.messages import ItemError, from_items, native_calls

ASKED, TRUTH = "responses_create_params", "ground_truth"
OURS = ("key", "messages", "expected", "tools", "demonstration", "group", "split", "metadata")
NAMES = {"messages": f"{ASKED}.input", "tools": f"{ASKED}.tools", "expected": TRUTH}


def read(lines: Iterable[Line]) -> Iterator[Read]:
    return each(lines, _row)


def _row(record: dict) -> TaskRow:
    asked = want(record.get(ASKED), dict, ASKED, "Give the request with “input” and “tools”.")
    if "response" in record and "reward" in record:
        raise Bad("response", "this is a scored rollout, not a task. Import it as a trajectory.")
    kept = _kept(record)
    if kept is not None:
        return _restored(record, kept)
    rest = {name: value for name, value in record.items() if name not in (ASKED, TRUTH, "expected_answer")}
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
    if "expected_answer" in record and TRUTH not in record:
        return {"answer": record["expected_answer"]}
    given = want(record.get(TRUTH), list, TRUTH, "Give the list of expected calls, or “expected_answer”.")
    calls = []
    for index, call in enumerate(given):
        here = f"{TRUTH}[{index}]"
        want(call, dict, here, 'Give {"name", "arguments"}.')
        name = want(call.get("name"), str, f"{here}.name", "Give the tool's name.")
        calls.append({"tool": name, "args": parsed_arguments(call.get("arguments"), f"{here}.arguments")})
    return expected_of(calls)


def _kept(record: dict) -> dict | None:
    metadata = record.get("verifier_metadata")
    kept = metadata.get("flywheel") if isinstance(metadata, dict) else None
    return kept if isinstance(kept, dict) else None


def _restored(record: dict, kept: dict) -> TaskRow:
    row = task(**{name: kept.get(name) for name in OURS}, names={"messages": "verifier_metadata.flywheel.messages"})
    again = _record(row, 0)
    changed = [name for name in (ASKED, TRUTH, "expected_answer") if again.get(name) != record.get(name)]
    if changed:
        advice = "Remove verifier_metadata.flywheel to read the row as it stands."
        raise Bad(changed[0], f"was changed since Flywheel wrote the row. {advice}")
    return row


# Writing


def write(rows: Iterable[TaskRow]) -> Iterator[str]:
    """Lines with their ends; `id` is the row's number from 0, as NeMo Gym has it."""
    for index, row in enumerate(rows):
        yield json.dumps(_record(row, index), ensure_ascii=False) + "\n"


def _record(row: TaskRow, index: int) -> dict:
    before = row.metadata.get("nemo_gym")
    before = before if isinstance(before, dict) else {}
    params = before.get(ASKED) if isinstance(before.get(ASKED), dict) else {}
    asked = {"input": response_items(row.messages), "tools": [_flat(tool) for tool in row.tools]}
    several = len(row.expected.get("calls", [])) > 1
    made = {"id": index} | {name: value for name, value in before.items() if name not in (ASKED, "verifier_metadata")}
    made[ASKED] = {"parallel_tool_calls": several} | {k: v for k, v in params.items() if k != "instructions"} | asked
    if "answer" in row.expected:
        made["expected_answer"] = row.expected["answer"]
    elif not row.expected.keys() & {"constraint", "tests"}:
        made[TRUTH] = [truth(call) for call in row.expected.get("calls", [row.expected])]
    old = before.get("verifier_metadata")
    ours = {name: getattr(row, name) for name in OURS}
    made["verifier_metadata"] = (old if isinstance(old, dict) else {}) | {"flywheel": ours}
    return made


def _flat(tool: dict) -> dict:
    """A chat tool as one of the Responses API."""
    function = tool["function"]
    return {"type": "function", "description": "", "parameters": {"type": "object"}, "strict": False} | function


# Messages


def response_items(messages: list[dict]) -> list[dict]:
    """Chat messages as items of the Responses API."""
    return [item for message in messages for item in _items(message)]


def _items(message: dict) -> Iterator[dict]:
    content = message.get("content")
    if message["role"] == "tool":
        output = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
        yield {"type": "function_call_output", "call_id": message.get("tool_call_id", ""), "output": output}
        return
    calls = native_calls(message)
    if content is not None and not (content == "" and calls):
        yield {"role": message["role"], "content": _parts(content, message["role"])}
    for call in calls:
        arguments = "{}" if call.given is None else call.arguments
        yield {"type": "function_call", "call_id": call.id, "name": call.tool, "arguments": arguments}


def _parts(content: Any, role: str) -> Any:
    if not isinstance(content, list):
        return content
    kind = "output_text" if role == "assistant" else "input_text"
    return [
        {"type": kind, "text": part["text"]} if isinstance(part, dict) and part.get("type") == "text" else part
        for part in content
    ]


def chat_messages(given: Any) -> list[dict]:
    """Items of the Responses API as chat messages. Raises Bad for an item that has no place there."""
    name = f"{ASKED}.input"
    try:
        return from_items(
            want(given, (str, list), name, "Give text or a list of Responses items."), strict=True, other=_other
        )
    except ItemError as error:
        where = f"{name}[{error.index}]" + (f".{error.field}" if error.field else "")
        raise Bad(where, f"{error.text}. Give Responses items.") from error


def _other(item: dict, index: int, messages: list[dict]) -> None:
    if item.get("type") != "reasoning":  # thoughts of an earlier turn are no part of a chat
        raise ItemError(index, "type", f"items of the type “{item.get('type')}” are not read")
