"""What one span says, whatever the instrumentation: one `Reading` for every convention (see docs/otlp.md).

Where several conventions speak on one span the more exact wins: messages before raw input and output values.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

from apps.trajectories.otlp import messages as chat
from apps.trajectories.otlp.messages import Message, messages_of, one_turn
from apps.trajectories.otlp.spans import LogRecord, Span
from apps.trajectories.otlp.values import first, label, nest, number, structured, text

OPERATIONS = {
    "chat": "model", "text_completion": "model", "generate_content": "model", "completion": "model",
    "invoke_agent": "agent", "invoke_workflow": "agent", "execute_tool": "tool", "retrieval": "retriever",
    "create_agent": "other", "embeddings": "other",
}  # fmt: skip
KINDS = {
    "LLM": "model", "GENERATION": "model", "CHAT": "model", "COMPLETION": "model", "AGENT": "agent",
    "WORKFLOW": "agent", "TOOL": "tool", "RETRIEVER": "retriever", "RERANKER": "retriever",
}  # fmt: skip
KIND_KEYS = ("openinference.span.kind", "langfuse.observation.type", "traceloop.span.kind", "llm.request.type")

REQUEST_MODEL = ("gen_ai.request.model", "llm.request.model_name", "ai.model.id", "model_name")
RESPONSE_MODEL = (
    "gen_ai.response.model", "llm.response.model_name", "ai.response.model", "langfuse.observation.model.name",
    "llm.model_name",
)  # fmt: skip
INPUT_TOKENS = (
    "gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens", "llm.token_count.prompt", "llm.usage.prompt_tokens",
    "ai.usage.inputTokens", "ai.usage.promptTokens", "gen_ai.aggregated_usage.input_tokens",
)  # fmt: skip
OUTPUT_TOKENS = (
    "gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens", "llm.token_count.completion",
    "llm.usage.completion_tokens", "ai.usage.outputTokens", "ai.usage.completionTokens",
    "gen_ai.aggregated_usage.output_tokens",
)  # fmt: skip
COST = ("operation.cost", "llm.cost.total", "gen_ai.usage.cost", "gen_ai.usage.cost_usd")
CONVERSATION = ("gen_ai.conversation.id",)
SESSION = (
    "session.id", "langfuse.session.id", "traceloop.association.properties.session_id",
    "ai.telemetry.metadata.sessionId", "gen_ai.conversation.id", "traceloop.association.properties.thread_id",
)  # fmt: skip
USER = (
    "user.id", "langfuse.user.id", "enduser.id", "traceloop.association.properties.user_id",
    "ai.telemetry.metadata.userId",
)  # fmt: skip
AGENT_NAME = ("gen_ai.agent.name", "agent.name", "agent_name")
AGENT_VERSION = ("gen_ai.agent.version", "langfuse.version", "langfuse.release")
WORKLOAD = ("langfuse.trace.name", "gen_ai.workflow.name", "traceloop.workflow.name", "ai.telemetry.functionId")
TAGS = ("tag.tags", "langfuse.trace.tags", "logfire.tags", "ai.telemetry.metadata.tags")
TOOL_NAME = ("gen_ai.tool.name", "tool.name", "ai.toolCall.name", "traceloop.entity.name")
TOOL_CALL_ID = ("gen_ai.tool.call.id", "tool_call.id", "ai.toolCall.id", "tool.id")
TOOL_ARGUMENTS = (
    "gen_ai.tool.call.arguments", "tool_arguments", "ai.toolCall.args", "tool_call.function.arguments",
    "langfuse.observation.input", "traceloop.entity.input", "input.value",
)  # fmt: skip
TOOL_RESULT = (
    "gen_ai.tool.call.result", "tool_response", "ai.toolCall.result", "langfuse.observation.output",
    "traceloop.entity.output", "output.value",
)  # fmt: skip
TOOLS = ("gen_ai.tool.definitions", "model_request_parameters", "ai.prompt.tools", "gen_ai.request.tools")
SYSTEM = ("gen_ai.system_instructions",)
ALL_MESSAGES = ("pydantic_ai.all_messages", "all_messages_events")
INPUT = ("gen_ai.input.messages", "ai.prompt.messages", "gen_ai.prompt")
OUTPUT = ("gen_ai.output.messages", "gen_ai.completion")
INPUT_VALUE = (
    "langfuse.observation.input",
    "ai.prompt",
    "traceloop.entity.input",
    "input.value",
    "langfuse.trace.input",
)
OUTPUT_VALUE = (
    "langfuse.observation.output", "traceloop.entity.output", "output.value", "final_result", "langfuse.trace.output",
)  # fmt: skip
VERCEL_OUTPUT = ("ai.response.text", "ai.response.toolCalls", "ai.response.object")
PROMPT_PREFIXES = ("gen_ai.prompt.", "llm.input_messages.")
COMPLETION_PREFIXES = ("gen_ai.completion.", "llm.output_messages.")
TOOL_PREFIXES = ("llm.tools.", "llm.request.functions.", "gen_ai.tool.definitions.")
PLUMBING = (
    "gen_ai.operation.name", "ai.operationId", "logfire.json_schema", "logfire.msg", "logfire.span_type", "events",
    "metadata", "input.mime_type", "output.mime_type", "error.type", "tool.parameters", "tool.description",
    "langfuse.observation.usage_details", "langfuse.observation.cost_details", "gen_ai.tool.description",
    "gen_ai.response.finish_reasons", "llm.finish_reason", "langfuse.observation.level",
    "langfuse.observation.status_message", "llm.token_count.total", "llm.usage.total_tokens",
)  # fmt: skip
KNOWN = frozenset(
    name
    for names in (
        KIND_KEYS, REQUEST_MODEL, RESPONSE_MODEL, INPUT_TOKENS, OUTPUT_TOKENS, COST, CONVERSATION, SESSION, USER,
        AGENT_NAME, AGENT_VERSION, WORKLOAD, TAGS, TOOL_NAME, TOOL_CALL_ID, TOOL_ARGUMENTS, TOOL_RESULT, TOOLS, SYSTEM,
        ALL_MESSAGES, INPUT, OUTPUT, INPUT_VALUE, OUTPUT_VALUE, VERCEL_OUTPUT, PLUMBING,
    )
    for name in names
)  # fmt: skip
KNOWN_PREFIXES = (*PROMPT_PREFIXES, *COMPLETION_PREFIXES, *TOOL_PREFIXES, "tag.tags.")
VALUES = frozenset(INPUT_VALUE + OUTPUT_VALUE)


class Problem(Struct):
    """An error that a span ended with. `text` is one short line."""

    text: str
    type: str = ""
    stacktrace: str = ""


class Reading(Struct):
    """What a span says. `format` names the convention; `complete` that `input` is the run's whole history."""

    kind: str
    format: str = ""
    input: list[Message] = field(default_factory=list)
    output: list[Message] = field(default_factory=list)
    complete: bool = False
    tools: list[Any] = field(default_factory=list)
    model: str = ""
    request_model: str = ""
    input_tokens: float | None = None
    output_tokens: float | None = None
    cost_usd: float | None = None
    error: Problem | None = None
    conversation_id: str = ""
    session_id: str = ""
    user_id: str = ""
    agent_name: str = ""
    agent_version: str = ""
    workload: str = ""
    tags: list[str] = field(default_factory=list)
    tool_name: str = ""
    tool_call_id: str = ""
    tool_arguments: str | dict = ""
    tool_result: str | None = None
    evaluations: list[dict] = field(default_factory=list)
    in_graph: bool = False  # a step of a LangGraph


