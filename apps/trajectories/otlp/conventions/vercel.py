"""The Vercel AI SDK's own telemetry."""

from __future__ import annotations

from typing import Any

from apps.trajectories.otlp.conventions.base import Convention, Spoken, first
from apps.trajectories.values import structured

INPUT, TOOLS, CALLS = "ai.prompt.messages", "ai.prompt.tools", "ai.response.toolCalls"
SAID = ("ai.response.text", "ai.response.object")


def kind_of(operation: Any) -> str:
    if not isinstance(operation, str) or not operation.startswith("ai."):
        return ""
    if operation == "ai.toolCall":
        return "tool"
    if "embed" in operation:
        return "other"
    return "model" if operation.rsplit(".", 1)[-1] in ("doGenerate", "doStream") else "agent"


def _messages(spoken: Spoken) -> None:
    attributes, reading = spoken.attributes, spoken.reading
    calls, said = structured(attributes.get(CALLS)), first(attributes, SAID)
    answer = {
        "role": "assistant",
        "content": said,
        "tool_calls": calls if isinstance(calls, list) else [],
    }
    spoken.add_messages(attributes.get(INPUT), answer if calls or said is not None else None)
    if not reading.tools and attributes.get(TOOLS):
        reading.tools = [attributes[TOOLS]]


VERCEL = Convention(
    name="vercel-ai",
    namespaces=("ai",),
    fields={
        "session_id": ("ai.telemetry.metadata.sessionId",),
        "user_id": ("ai.telemetry.metadata.userId",),
        "workload": ("ai.telemetry.functionId",),
        "tags": ("ai.telemetry.metadata.tags",),
        "request_model": ("ai.model.id",),
        "model": ("ai.response.model",),
        "provider": ("ai.model.provider",),
        "tool_name": ("ai.toolCall.name",),
        "tool_call_id": ("ai.toolCall.id",),
        "tool_arguments": ("ai.toolCall.args",),
        "tool_result": ("ai.toolCall.result",),
    },
    messages=_messages,
    given=("ai.prompt",),
    plumbing=("ai.operationId", INPUT, TOOLS, CALLS, *SAID),
)
