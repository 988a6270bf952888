"""A tool's span as the call in a message, and what it answered as the message that replies."""

from __future__ import annotations

from apps.trajectories.otlp.conventions import Reading
from workers.lib.messages import Message


def call_of(reading: Reading, span_id: str) -> dict:
    """The call of a tool, which from now on has an id: its span's, where it was given none."""
    reading.tool_call_id = reading.tool_call_id or span_id
    return {
        "id": reading.tool_call_id,
        "type": "function",
        "function": {
            "name": reading.tool_name or "tool",
            "arguments": reading.tool_arguments or "{}",
        },
    }


def reply(call: dict, reading: Reading) -> Message:
    said: Message = {
        "role": "tool",
        "content": _answer(reading),
        "name": call["function"]["name"],
    }
    if "id" in call:
        said["tool_call_id"] = call["id"]
    return said


def _answer(reading: Reading) -> str | None:
    """Where a tool failed without an answer, its error."""
    if reading.tool_result is None and reading.error is not None:
        return reading.error.text
    return reading.tool_result
