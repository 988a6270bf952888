"""Items of OpenAI's Responses API as chat messages, and back. Only the standard library."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from workers.lib.messages.calls import as_json, native_calls
from workers.lib.messages.content import Message, content_text, part_text, text_of

TEXT_PARTS = ("text", "input_text", "output_text")


class ItemError(ValueError):
    """An item that is not one: its index, the field, and what is wrong with it."""

    def __init__(self, index: int, field: str, text: str) -> None:
        super().__init__(f"item {index}{f'.{field}' if field else ''}: {text}")
        self.index, self.field, self.text = index, field, text


Other = Callable[[dict, int, list[Message]], None]
"""What to do with an item of another type: given the item, its index and the messages so far."""


def leave_out(item: dict, index: int, messages: list[Message]) -> None:
    """Reasoning and items of tools that the server runs itself have no place in a chat."""


def from_items(items: Any, *, other: Other = leave_out, strict: bool = False) -> list[Message]:
    """Chat messages; a text is one message of the user. Calls join the assistant's message right before them.

    Raises ItemError where `items` is not a list of objects and, if strict, for a call without a name.
    """
    if isinstance(items, str):
        return [{"role": "user", "content": items}]
    if not isinstance(items, list):
        raise ItemError(0, "", "the items must be a list of objects")
    messages: list[Message] = []
    for index, item in enumerate(items):
        if not isinstance(item, dict):
            raise ItemError(index, "", "the items must be a list of objects")
        kind = item.get("type") or "message"
        if kind == "message":
            name = {"name": item["name"]} if isinstance(item.get("name"), str) else {}
            messages.append({"role": str(item.get("role") or "assistant"), "content": _content(item)} | name)
        elif kind == "function_call":
            if strict and not (isinstance(item.get("name"), str) and item["name"]):
                raise ItemError(index, "name", "a function call without a name")
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": None})
            messages[-1].setdefault("tool_calls", []).append(_call(item))
        elif kind == "function_call_output":
            output = item.get("output")
            text = content_text(output) if isinstance(output, str | list) else ""
            text = text or ("" if output is None or output == "" else as_json(output))
            messages.append({"role": "tool", "tool_call_id": str(item.get("call_id") or ""), "content": text})
        else:
            other(item, index, messages)
    return messages


def _content(item: dict) -> Any:
    """Text parts become one text; among other parts they stay parts."""
    content = item.get("content")
    if not isinstance(content, list):
        return content if isinstance(content, str) else ""
    if all(isinstance(part, str) or (isinstance(part, dict) and part.get("type") in TEXT_PARTS) for part in content):
        return ("" if item.get("role", "assistant") == "assistant" else "\n").join(
            filter(None, map(part_text, content))
        )
    return [
        {"type": "text", "text": part_text(part)}
        if isinstance(part, str) or (isinstance(part, dict) and part.get("type") in TEXT_PARTS)
        else part
        for part in content
    ]


def _call(item: dict) -> dict:
    arguments = item.get("arguments")
    text = arguments if isinstance(arguments, str) else as_json(arguments or {})
    function = {"name": str(item.get("name") or ""), "arguments": text or "{}"}
    return {"id": str(item.get("call_id") or ""), "type": "function", "function": function}


# Writing


def to_items(messages: list[Message], *, output: bool = False) -> list[dict]:
    """Chat messages as a request's `input` has them; with `output` as a response has them: ids, status, text only."""
    return [item for number, message in enumerate(messages) for item in _items(message, number, output)]


def _items(message: Message, number: int, output: bool) -> Iterator[dict]:
    role, content = message["role"], message.get("content")
    if role == "tool":
        text = content if isinstance(content, str) else as_json(content)
        yield {"type": "function_call_output", "call_id": message.get("tool_call_id", ""), "output": text}
        return
    calls = native_calls(message)
    if content is not None and not (content == "" and calls):
        if not output:
            yield {"role": role, "content": _request_parts(content, role)}
        elif role != "assistant":
            yield {"type": "message", "role": role, "content": text_of(message)}
        else:
            parts = [{"type": "output_text", "text": text_of(message), "annotations": []}]
            yield {"type": "message", "id": f"msg_{number}", "role": role, "status": "completed", "content": parts}
    for call in calls:
        made = {"type": "function_call", "call_id": call.id, "name": call.tool, "arguments": call.arguments or "{}"}
        yield made | ({"id": f"fc_{number}_{call.id}", "status": "completed"} if output else {})


def _request_parts(content: Any, role: str) -> Any:
    if not isinstance(content, list):
        return content
    kind = "output_text" if role == "assistant" else "input_text"
    return [
        {"type": kind, "text": part["text"]} if isinstance(part, dict) and part.get("type") == "text" else part
        for part in content
    ]
