"""traceloop's OpenLLMetry. Its newer versions say messages as OpenTelemetry does, its older ones a
key for each field.
"""

from __future__ import annotations

from apps.trajectories.otlp.conventions.base import Convention, flattened, kind_in

KINDS = {
    "CHAT": "model",
    "COMPLETION": "model",
    "AGENT": "agent",
    "WORKFLOW": "agent",
    "TOOL": "tool",
}
INPUT, OUTPUT, TOOLS = "gen_ai.prompt.", "gen_ai.completion.", "llm.request.functions."

kind_of = kind_in(KINDS)


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
        "session_id": (
            "traceloop.association.properties.session_id",
            "traceloop.association.properties.thread_id",
        ),
        "user_id": ("traceloop.association.properties.user_id",),
        "workload": ("traceloop.workflow.name",),
        "tool_name": ("traceloop.entity.name",),
    },
    messages=flattened(INPUT, OUTPUT, TOOLS),
    given=("traceloop.entity.input",),
    answer=("traceloop.entity.output",),
    plumbing=("traceloop.span.kind", "llm.request.type"),
    prefixes=(INPUT, OUTPUT, TOOLS),
)
