"""OpenAI's Responses API: converts its items to chat messages and back, and its requests and
answers to those of chat completions. Only the standard library.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from workers.lib.messages.calls import as_json, native_calls
from workers.lib.messages.content import Message, content_text, is_reasoning, part_text, text_of
from workers.lib.messages.tools import flat_tool

TEXT_PARTS = ("text", "input_text", "output_text")
MAX_SAID = 300
# Prefixes of error codes that blame the request.
REFUSING = ("invalid_", "image_", "context_", "bio_policy", "misalignment_policy")


class ItemError(ValueError):
    """An invalid item: its index, the field, and what is wrong with it."""

    def __init__(self, index: int, field: str, text: str) -> None:
        super().__init__(f"item {index}{f'.{field}' if field else ''}: {text}")
        self.index, self.field, self.text = index, field, text


Other = Callable[[dict, int, list[Message]], None]
"""What to do with an item of another type: given the item, its index and the messages so far."""


def leave_out(item: dict, index: int, messages: list[Message]) -> None:
    """Reasoning, and items of tools that the server runs itself, cannot be part of a chat."""


def from_items(items: Any, *, other: Other = leave_out, strict: bool = False) -> list[Message]:
    """Chat messages; a text becomes one user message. Calls are added to the assistant's message
    right before them.

    Raises ItemError if `items` is not a list of objects and, if strict, for a call without a name.
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
            messages.append(
                {"role": str(item.get("role") or "assistant"), "content": _content(item)} | name
            )
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
            messages.append(
                {"role": "tool", "tool_call_id": str(item.get("call_id") or ""), "content": text}
            )
        else:
            other(item, index, messages)
    return messages


def _content(item: dict) -> Any:
    """Only text parts become one text; with other parts among them, all stay parts."""
    content = item.get("content")
    if not isinstance(content, list):
        return content if isinstance(content, str) else ""
    if all(
        isinstance(part, str) or (isinstance(part, dict) and part.get("type") in TEXT_PARTS)
        for part in content
    ):
        return ("" if item.get("role", "assistant") == "assistant" else "\n").join(
            filter(None, map(part_text, content))
        )
    return [
        (
            {"type": "text", "text": part_text(part)}
            if isinstance(part, str) or (isinstance(part, dict) and part.get("type") in TEXT_PARTS)
            else part
        )
        for part in content
    ]


def _call(item: dict) -> dict:
    arguments = item.get("arguments")
    text = (
        arguments if isinstance(arguments, str) else as_json({} if arguments is None else arguments)
    )
    function = {"name": str(item.get("name") or ""), "arguments": text or "{}"}
    return {"id": str(item.get("call_id") or ""), "type": "function", "function": function}


# Writing


def to_items(messages: list[Message], *, output: bool = False) -> list[dict]:
    """Chat messages as the `input` of a request or, with `output`, as the output of a response:
    with ids, status, text only.
    """
    return [
        item for number, message in enumerate(messages) for item in _items(message, number, output)
    ]


def _items(message: Message, number: int, output: bool) -> Iterator[dict]:
    role, content = message["role"], message.get("content")
    if role == "tool":
        text = content if isinstance(content, str) else as_json(content)
        yield {
            "type": "function_call_output",
            "call_id": message.get("tool_call_id", ""),
            "output": text,
        }
        return
    calls = native_calls(message)
    if content is not None and not (content == "" and calls):
        if not output:
            yield {"role": role, "content": _request_parts(content, role)}
        elif role != "assistant":
            yield {"type": "message", "role": role, "content": text_of(message)}
        else:
            parts = [{"type": "output_text", "text": text_of(message), "annotations": []}]
            yield {
                "type": "message",
                "id": f"msg_{number}",
                "role": role,
                "status": "completed",
                "content": parts,
            }
    for call in calls:
        made = {
            "type": "function_call",
            "call_id": call.id,
            "name": call.tool,
            "arguments": call.arguments or "{}",
        }
        yield made | ({"id": f"fc_{number}_{call.id}", "status": "completed"} if output else {})


def _request_parts(content: Any, role: str) -> Any:
    if not isinstance(content, list):
        return content
    kind = "output_text" if role == "assistant" else "input_text"
    return [_request_part(part, kind) for part in content if not is_reasoning(part)]


def _request_part(part: Any, kind: str) -> Any:
    named = part.get("type") if isinstance(part, dict) else None
    if named == "text":
        return {"type": kind, "text": part["text"]}
    if named == "image_url" and isinstance(given := part.get("image_url"), dict):
        return {
            "type": "input_image",
            "image_url": given.get("url"),
            "detail": given.get("detail") or "auto",
        }
    return (
        {"type": "input_file"} | part["file"]
        if named == "file" and isinstance(part.get("file"), dict)
        else part
    )


def items_request(messages: list[Message], tools: list[dict]) -> dict[str, Any]:
    """The `input` and `tools` of a request."""
    return {"input": to_items(messages), "tools": [flat_tool(tool) for tool in tools]}


