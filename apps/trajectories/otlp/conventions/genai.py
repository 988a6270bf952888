"""OpenTelemetry's semantic conventions for generative AI: attributes, span events and log
records.
"""

from __future__ import annotations

import re
from typing import Any

from apps.trajectories.dialects import ROLES, Message, chat, one_turn
from apps.trajectories.interruptions import CANCELLED
from apps.trajectories.otlp.conventions.base import (
    Attributes,
    Convention,
    Reading,
    Spoken,
    first,
    first_choice,
    problem_of,
)
from apps.trajectories.otlp.spans import Span
from apps.trajectories.values import label, nest, structured

OPERATIONS = {
    "chat": "model",
    "text_completion": "model",
    "generate_content": "model",
    "completion": "model",
    "invoke_agent": "agent",
    "invoke_workflow": "agent",
    "execute_tool": "tool",
    "retrieval": "retriever",
    "search_memory": "retriever",
    "fetch_response": "model",
    "plan": "other",
    "create_agent": "other",
    "embeddings": "other",
}
OPERATION, WORKFLOW, FETCH = "gen_ai.operation.name", "invoke_workflow", "fetch_response"
MEMORY = re.compile("(create|update|upsert|delete)_memory(_store)?")
INSTRUCTIONS = ("gen_ai.system_instructions", "langfuse.observation.metadata.instructions")
INPUT = ("gen_ai.input.messages", "gen_ai.prompt")
OUTPUT = ("gen_ai.output.messages", "gen_ai.completion")
TOOLS = ("gen_ai.tool.definitions", "gen_ai.request.tools")
BODY = frozenset(("role", "content", "message", "tool_calls"))  # members of an event's body
TOOLS_PREFIX = "gen_ai.tool.definitions."
# Older versions say each message in an event of its own; newer ones all of them in one.
DETAILS = (
    "gen_ai.client.inference.operation.details",
    "gen_ai.content.prompt",
    "gen_ai.content.completion",
)
STATUS, REASONS = "gen_ai.response.status", "gen_ai.response.finish_reasons"
ENDED = {"failed": "failed", "cancelled": "was cancelled"}
COMPACTED = "gen_ai.conversation.compacted"
EVALUATION, EVALUATION_PREFIX = "gen_ai.evaluation.result", "gen_ai.evaluation."


def _messages(spoken: Spoken) -> None:
    attributes, reading = spoken.attributes, spoken.reading
    answers = first_choice(spoken, _whole(_listed(attributes, OUTPUT)))
    spoken.add_messages(_listed(attributes, INPUT), answers)
    for said in [attributes] if reading.tools else [attributes, *spoken.details]:
        found = _listed(said, TOOLS)
        if found and not reading.tools:
            reading.tools = [found]


def _listed(attributes: Attributes, names: tuple[str, ...]) -> Any:
    """Messages or tools in one attribute, or with a name for each member."""
    return first(attributes, names) or nest(attributes, f"{names[0]}.") or None


def _whole(answers: Any) -> Any:
    """The answer in one message, where it is in pieces as they were streamed: all but the last of
    them have an empty reason of their end.
    """
    pieces = structured(answers)
    if not isinstance(pieces, list) or len(pieces) < 2 or not all(map(_is_piece, pieces)):
        return answers
    if any(piece.get("finish_reason") != "" for piece in pieces[:-1]):
        return answers
    parts: list[dict] = []
    for part in (part for piece in pieces for part in piece["parts"]):
        is_text = part.get("type") == "text" and isinstance(part.get("content"), str)
        if is_text and parts and parts[-1].get("type") == "text":
            parts[-1] = parts[-1] | {"content": f"{parts[-1]['content']}{part['content']}"}
        else:
            parts.append(part)
    return [pieces[-1] | {"parts": parts}]


def _is_piece(message: Any) -> bool:
    parts = message.get("parts") if isinstance(message, dict) else None
    return isinstance(parts, list) and all(isinstance(part, dict) for part in parts)


def _details(spoken: Spoken) -> list[Attributes]:
    """What the events that describe a whole call say: any attribute of the span may be there
    instead.
    """
    said = [(event.name, event.attributes, None) for event in spoken.span.events]
    said += [(log.event_name, log.attributes, structured(log.body)) for log in spoken.logs]
    return [
        attributes | body if isinstance(body, dict) else attributes
        for name, attributes, body in said
        if name in DETAILS
    ]


