"""Requests to NeMo Gym's servers: a task's row, and the Responses object of what an agent did.
Light and pure.
"""

from __future__ import annotations

from workers.lib.messages import flat_tool, items_request, to_items, to_native

ASKED, TRUTH, ANSWER = "responses_create_params", "ground_truth", "expected_answer"


def response_of(
    messages: list[dict], *, name: str, tools: list[dict], model: str = "policy"
) -> dict:
    """A complete Responses object whose output contains the agent's messages and the tool
    results.
    """
    return {
        "id": f"resp_{name}",
        "object": "response",
        "created_at": 0,
        "status": "completed",
        "model": model,
        "output": to_items(messages, output=True),
        "tools": [flat_tool(tool) for tool in tools],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
    }


def row_of(task: dict, tools: list[dict]) -> dict:
    """The task as a NeMo Gym row: fields from an imported row, the request, and the correct
    calls.
    """
    before = (task.get("metadata") or {}).get("nemo_gym")
    before = before if isinstance(before, dict) else {}
    params = before.get(ASKED) if isinstance(before.get(ASKED), dict) else {}
    # The messages already begin with the instructions.
    given = {name: value for name, value in params.items() if name != "instructions"}
    row = {"id": task.get("id"), "verifier_metadata": {}} | before
    row[ASKED] = given | items_request(task["messages"], tools)
    expected = task.get("expected") or {}
    if "tool" in expected or "calls" in expected:
        row[TRUTH] = [truth(call) for call in expected.get("calls", [expected])]
    elif "answer" in expected:
        row[ANSWER] = expected["answer"]
    return row


def truth(call: dict) -> dict:
    """An expected call in NeMo Gym's format."""
    return to_native(call["tool"], call["args"])["function"]