def from_chat_request(body: dict[str, Any]) -> dict[str, Any]:
    """A chat completion request converted for the Responses API, to be answered without being
    stored. A seed is dropped, since it is not supported there.
    """
    rest = dict(body)
    made = items_request(rest.pop("messages"), rest.pop("tools", []))
    if not made["tools"]:
        del made["tools"]
    if "max_tokens" in rest:
        made["max_output_tokens"] = rest.pop("max_tokens")
    if form := rest.pop("response_format", None):
        made["text"] = {"format": {"type": form["type"]} | form.get("json_schema", {})}
    if rest.pop("logprobs", False):
        made["include"] = ["message.output_text.logprobs"]
    rest.pop("seed", None)
    return rest | made | {"store": False}


# Parsing answers


def as_completion(response: Any) -> dict[str, Any]:
    """A Responses object as a chat completion: one message, the finish reason, the usage. Items of
    other types are left out.

    Raises ItemError, and any error of accessing JSON with another structure.
    """
    status, output = response.get("status") or "completed", response["output"]
    if status not in ("completed", "incomplete"):
        raise ItemError(0, "", f"its status is “{str(status)[:40]}”")
    if not isinstance(output, list):
        raise TypeError("the output must be a list")
    thoughts: list[str] = []

    def other(item: dict, index: int, messages: list[Message]) -> None:
        if item.get("type") == "reasoning" and (thought := reasoning_text(item)):
            thoughts.append(thought)

    said = [
        message
        for message in from_items(_without_commentary(output), other=other)
        if message["role"] == "assistant"
    ]
    message = _joined(said) | ({"reasoning_content": "\n".join(thoughts)} if thoughts else {})
    choice = {
        "index": 0,
        "message": message,
        "finish_reason": _finish_reason(response, status, message),
    }
    usage = response.get("usage")
    if isinstance(usage, dict):
        usage = {
            "prompt_tokens": usage.get("input_tokens"),
            "completion_tokens": usage.get("output_tokens"),
        }
    if rows := _logprobs(output):
        choice["logprobs"] = {"content": rows}
    return {
        "id": response.get("id"),
        "model": response.get("model"),
        "choices": [choice],
        "usage": usage,
    }


def _without_commentary(output: list) -> list:
    """If a message is marked as the final answer, commentary before it is not part of the
    answer.
    """
    phases = [item.get("phase") if isinstance(item, dict) else None for item in output]
    dropped = "commentary" if "final_answer" in phases else object()
    return [item for item, phase in zip(output, phases, strict=True) if phase != dropped]


def _joined(messages: list[Message]) -> Message:
    parts: list[Any] = []
    for message in messages:
        content = message["content"]
        parts += content if isinstance(content, list) else [{"type": "text", "text": content or ""}]
    refusals = [part for part in parts if isinstance(part, dict) and part.get("type") == "refusal"]
    text = "".join(part_text(part) for part in parts if part not in refusals)
    refusal = "".join(map(part_text, refusals))
    calls = [call for message in messages for call in message.get("tool_calls", ())]
    made: Message = {"role": "assistant", "content": text or None}
    return (
        made | ({"refusal": refusal} if refusal else {}) | ({"tool_calls": calls} if calls else {})
    )


def _finish_reason(response: dict, status: str, message: Message) -> str:
    if status == "incomplete":
        details = response.get("incomplete_details")
        reason = details.get("reason") if isinstance(details, dict) else None
        return "content_filter" if reason == "content_filter" else "length"
    return "tool_calls" if "tool_calls" in message else "stop"


def _logprobs(output: list[dict]) -> list:
    contents = [item["content"] for item in output if isinstance(item.get("content"), list)]
    given = [
        part.get("logprobs") for content in contents for part in content if isinstance(part, dict)
    ]
    return [row for rows in given if isinstance(rows, list) for row in rows]


def reasoning_text(item: dict) -> str:
    """The summary of a reasoning item, otherwise the reasoning itself if the server returns it."""
    return content_text(item.get("summary") or []) or content_text(item.get("content") or [])


def failure_of(response: Any) -> tuple[int, str] | None:
    """(the equivalent HTTP status, the server's message) of an answer that reports a failure; None
    for others.
    """
    if not isinstance(response, dict) or not (
        response.get("error") or response.get("status") == "failed"
    ):
        return None
    error = response.get("error")
    code = error.get("code") if isinstance(error, dict) else None
    code = code[:MAX_SAID] if isinstance(code, str) else ""
    status = 429 if code == "rate_limit_exceeded" else 400 if code.startswith(REFUSING) else 500
    return status, ": ".join(filter(None, [code, error_text(error or "it failed")]))


def error_text(error: Any) -> str:
    """The message of an `error` in any format."""
    message = error.get("message") if isinstance(error, dict) else None
    return str(message or error)[:MAX_SAID]
