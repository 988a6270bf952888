"""Chat messages as items of the OpenAI Responses API. Light and pure; the way back is `workers.lib.messages.from_items`."""

from __future__ import annotations

import json
from collections.abc import Iterator

from workers.lib.messages import flat_tool, native_calls, text_of, to_native


def to_items(messages: list[dict]) -> list[dict]:
    """Items in the form that a Responses object's `output` (and a request's `input`) has."""
    return [item for number, message in enumerate(messages) for item in _items(message, number)]


def _items(message: dict, number: int) -> Iterator[dict]:
    role, content = message["role"], message.get("content")
    if role == "tool":
        output = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
        yield {"type": "function_call_output", "call_id": message.get("tool_call_id", ""), "output": output}
        return
    calls = native_calls(message)
    if content is not None and not (content == "" and calls):
        yield _message(role, text_of(message), number)
    for call in calls:
        yield {
            "type": "function_call",
            "id": f"fc_{number}_{call.id}",
            "call_id": call.id,
            "name": call.tool,
            "arguments": call.arguments or "{}",
            "status": "completed",
        }


def _message(role: str, text: str, number: int) -> dict:
    if role != "assistant":
        return {"type": "message", "role": role, "content": text}
    part = {"type": "output_text", "text": text, "annotations": []}
    return {"type": "message", "id": f"msg_{number}", "role": role, "status": "completed", "content": [part]}


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
        row.setdefault("ground_truth", [truth(call) for call in expected.get("calls", [expected])])
    elif "answer" in expected:
        row.setdefault("expected_answer", expected["answer"])
    return row


def truth(call: dict) -> dict:
    """An expected call as NeMo Gym writes it."""
    return to_native(call["tool"], call["args"])["function"]
