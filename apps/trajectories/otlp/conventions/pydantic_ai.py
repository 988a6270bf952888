"""Pydantic AI and Logfire: OpenTelemetry's conventions, and what they say beside them."""

from __future__ import annotations

from apps.trajectories.otlp.conventions import genai
from apps.trajectories.otlp.conventions.base import Convention, Spoken, first
from apps.trajectories.values import label, structured

ALL_MESSAGES = ("pydantic_ai.all_messages", "all_messages_events")
TOOLS = "model_request_parameters"


def _messages(spoken: Spoken) -> None:
    attributes, reading = spoken.attributes, spoken.reading
    if (whole := first(attributes, ALL_MESSAGES)) is not None:
        reading.input, reading.output, reading.complete = spoken.messages(whole, "user"), [], True
    if not reading.tools and attributes.get(TOOLS):
        reading.tools = [attributes[TOOLS]]
    events = structured(attributes.get("events"))
    if isinstance(events, list) and not reading.complete:
        items = [item for item in events if isinstance(item, dict)]
        messages = [
            one
            for item in items
            for one in genai.messages_of_event(spoken, label(item.get("event.name")), item, item)
        ]
        genai.add_event_messages(spoken, messages)


PYDANTIC_AI = Convention(
    name="pydantic-ai",
    namespaces=(
        "pydantic_ai",
        "all_messages_events",
        "events",
        "logfire",
        "model_request_parameters",
        "model_name",
        "agent_name",
        "tool_arguments",
        "tool_response",
        "final_result",
        "operation",
    ),
    signs=("gen_ai.aggregated_usage.input_tokens",),
    fields={
        "agent_name": ("agent_name",),
        "request_model": ("model_name",),
        "cost_usd": ("operation.cost",),
        "tags": ("logfire.tags",),
        "tool_arguments": ("tool_arguments",),
        "tool_result": ("tool_response",),
    },
    messages=_messages,
    answer=("final_result",),
    plumbing=(
        *ALL_MESSAGES,
        TOOLS,
        "events",
        "logfire.json_schema",
        "logfire.msg",
        "logfire.span_type",
    ),
)