def _rest(spoken: Spoken) -> None:
    spoken.details = _details(spoken)
    for details in spoken.details:
        GENAI.fill(spoken.reading, details)
    said = [event.attributes for event in spoken.span.events if event.name == EVALUATION]
    said += [log.attributes for log in spoken.logs if log.event_name == EVALUATION]
    spoken.reading.evaluations = list(map(evaluation_of, said))
    if spoken.reading.has_messages:
        _read_operation(spoken.span, spoken.reading)


def evaluation_of(attributes: Attributes) -> dict[str, Any]:
    """What an event says of an evaluation's result."""
    return {
        key[len(EVALUATION_PREFIX) :]: value
        for key, value in attributes.items()
        if key.startswith(EVALUATION_PREFIX)
    }


def _read_operation(span: Span, reading: Reading) -> None:
    """What kind of call or agent it is, and how the provider says that it ended."""
    attributes = span.attributes
    operation, status = attributes.get(OPERATION), attributes.get(STATUS)
    reading.is_compacted = attributes.get(COMPACTED) is True
    if operation == WORKFLOW and reading.agent_name:  # before 0.1.0: `gen_ai.workflow.name`
        reading.workload = reading.workload or reading.agent_name
        reading.agent_name = ""
    reading.is_fetched = operation == FETCH
    if reading.kind == "model" and reading.error is None and status in ("failed", "cancelled"):
        reading.error = problem_of(span, f"The provider says that the response {ENDED[status]}.")
        reading.error.interruption = CANCELLED if status == "cancelled" else ""


def says_error(attributes: Attributes) -> bool:
    """Whether all that a model was to generate ended with an error."""
    reasons = structured(attributes.get(REASONS))
    return isinstance(reasons, list) and bool(reasons) and set(map(label, reasons)) == {"error"}


def add_events(spoken: Spoken) -> None:
    """Takes the messages of span events and log records, where attributes gave none; of a tool its
    result.
    """
    reading = spoken.reading
    if not (spoken.span.events or spoken.logs) or (reading.input and reading.output):
        return
    messages: list[tuple[bool, Message]] = []
    for event in spoken.span.events:
        body = _body_of(event.attributes)
        messages += messages_of_event(spoken, event.name, body, event.attributes)
    for log in spoken.logs:
        body = structured(log.body)
        messages += messages_of_event(spoken, log.event_name, body, log.attributes)
    add_event_messages(spoken, messages)


def add_event_messages(spoken: Spoken, messages: list[tuple[bool, Message]]) -> None:
    """Takes messages, each with whether it is the model's answer. Where none says anything, no
    content was captured.
    """
    reading = spoken.reading
    if not any(message.get("content") or message.get("tool_calls") for _, message in messages):
        return
    if reading.kind == "tool":
        results = [message["content"] for _, message in messages if message["role"] == "tool"]
        if answers := [message["content"] for is_answer, message in messages if is_answer]:
            # AWS Strands: the tool's message is what it was called with, the choice what it
            # answered.
            if reading.tool_arguments in (None, "") and results:
                reading.tool_arguments = results[0]
            results = answers
        if reading.tool_result is None and results:
            reading.tool_result = results[-1]
    elif reading.has_messages:
        given = one_turn([message for is_answer, message in messages if not is_answer])
        answer = one_turn([message for is_answer, message in messages if is_answer])
        if reading.kind == "model" and not (answer or reading.input or reading.output):
            given, answer = _split_at_answer(given)
        reading.input = reading.input or given
        reading.output = reading.output or answer


def _split_at_answer(messages: list[Message]) -> tuple[list[Message], list[Message]]:
    """A request, and the answer after it where no event says which is the answer."""
    is_answered = len(messages) > 1 and messages[-1]["role"] == "assistant"
    return (messages[:-1], messages[-1:]) if is_answered else (messages, [])


def is_event_read(name: str) -> bool:
    """Whether the attributes of a span's event are taken up."""
    is_message = name.startswith("gen_ai.") and name.endswith((".message", ".choice"))
    return is_message or name in (*DETAILS, EVALUATION)