def read(span: Span, logs: list[LogRecord]) -> Reading:
    """What the span and the log records that belong to it (in the order of time) say."""
    attributes = span.attributes
    kind, form = _kind(span)
    reading = Reading(kind, form or _form_of_scope(span.scope.name), error=_problem(span))
    reading.conversation_id = label(first(attributes, CONVERSATION))
    reading.session_id = label(first(attributes, SESSION))
    reading.user_id = label(first(attributes, USER))
    reading.agent_name = label(first(attributes, AGENT_NAME))
    _read_metadata(attributes, reading)
    reading.agent_version = label(first(attributes, AGENT_VERSION))
    reading.workload = label(first(attributes, WORKLOAD))
    reading.tags = _tags(attributes)
    reading.evaluations = _evaluations(span, logs)
    if kind == "tool":
        _read_tool(span, logs, reading)
    elif kind in ("model", "agent"):
        _read_usage(attributes, reading)
        _read_messages(span, logs, reading)
    return reading


def values_of(span: Span) -> tuple[list[Message], list[Message]]:
    """A span's plain input and output values as messages: for a run that says nothing better."""
    given, answer = first(span.attributes, INPUT_VALUE), first(span.attributes, OUTPUT_VALUE)
    return _messages(_recorded(given), "user"), _messages(answer, "assistant")


