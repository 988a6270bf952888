"""The request and the response as they went over the wire, which some spans hold beside attributes
for each message: what those leave out is taken from there.
"""

from __future__ import annotations

from typing import Any

from apps.trajectories.dialects import Message
from apps.trajectories.otlp.conventions.base import Attributes, Spoken
from apps.trajectories.otlp.server_state import RESPONSES
from apps.trajectories.values import label, python_literal, structured
from workers.lib.messages import RESULT_ROLES
from workers.lib.token_usage import parse

MODEL = ("model", "modelVersion", "model_version")
USAGE = ("usage", "usageMetadata", "usage_metadata")
USAGE_OBJECTS = ("gen_ai.usage.raw", "metadata.usage_object")  # a provider's, as it came


def complete_by_objects(spoken: Spoken, attributes: Attributes) -> None:
    """Counts that only the provider's own usage object says."""
    for name in USAGE_OBJECTS:
        if (value := attributes.get(name)) is not None:
            _complete_usage(spoken, _object(value))


def complete_by_raw(spoken: Spoken, given: Any, answer: Any) -> None:
    """What the flattened attributes of a model call leave out."""
    reading = spoken.reading
    used = reading.usage
    if not reading.model or used.cache_read_tokens is used.reasoning_tokens is None:
        _read_response(spoken, structured(answer))
    if not reading.tools and isinstance(given, str) and '"tools"' in given:
        request = structured(given)
        tools = request.get("tools") if isinstance(request, dict) else None
        reading.tools = [tools] if tools else []
    reading.input = _more_exact(spoken, reading.input, given, "user")
    reading.output = _more_exact(spoken, reading.output, answer, "assistant")


def _read_response(spoken: Spoken, response: Any) -> None:
    if not isinstance(response, dict) or RESPONSES.isdisjoint(response):
        return
    reading = spoken.reading
    named = (label(response.get(name)) for name in MODEL)
    reading.model = reading.model or next(filter(None, named), "")
    _complete_usage(spoken, next((response[name] for name in USAGE if response.get(name)), None))


def _complete_usage(spoken: Spoken, found: Any) -> None:
    if isinstance(found, dict):
        spoken.reading.usage = spoken.reading.usage.completed_by(parse(found))


def _object(value: Any) -> Any:
    found = structured(value)
    return python_literal(found) if isinstance(found, str) and found[:1] == "{" else found


def _more_exact(spoken: Spoken, messages: list[Message], value: Any, role: str) -> list[Message]:
    """The raw messages, where the flattened ones are the same but lack something."""
    if not is_lossy(messages) or value is None:
        return messages
    raw = spoken.messages(value, role)
    return raw if not is_lossy(raw) and _outline(raw) == _outline(messages) else messages


def is_lossy(messages: list[Message]) -> bool:
    """Whether calls or replies lack their ids, or replies what the tool said."""
    return any(
        not (message.get("tool_call_id") and message.get("content"))
        if message["role"] in RESULT_ROLES
        else any(not call.get("id") for call in message.get("tool_calls") or ())
        for message in messages
    )


def _outline(messages: list[Message]) -> list[tuple]:
    """Who speaks and what is called."""
    return [
        (message["role"], [call["function"]["name"] for call in message.get("tool_calls") or ()])
        for message in messages
    ]