def messages_of_event(
    spoken: Spoken, name: str, body: Any, attributes: Attributes
) -> list[tuple[bool, Message]]:
    """The messages of one event, each with whether it is the model's answer."""
    if name in DETAILS:
        both = attributes | body if isinstance(body, dict) else attributes
        prompt = spoken.messages(first(both, INSTRUCTIONS), "system")
        given = prompt + spoken.messages(first(both, INPUT), "user")
        answer = spoken.messages(first(both, OUTPUT), "assistant")
        return [(False, message) for message in given] + [(True, message) for message in answer]
    if name == "gen_ai.choice":
        choice = body if isinstance(body, dict) else {"content": body}
        index = choice.get("index") or 0
        if isinstance(choice.get("message"), list | str):  # AWS Strands: the content alone
            choice = {"role": "assistant", "content": choice["message"]}
        return [(True, message) for message in chat(choice, "assistant")] if index == 0 else []
    if name.startswith("gen_ai.") and name.endswith(".message"):
        role = ROLES.get(name.split(".")[1], "user")
        return [
            (False, message)
            for message in chat(body if isinstance(body, dict) else {"content": body}, role)
        ]
    return []


def _body_of(attributes: Attributes) -> Attributes:
    """A span event's attributes as the body of the message: some hold JSON in strings, some a
    message of their own, and some all of the body in one.
    """
    body = {
        key: structured(value) if key != "content" else value for key, value in attributes.items()
    }
    for key in [key for key, value in body.items() if _is_body(value)]:
        body |= body.pop(key)
    return {key.removeprefix("gen_ai.event."): value for key, value in body.items()}


def _is_body(value: Any) -> bool:
    return isinstance(value, dict) and not BODY.isdisjoint(value)


def add_instructions(spoken: Spoken) -> None:
    """Puts the instructions, which come apart from the messages, before them."""
    reading = spoken.reading
    found = first(spoken.attributes, INSTRUCTIONS)
    if found is not None and not any(
        message["role"] in ("system", "developer") for message in reading.input[:1]
    ):
        reading.input = _instructions(spoken, found) + reading.input


def _instructions(spoken: Spoken, found: Any) -> list[Message]:
    """Every call of a run repeats them. A marker that is not JSON keeps them apart from single
    messages.
    """
    if not isinstance(found, str):
        return spoken.messages(found, "system")
    key = b"system " + found.encode("utf-8", "surrogatepass")
    if key not in spoken.seen:
        spoken.seen[key] = spoken.messages(found, "system")
    return spoken.seen[key]


def kind_of(operation: Any) -> str:
    name = label(operation)
    return "other" if MEMORY.fullmatch(name) else OPERATIONS.get(name, "")


GENAI = Convention(
    name="otel-genai",
    namespaces=("gen_ai", "session", "user", "enduser"),
    fields={
        "conversation_id": ("gen_ai.conversation.id",),
        "session_id": ("session.id",),
        "user_id": ("user.id", "enduser.id"),
        "agent_name": ("gen_ai.agent.name",),
        "agent_version": ("gen_ai.agent.version",),
        "workload": ("gen_ai.workflow.name",),
        "model": ("gen_ai.response.model",),
        "response_id": ("gen_ai.response.id",),
        "previous_id": ("gen_ai.request.previous_response.id",),
        "request_model": ("gen_ai.request.model",),
        "provider": ("gen_ai.provider.name", "gen_ai.system"),
        "service_tier": (
            "openai.response.service_tier",
            "gen_ai.openai.response.service_tier",
            "gen_ai.response.service_tier",
        ),
        "cost_usd": (
            "gen_ai.usage.cost",
            "gen_ai.usage.cost_usd",
            "gen_ai.usage.total_cost",
            "gen_ai.cost.total_cost",
        ),
        "tool_name": ("gen_ai.tool.name",),
        "tool_call_id": ("gen_ai.tool.call.id",),
        "tool_arguments": ("gen_ai.tool.call.arguments",),
        "tool_result": ("gen_ai.tool.call.result",),
    },
    rest=_rest,
    messages=_messages,
    plumbing=(
        *INSTRUCTIONS,
        *INPUT,
        *OUTPUT,
        *TOOLS,
        OPERATION,
        "gen_ai.tool.description",
        REASONS,
        "error.type",
    ),
    prefixes=(TOOLS_PREFIX,),
    given=("input",),
    answer=("output",),
)
