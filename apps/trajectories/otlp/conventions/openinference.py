"""OpenInference (Phoenix), and the `metadata` that LangChain's and LangGraph's instrumentations
keep there.
"""

from __future__ import annotations

from typing import Any

from apps.trajectories.otlp.conventions.base import Convention, Spoken, flattened, kind_in
from apps.trajectories.values import label, nest, structured

KINDS = {
    "LLM": "model",
    "AGENT": "agent",
    "TOOL": "tool",
    "RETRIEVER": "retriever",
    "GUARDRAIL": "guardrail",
    "RERANKER": "retriever",
}
INPUT, OUTPUT, TOOLS = "llm.input_messages.", "llm.output_messages.", "llm.tools."

kind_of = kind_in(KINDS)


def _rest(spoken: Spoken) -> None:
    attributes, reading = spoken.attributes, spoken.reading
    found = structured(attributes.get("metadata"))
    if isinstance(found, dict):
        reading.in_graph = "langgraph_node" in found
        reading.agent_name = reading.agent_name or label(found.get("lc_agent_name"))
        named = {name.replace("_", "").lower(): value for name, value in found.items()}
        talk = named.get("threadid") or named.get("sessionid") or named.get("conversationid")
        reading.session_id = reading.session_id or label(talk)
        reading.user_id = reading.user_id or label(named.get("userid"))
    if reading.tags is None:
        reading.tags = nest(attributes, "tag.tags.") or None
    parameters = structured(attributes.get("tool.parameters"))
    if reading.kind == "tool" and isinstance(parameters, dict) and _is_schema(parameters):
        description = attributes.get("tool.description")
        reading.tools = [
            {"name": reading.tool_name, "description": description, "parameters": parameters}
        ]
    if reading.has_messages and not reading.request_model:
        reading.request_model = _asked_model(
            attributes.get("llm.invocation_parameters"), reading.model
        )


def _is_schema(parameters: dict) -> bool:
    """Some (Claude Agent SDK) put there what the tool was called with."""
    return "properties" in parameters or all(
        isinstance(value, dict) for value in parameters.values()
    )


def _asked_model(parameters: Any, answered: str) -> str:
    """The model among the parameters: of a call that failed it stands nowhere else.

    Some put the answer's parameters there, so the model that answered is not taken for the one that
    was asked.
    """
    found = structured(parameters)
    asked = label(found.get("model")) if isinstance(found, dict) else ""
    return asked if asked != answered else ""


OPENINFERENCE = Convention(
    name="openinference",
    namespaces=(
        "openinference",
        "llm",
        "input",
        "output",
        "metadata",
        "tag",
        "tool",
        "tool_call",
        "agent",
    ),
    fields={
        "agent_name": ("agent.name",),
        "request_model": ("llm.request.model_name",),
        "model": ("llm.response.model_name", "llm.model_name"),
        "provider": ("llm.provider", "llm.system"),
        "cost_usd": ("llm.cost.total",),
        "tags": ("tag.tags",),
        "tool_name": ("tool.name",),
        "tool_call_id": ("tool_call.id", "tool.id"),
        "tool_arguments": ("tool_call.function.arguments",),
    },
    rest=_rest,
    messages=flattened(INPUT, OUTPUT, TOOLS),
    given=("input.value",),
    answer=("output.value",),
    plumbing=(
        "openinference.span.kind",
        "metadata",
        "input.mime_type",
        "output.mime_type",
        "tool.parameters",
        "tool.description",
        "llm.finish_reason",
    ),
    prefixes=(INPUT, OUTPUT, TOOLS, "tag.tags."),
)
