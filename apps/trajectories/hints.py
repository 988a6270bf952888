"""What to do about what a run lacks, in the words of the way in which it was sent."""

from __future__ import annotations

from typing import Any

from apps.core.bus import Question, first
from apps.trajectories.instrumentation import content_hint, scope_of, tools_hint

OUTCOME = " Without it, failures are found only by rules, the judge or people."
VERSION = ", to see which release caused a regression."
SESSION = ", to read a conversation's runs together."
CHECKED = ", so that calls can be checked against them."
PRICED = "Computed from the tokens where the model's price is known (Models → Prices); "
REST = {
    "Text": "No message has text. Send it as “content”.",
    "Messages": "Send “messages” in OpenAI chat form.",
    "Outcome": f"Send outcome.status (success or failure), now or later as feedback.{OUTCOME}",
    "Agent": "Send agent.name, to distinguish agents.",
    "Version": f"Send agent.version{VERSION}",
    "Tools": f"Send “tools”, the tool definitions given to the model{CHECKED}",
    "Tool calls": "None in this run. If the agent calls tools, send them as tool_calls, and their"
    " results as messages of role “tool”.",
    "Model": "Send “model”, to compare models.",
    "Tokens": "Send “usage”: the provider's object as it is, or input_tokens and output_tokens.",
    "Latency": "Send latency_ms.",
    "Cost": f"{PRICED}a cost that is sent as usage.cost_usd wins.",
    "Session": f"Send session_id{SESSION}",
}
OTLP = {
    "Messages": "The spans have no gen_ai.input.messages and gen_ai.output.messages.",
    "Outcome": "Spans do not say whether a run succeeded. Report it as feedback, by the id of the"
    f" trace.{OUTCOME}",
    "Agent": "Set gen_ai.agent.name on the agent's span, or OTEL_SERVICE_NAME, to distinguish"
    " agents.",
    "Version": "Set gen_ai.agent.version on the agent's span, or"
    f" OTEL_RESOURCE_ATTRIBUTES=service.version=…{VERSION}",
    "Tools": f"Set gen_ai.tool.definitions on the spans of model calls{CHECKED}",
    "Tool calls": "None in this run. If the agent calls tools, the model's calls belong in"
    " gen_ai.output.messages, and each tool needs a span (execute_tool).",
    "Model": "Set gen_ai.request.model on the spans of model calls, to compare models.",
    "Tokens": "Set gen_ai.usage.input_tokens and gen_ai.usage.output_tokens on the spans of model"
    " calls. Streams often report them only if asked (include_usage).",
    "Latency": "The spans do not say when they ended.",
    "Cost": f"{PRICED}a cost that a span has as gen_ai.usage.cost wins.",
    "Session": f"Set session.id or gen_ai.conversation.id on a span of the run{SESSION}",
}
FILE = {
    "Text": "No message of the file has text where its format has it.",
    "Messages": "No message was found in the file. A mapping says where they are.",
    "Outcome": "The file has none where its format has it. Map a column, or report it as feedback,"
    f" by the run's id.{OUTCOME}",
    "Agent": "Map a column, or =NAME for all rows, to distinguish agents.",
    "Version": f"Map a column, or =VERSION for all rows{VERSION}",
    "Tools": f"Map the column of the tool definitions{CHECKED}",
    "Tool calls": "None in this run. If the agent calls tools, map the columns of calls and"
    " results.",
    "Model": "Map a column, or =MODEL for all rows, to compare models.",
    "Tokens": "Map the columns of input and output tokens.",
    "Latency": "Map a column of the latency, in milliseconds or seconds.",
    "Cost": f"{PRICED}a column that is mapped as the cost wins.",
    "Session": f"Map a column{SESSION}",
}


class HintsOf(Question[dict[str, str]]):
    """What a layer above says, by the name of the part, of runs that arrive through it; they are
    known by their scope.
    """

    scope: str


def hints_of(metadata: dict[str, Any], *, is_of_file: bool) -> dict[str, str]:
    """By the name of the part that is missing."""
    is_of_spans = metadata.get("source") == "otlp"
    found = dict(OTLP if is_of_spans else FILE if is_of_file else REST)
    if is_of_spans or metadata.get("content_captured") is False:
        found["Text"] = not_captured(metadata)
    if defined := tools_hint(metadata):
        found["Tools"] += f" Turn it on: {defined}"
    return found | (first(HintsOf(scope_of(metadata))) or {})


def not_captured(metadata: dict[str, Any]) -> str:
    """What to do about spans without text, as far as it is known of their instrumentation."""
    hint = content_hint(metadata)
    if hint:
        return f"The spans have no text. Turn it on: {hint}"
    return "The spans have no text: the instrumentation does not record it, or is told not to."
