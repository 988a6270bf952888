"""Chat messages as items of the OpenAI Responses API, and back. Light and pure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from workers.lib.verifiers import text_of


def to_items(messages: list[dict]) -> list[dict]:
    """Items in the form that a Responses object's `output` (and a request's `input`) has."""
    return [item for number, message in enumerate(messages) for item in _items(message, number)]


def _items(message: dict, number: int) -> Iterator[dict]:
    role, content = message["role"], message.get("content")
    if role == "tool":
        output = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
        yield {"type": "function_call_output", "call_id": message.get("tool_call_id", ""), "output": output}
        return
    calls = message.get("tool_calls") or []
    if content is not None and not (content == "" and calls):
        yield _message(role, text_of(content), number)
    for call in calls:
        function = call["function"]
        yield {
            "type": "function_call",
            "id": f"fc_{number}_{call.get('id', '')}",
            "call_id": call.get("id", ""),
            "name": function["name"],
            "arguments": function.get("arguments") or "{}",
            "status": "completed",
        }


def _message(role: str, text: str, number: int) -> dict:
    if role != "assistant":
        return {"type": "message", "role": role, "content": text}
    part = {"type": "output_text", "text": text, "annotations": []}
    return {"type": "message", "id": f"msg_{number}", "role": role, "status": "completed", "content": [part]}


def to_messages(items: Any) -> list[dict]:
    """Chat messages. Calls join the assistant's text right before them; reasoning and unknown items are left out.

    Raises ValueError where `items` is no list of objects (a text is one message of the user).
    """
    if isinstance(items, str):
        return [{"role": "user", "content": items}]
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise ValueError("Responses items must be a list of objects.")
    messages: list[dict] = []
    for item in items:
        _add(messages, item)
    return messages


def _add(messages: list[dict], item: dict) -> None:
    kind = item.get("type") or "message"
    if kind == "message":
        content = item.get("content")
        messages.append({"role": str(item.get("role") or "assistant"), "content": text_of(content)})
    elif kind == "function_call":
        if not messages or messages[-1]["role"] != "assistant":
            messages.append({"role": "assistant", "content": None})
        messages[-1].setdefault("tool_calls", []).append(_call(item))
    elif kind == "function_call_output":
        output = item.get("output")
        text = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)
        messages.append({"role": "tool", "tool_call_id": str(item.get("call_id") or ""), "content": text})


def _call(item: dict) -> dict:
    arguments = item.get("arguments")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)
    function = {"name": str(item.get("name") or ""), "arguments": text or "{}"}
    return {"id": str(item.get("call_id") or ""), "type": "function", "function": function}


def response_of(messages: list[dict], *, name: str, tools: list[dict], model: str = "policy") -> dict:
    """A whole Responses object whose output is what the agent said and what its tools answered."""
    return {
        "id": f"resp_{name}",
        "object": "response",
        "created_at": 0,
        "status": "completed",
        "model": model,
        "output": to_items(messages),
        "tools": [flat_tool(tool) for tool in tools],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
    }


def flat_tool(tool: dict) -> dict:
    """A chat tool as the Responses API has it."""
    function = tool.get("function", tool)
    return {
        "type": "function",
        "name": function.get("name", ""),
        "description": function.get("description", ""),
        "parameters": function.get("parameters") or {"type": "object", "properties": {}},
        "strict": bool(function.get("strict")),
    }


def chat_tool(tool: dict) -> dict:
    """A tool of the Responses API as chat completions have it."""
    if "function" in tool:
        return tool
    kept = {name: tool[name] for name in ("name", "description", "parameters") if name in tool}
    return {"type": "function", "function": kept}


def row_of(task: dict, tools: list[dict]) -> dict:
    """The task as a NeMo Gym row: what came with it from such a row, its request, and the calls that are right."""
    before = (task.get("metadata") or {}).get("nemo_gym")
    before = before if isinstance(before, dict) else {}
    params = before.get("responses_create_params")
    asked = {"input": to_items(task["messages"]), "tools": [flat_tool(tool) for tool in tools]}
    row = {"id": task.get("id"), "verifier_metadata": {}} | before
    row["responses_create_params"] = (params if isinstance(params, dict) else {}) | asked
    expected = task.get("expected") or {}
    if "tool" in expected or "calls" in expected:
        row.setdefault("ground_truth", [_truth(call) for call in expected.get("calls", [expected])])
    elif "answer" in expected:
        row.setdefault("expected_answer", expected["answer"])
    return row


def _truth(call: dict) -> dict:
    return {"name": call["tool"], "arguments": json.dumps(call["args"], ensure_ascii=False)}
