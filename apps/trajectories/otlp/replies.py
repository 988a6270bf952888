"""What a tool answered, as the message that replies to its call."""

from __future__ import annotations

from apps.trajectories.otlp.conventions import Reading
from workers.lib.messages import Message


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
