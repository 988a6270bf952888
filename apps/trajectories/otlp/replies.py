"""A tool's span as the call in a message, and what it answered as the message that replies; and
whether a span's answer is one.
"""

from __future__ import annotations

from apps.trajectories.otlp.conventions import Problem, Reading
from apps.trajectories.values import letters
from workers.lib.messages import Message, text_of


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


def words_at_end(messages: list[Message]) -> str:
    """The words that a span ended with; none where it ended with a call."""
    last = messages[-1] if messages else {}
    return text_of(last) if last.get("role") == "assistant" and not last.get("tool_calls") else ""


def says_error(answer: list[Message], error: Problem) -> bool:
    """Whether an answer is the error that a span ended with."""
    said = letters(error.said)
    return bool(said) and said in letters(words_at_end(answer))