def is_known(key: str, kind: str) -> bool:
    """Whether a reading of that kind has taken the attribute up."""
    if key in VALUES:
        return kind in ("model", "tool", "agent")
    return key in KNOWN or key.startswith(KNOWN_PREFIXES)


def tools_of(raw: list[Any]) -> list[dict]:
    """The readings' raw tool definitions as OpenAI tools, each name once."""
    found: dict[str, dict] = {}
    for value in raw:
        for tool in chat.tool_definitions(value):
            found.setdefault(tool["function"]["name"], tool)
    return list(found.values())


def _kind(span: Span) -> tuple[str, str]:
    """The kind, and the convention that said so."""
    attributes = span.attributes
    if isinstance(found := attributes.get("openinference.span.kind"), str):
        return KINDS.get(found.upper(), "other"), "openinference"
    if isinstance(found := attributes.get("ai.operationId"), str) and found.startswith("ai."):
        return _vercel_kind(found), "vercel-ai"
    if isinstance(found := attributes.get("gen_ai.operation.name"), str) and found in OPERATIONS:
        return OPERATIONS[found], "otel-genai"
    for key, form in zip(KIND_KEYS[1:], ("langfuse", "traceloop", "traceloop"), strict=True):
        if isinstance(found := attributes.get(key), str):
            return KINDS.get(found.upper(), "other"), form
    if "gen_ai.tool.name" in attributes:
        return "tool", "otel-genai"
    if first(attributes, ALL_MESSAGES) is not None:
        return "agent", "pydantic-ai"
    return ("model", "otel-genai") if "gen_ai.request.model" in attributes else ("other", "")


def _vercel_kind(operation: str) -> str:
    if operation == "ai.toolCall":
        return "tool"
    if "embed" in operation:
        return "other"
    return "model" if operation.rsplit(".", 1)[-1] in ("doGenerate", "doStream") else "agent"


def _form_of_scope(scope: str) -> str:
    return scope[:80]


def _problem(span: Span) -> Problem | None:
    attributes = span.attributes
    level = attributes.get("langfuse.observation.level")
    kind = label(attributes.get("error.type"))
    if span.status_code != 2 and level != "ERROR" and not kind:
        return None
    thrown = next((event.attributes for event in reversed(span.events) if event.name == "exception"), {})
    said = text(thrown.get("exception.message")) or span.status_message
    said = said or text(attributes.get("langfuse.observation.status_message"))
    name = label(thrown.get("exception.type")) or ("" if kind == "_OTHER" else kind)
    stack = text(thrown.get("exception.stacktrace")) or (said if "Traceback (most recent call last)" in said else "")
    return Problem(_one_line(name, said), name[:200], stack)


def _one_line(name: str, said: str) -> str:
    """`Type: message`, at most 300 characters; of a traceback its last line."""
    lines = [line.strip() for line in said.strip().splitlines() if line.strip()]
    line = (lines[-1] if "Traceback (most recent call last)" in said else lines[0]) if lines else ""
    short = name.rsplit(".", 1)[-1]
    if short and not line.startswith(short):
        line = f"{short}: {line}" if line else short
    return line[:300] or "error"


def _read_metadata(attributes: dict[str, Any], reading: Reading) -> None:
    """OpenInference and LangGraph keep the thread's id and the graph's step in a JSON attribute `metadata`."""
    found = structured(attributes.get("metadata"))
    if isinstance(found, dict):
        reading.in_graph = "langgraph_node" in found
        reading.agent_name = reading.agent_name or label(found.get("lc_agent_name"))
        reading.session_id = reading.session_id or label(found.get("thread_id") or found.get("session_id"))
        reading.user_id = reading.user_id or label(found.get("user_id"))


