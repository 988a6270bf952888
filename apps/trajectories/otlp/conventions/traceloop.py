"""traceloop's OpenLLMetry. Its newer versions say messages as OpenTelemetry does, its older ones a key for each field."""

from __future__ import annotations

from typing import Any

from apps.trajectories.otlp.conventions.base import Convention, Spoken
from apps.trajectories.otlp.values import nest

KINDS = {
    "CHAT": "model", "COMPLETION": "model", "AGENT": "agent", "WORKFLOW": "agent", "TOOL": "tool",
}  # fmt: skip
INPUT, OUTPUT, TOOLS = "gen_ai.prompt.", "gen_ai.completion.", "llm.request.functions."


def kind_of(kind: Any) -> str:
    return KINDS.get(kind.upper(), "other") if isinstance(kind, str) else ""


def _messages(spoken: Spoken) -> None:
    attributes, reading = spoken.attributes, spoken.reading
    given = () if reading.input else nest(attributes, INPUT)
    answer = () if reading.output else nest(attributes, OUTPUT)[:1]
    spoken.add_messages(given, answer)
    if not reading.tools and (found := nest(attributes, TOOLS)):
        reading.tools = [found]


TRACELOOP = Convention(
    name="traceloop",
    namespaces=("traceloop", "llm"),
    signs=(
        "gen_ai.prompt.0.role",
        "gen_ai.prompt.0.content",
        "gen_ai.completion.0.role",
        "gen_ai.completion.0.content",
    ),
    fields={
        "session_id": ("traceloop.association.properties.session_id", "traceloop.association.properties.thread_id"),
        "user_id": ("traceloop.association.properties.user_id",),
        "workload": ("traceloop.workflow.name",),
        "input_tokens": ("llm.usage.prompt_tokens",),
        "output_tokens": ("llm.usage.completion_tokens",),
        "tool_name": ("traceloop.entity.name",),
    },
    messages=_messages,
    given=("traceloop.entity.input",),
    answer=("traceloop.entity.output",),
    plumbing=("traceloop.span.kind", "llm.request.type", "llm.usage.total_tokens"),
    prefixes=(INPUT, OUTPUT, TOOLS),
)
