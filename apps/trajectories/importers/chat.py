"""Our own rows, bare `{messages, tools?}`, and fine-tuning files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from apps.trajectories.decoding import RowError
from apps.trajectories.dialects import INSTRUCTIONS, as_chat, instructions_beside
from apps.trajectories.importers.guess import ANSWERS
from apps.trajectories.importers.mapping import FAILED, WORKED, outcome_text
from apps.trajectories.importers.records import Record
from apps.trajectories.importers.shapes import (
    Row,
    as_text,
    chat_messages,
    chat_tools,
    digest,
    each,
    items,
    number,
    obj,
    without_empty,
)
from apps.trajectories.importers.words import simple
from apps.trajectories.schema import Row as Form

KNOWN = frozenset(Form.__struct_fields__)
VERDICTS = (
    "success",
    "succeeded",
    "is_success",
    "successful",
    "resolved",
    "is_resolved",
    "solved",
    "passed",
    "correct",
    "is_correct",
)
SCORES = ("reward", "score")
DEMONSTRATION = {
    "status": "success",
    "label": "demonstration",
    "reason": "A row of a fine-tuning file.",
}


def rows(records: Iterable[Record], name: str) -> Iterator[Row]:
    """Rows unchanged, also requests to Anthropic and Gemini with their system prompt beside the
    messages; without an id, the content's digest is used; unknown fields go into `metadata.extra`.
    """
    return each(records, _chat)


def _chat(record: dict) -> dict:
    row = {name: value for name, value in record.items() if name in KNOWN}
    extra = {name: value for name, value in record.items() if name not in KNOWN}
    if not isinstance(row.get("outcome"), dict) and (outcome := said_outcome(record, ("outcome",))):
        row["outcome"] = outcome
    if row.get("id") is None:
        row["id"] = f"chat-{digest(record)}"
    elif isinstance(row["id"], int) and not isinstance(row["id"], bool):
        row["id"] = str(row["id"])
    if "messages" not in row and isinstance(extra.get("contents"), list):
        row["messages"] = extra.pop("contents")
    if isinstance(row.get("messages"), list) and all(
        isinstance(message, dict) for message in row["messages"]
    ):
        if prompt := instructions_beside(extra, row["messages"]):
            row["messages"] = prompt + row["messages"]
            extra = {name: value for name, value in extra.items() if name not in INSTRUCTIONS}
        row["messages"] = as_chat(row["messages"])
        if any("function" not in obj(tool) for tool in items(row.get("tools"))):
            row["tools"] = chat_tools(row["tools"])
    if isinstance(row.get("messages"), list) and (name := answer_beside(row["messages"], extra)):
        row["messages"] = row["messages"] + as_turns(extra.pop(name), name, "assistant")
    if extra:
        row["metadata"] = {**obj(row.get("metadata")), "extra": extra}
    return row


def answer_beside(messages: list, extra: dict) -> str:
    """The field that has the answer to messages that do not end with one."""
    last = obj(messages[-1]) if messages else {}
    if not last or last.get("role") in ("assistant", "model", "tool"):
        return ""
    return next(
        (name for name, value in extra.items() if simple(name) in ANSWERS and _is_answer(value)), ""
    )


def _is_answer(value: Any) -> bool:
    value = [value] if isinstance(value, dict) else value
    if isinstance(value, str):
        return bool(value.strip()) and number(value) is None
    return (
        isinstance(value, list)
        and bool(value)
        and all(obj(one).get("role") in ("assistant", "tool") for one in value)
    )


def beside(head: Iterable[Record]) -> list[dict[str, Any]]:
    """[{name, count, example}] of fields that only `metadata.extra` keeps, in the first records."""
    found: dict[str, dict[str, Any]] = {}
    for _, record in head:
        for name, value in record.items() if isinstance(record, dict) else ():
            if (
                name not in (*KNOWN, *INSTRUCTIONS, "contents")
                and name not in VERDICTS
                and name not in SCORES
                and value not in (None, "")
            ):
                one = found.setdefault(
                    name,
                    {"name": name, "count": 0, "example": as_text(value)[:120], "kept": True},
                )
                one["count"] += 1
    return list(found.values())


def said_outcome(record: dict, more: tuple[str, ...] = ()) -> dict:
    """{status, reward} from the fields by which people say whether a run went well: `success:
    false` is a failure.
    """
    found: dict[str, Any] = {}
    for name in (*more, *VERDICTS):
        said = (
            outcome_text(record[name])
            if isinstance(record.get(name), bool | int | float | str)
            else ""
        )
        if said in WORKED or said in FAILED:
            found["status"] = "success" if said in WORKED else "failure"
            break
    reward = next((one for name in SCORES if (one := number(record.get(name))) is not None), None)
    return found | ({"reward": reward} if reward is not None else {})


def sft_rows(records: Iterable[Record], name: str) -> Iterator[Row]:
    """OpenAI's `{messages, tools, …}` (also with legacy functions) and TRL's `{prompt,
    completion}`.

    Such files show what is right, so the outcome is success, labelled "demonstration".
    """
    return each(records, _sft)


def _sft(record: dict) -> dict:
    if "messages" in record:
        messages = chat_messages(record["messages"])
    elif "prompt" in record and "completion" in record:
        messages = as_turns(record["prompt"], "prompt", "user") + as_turns(
            record["completion"], "completion", "assistant"
        )
    else:
        raise RowError("messages", "a fine-tuning row has messages, or prompt and completion")
    rest = {
        name: value
        for name, value in record.items()
        if name not in ("messages", "prompt", "completion", "tools", "functions")
    }
    return {
        "id": f"sft-{digest(record)}",
        "messages": messages,
        "tools": chat_tools(record.get("tools") or record.get("functions")),
        "outcome": DEMONSTRATION,
        "metadata": without_empty({"source": "openai-sft", "extra": rest}),
    }


def as_turns(value: object, path: str, role: str) -> list[dict]:
    if isinstance(value, str):
        return [{"role": role, "content": value}]
    return chat_messages([value] if isinstance(value, dict) else value, path)