def _tags(attributes: dict[str, Any]) -> list[str]:
    found = structured(first(attributes, TAGS)) or nest(attributes, "tag.tags.")
    found = found if isinstance(found, list) else [found]
    return [tag[:80] for value in found if (tag := label(value))]


def _evaluations(span: Span, logs: list[LogRecord]) -> list[dict]:
    said = [event.attributes for event in span.events if event.name == "gen_ai.evaluation.result"]
    said += [log.attributes for log in logs if log.event_name == "gen_ai.evaluation.result"]
    prefix = "gen_ai.evaluation."
    return [{key[len(prefix) :]: found[key] for key in found if key.startswith(prefix)} for found in said]


def _read_usage(attributes: dict[str, Any], reading: Reading) -> None:
    reading.model = label(first(attributes, RESPONSE_MODEL))
    reading.request_model = label(first(attributes, REQUEST_MODEL)) or _asked_model(attributes, reading.model)
    reading.input_tokens = number(first(attributes, INPUT_TOKENS))
    reading.output_tokens = number(first(attributes, OUTPUT_TOKENS))
    reading.cost_usd = number(first(attributes, COST))
    usage = structured(attributes.get("langfuse.observation.usage_details"))
    if isinstance(usage, dict):
        reading.input_tokens = number(first(usage, ("input", "prompt_tokens", "input_tokens")))
        reading.output_tokens = number(first(usage, ("output", "completion_tokens", "output_tokens")))
    cost = structured(attributes.get("langfuse.observation.cost_details"))
    if isinstance(cost, dict):
        reading.cost_usd = number(cost.get("total"))
    reading.tools = [attributes[key] for key in TOOLS if attributes.get(key)][:1]
    if not reading.tools:
        reading.tools = [found for prefix in TOOL_PREFIXES if (found := nest(attributes, prefix))]
    if not reading.tools and isinstance(given := structured(attributes.get("langfuse.observation.input")), dict):
        reading.tools = [given["tools"]] if given.get("tools") else []


def _asked_model(attributes: dict[str, Any], answered: str) -> str:
    """The model among the parameters: OpenInference names that of a call that failed nowhere else.

    Some put the answer's parameters there, so the model that answered is not taken for the one that was asked.
    """
    found = structured(attributes.get("llm.invocation_parameters"))
    asked = label(found.get("model")) if isinstance(found, dict) else ""
    return asked if asked != answered else ""


def _recorded(value: Any) -> Any:
    """What a function was called with: Langfuse's decorator tells `{args, kwargs}`."""
    found = structured(value)
    if not isinstance(found, dict) or found.keys() != {"args", "kwargs"}:
        return value
    if not found["args"]:
        return found["kwargs"]
    alone = isinstance(found["args"], list) and len(found["args"]) == 1 and not found["kwargs"]
    return found["args"][0] if alone else value


def _read_tool(span: Span, logs: list[LogRecord], reading: Reading) -> None:
    attributes = span.attributes
    reading.tool_name = label(first(attributes, TOOL_NAME)) or span.name.removeprefix("execute_tool ").strip()
    reading.tool_call_id = label(first(attributes, TOOL_CALL_ID))
    arguments = _recorded(first(attributes, TOOL_ARGUMENTS))
    reading.tool_arguments = arguments if isinstance(arguments, (str, dict)) else text(arguments)
    reading.tool_result = _tool_result(span, logs, reading)
    if isinstance(parameters := structured(attributes.get("tool.parameters")), dict):
        description = attributes.get("tool.description")
        reading.tools = [{"name": reading.tool_name, "description": description, "parameters": parameters}]


def _tool_result(span: Span, logs: list[LogRecord], reading: Reading) -> str | None:
    """What the tool answered; of LangChain's ToolMessage the content, and its id if no attribute told one."""
    given = first(span.attributes, TOOL_RESULT)
    if given is None:
        told = [message["content"] for _, message in _event_messages(span, logs) if message["role"] == "tool"]
        return told[-1] if told else None
    message = structured(given)
    if isinstance(message, dict) and "tool_call_id" in message and "content" in message:
        reading.tool_call_id = reading.tool_call_id or label(message["tool_call_id"])
        return chat.reply_text(message["content"])
    return given if isinstance(given, str) else chat.reply_text(given)


def _read_messages(span: Span, logs: list[LogRecord], reading: Reading) -> None:
    attributes = span.attributes
    if (whole := first(attributes, ALL_MESSAGES)) is not None:
        reading.input, reading.complete = _messages(whole, "user"), True
    else:
        reading.input, reading.output = _input_output(span, logs)
        if not reading.input and not reading.output:
            reading.input, reading.output = values_of(span)
        elif not reading.input or not reading.output:
            plain = values_of(span)
            reading.input, reading.output = reading.input or plain[0], reading.output or plain[1]
    instructions = first(attributes, SYSTEM)
    if instructions is not None and not any(m["role"] in ("system", "developer") for m in reading.input[:1]):
        reading.input = _messages(instructions, "system") + reading.input


def _messages(value: Any, role: str) -> list[Message]:
    return one_turn(messages_of(value, role))


def _input_output(span: Span, logs: list[LogRecord]) -> tuple[list[Message], list[Message]]:
    """The messages that a convention gives as messages, on attributes, in events or in log records."""
    attributes = span.attributes
    given = _messages(first(attributes, INPUT), "user")
    answer = _messages(first(attributes, OUTPUT), "assistant")
    for prefix in () if given else PROMPT_PREFIXES:
        given = given or _messages(nest(attributes, prefix), "user")
    for prefix in () if answer else COMPLETION_PREFIXES:
        answer = answer or _messages(nest(attributes, prefix)[:1], "assistant")
    answer = answer or _vercel_output(attributes)
    if given and answer:
        return given, answer
    told = _event_messages(span, logs)
    return (
        given or one_turn([message for is_output, message in told if not is_output]),
        answer or one_turn([message for is_output, message in told if is_output]),
    )


def _vercel_output(attributes: dict[str, Any]) -> list[Message]:
    calls = structured(attributes.get("ai.response.toolCalls"))
    said = first(attributes, ("ai.response.text", "ai.response.object"))
    if not calls and said is None:
        return []
    return chat.chat({"content": said, "tool_calls": calls if isinstance(calls, list) else []}, "assistant")


def _event_messages(span: Span, logs: list[LogRecord]) -> list[tuple[bool, Message]]:
    """Messages told in pydantic-ai's `events`, in span events and in log records; True marks the model's answer."""
    told: list[tuple[bool, Message]] = []
    events = structured(span.attributes.get("events"))
    for item in events if isinstance(events, list) else ():
        if isinstance(item, dict):
            told += _told(label(item.get("event.name")), item, item)
    for event in span.events:
        told += _told(event.name, _body_of(event.attributes), event.attributes)
    for log in logs:
        told += _told(log.event_name, structured(log.body), log.attributes)
    return told


def _told(name: str, body: Any, attributes: dict[str, Any]) -> list[tuple[bool, Message]]:
    if name in ("gen_ai.client.inference.operation.details", "gen_ai.content.prompt", "gen_ai.content.completion"):
        both = attributes | body if isinstance(body, dict) else attributes
        given = _messages(first(both, SYSTEM), "system") + _messages(first(both, INPUT), "user")
        return [(False, m) for m in given] + [(True, m) for m in _messages(first(both, OUTPUT), "assistant")]
    if name == "gen_ai.choice":
        choice = body if isinstance(body, dict) else {"content": body}
        index = choice.get("index") or 0
        return [(True, message) for message in chat.chat(choice, "assistant")] if index == 0 else []
    if name.startswith("gen_ai.") and name.endswith(".message"):
        role = chat.ROLES.get(name.split(".")[1], "user")
        return [(False, message) for message in chat.chat(body if isinstance(body, dict) else {"content": body}, role)]
    return []


def _body_of(attributes: dict[str, Any]) -> dict[str, Any]:
    """A span event's attributes as the body of the message: some hold JSON in strings, some a message of their own."""
    body = {key: structured(value) if key != "content" else value for key, value in attributes.items()}
    return {key.removeprefix("gen_ai.event."): value for key, value in body.items()}
