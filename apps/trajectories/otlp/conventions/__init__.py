"""What one span says, whatever the instrumentation: one adapter for each convention, one `Reading`
for all (docs/otlp.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from apps.trajectories.dialects import (
    Message,
    are_texts,
    holds_messages,
    messages_of,
    one_turn,
    out_of_message,
    reply_text,
    tool_definitions,
    tool_message,
)
from apps.trajectories.otlp.conventions import (
    coding_agents,
    frameworks,
    genai,
    langfuse,
    openinference,
    traceloop,
    vercel,
)
from apps.trajectories.otlp.conventions.base import (
    NO_USAGE,
    UNIQUE,
    USUAL_NAMES,
    Attributes,
    Convention,
    Problem,
    Reading,
    Spoken,
    called_with,
    first,
    problem_of,
)
from apps.trajectories.otlp.conventions.coding_agents import CLAUDE_CODE
from apps.trajectories.otlp.conventions.flywheel import FLYWHEEL
from apps.trajectories.otlp.conventions.genai import GENAI
from apps.trajectories.otlp.conventions.langfuse import LANGFUSE
from apps.trajectories.otlp.conventions.openinference import OPENINFERENCE
from apps.trajectories.otlp.conventions.pydantic_ai import ALL_MESSAGES, PYDANTIC_AI
from apps.trajectories.otlp.conventions.raw import (
    USAGE_OBJECTS,
    complete_by_objects,
    complete_by_raw,
    said_by_providers,
)
from apps.trajectories.otlp.conventions.traceloop import TRACELOOP
from apps.trajectories.otlp.conventions.vercel import VERCEL
from apps.trajectories.otlp.server_state import state_of
from apps.trajectories.otlp.spans import Event, LogRecord, Span
from apps.trajectories.values import is_cut, label, number, structured, text
from workers.lib.prices import list_price
from workers.lib.token_usage import Usage, parse, plain_name, total

__all__ = [
    "KIND_NAMES",
    "KNOWN",
    "Problem",
    "Reading",
    "complete",
    "given_to",
    "is_known",
    "read",
    "read_as_tool",
    "says_kind",
    "tools_of",
    "values_of",
]

# Which convention a span speaks, by the first of these attributes that it has, and the kind of span
# that this one says.
SPEAKS = (
    ("openinference.span.kind", OPENINFERENCE, openinference.kind_of),
    ("ai.operationId", VERCEL, vercel.kind_of),
    ("gen_ai.operation.name", GENAI, genai.kind_of),
    ("langfuse.observation.type", LANGFUSE, langfuse.kind_of),
    ("traceloop.span.kind", TRACELOOP, traceloop.kind_of),
    ("llm.request.type", TRACELOOP, traceloop.kind_of),
    ("gen_ai.tool.name", GENAI, lambda _: "tool"),
    (ALL_MESSAGES[0], PYDANTIC_AI, lambda _: "agent"),
    (ALL_MESSAGES[1], PYDANTIC_AI, lambda _: "agent"),
    ("span.type", CLAUDE_CODE, coding_agents.kind_of),
    ("gen_ai.request.model", GENAI, lambda _: "model"),
)
KIND_NAMES = frozenset(name for name, _, _ in SPEAKS)
# Spans mix conventions (a Langfuse session on an OpenTelemetry call): these read, in this order,
# those that they find.
ADAPTERS = (GENAI, PYDANTIC_AI, OPENINFERENCE, VERCEL, LANGFUSE, TRACELOOP, CLAUDE_CODE, FLYWHEEL)
BY_NAMESPACE: dict[str, tuple[int, ...]] = {
    name: tuple(place for place, adapter in enumerate(ADAPTERS) if name in adapter.namespaces)
    for adapter in ADAPTERS
    for name in adapter.namespaces
}
BY_SIGN = {sign: (place,) for place, adapter in enumerate(ADAPTERS) for sign in adapter.signs}
# Attributes that count tokens, the more exact conventions first.
USAGE = (
    "gen_ai.usage.",
    "gen_ai.aggregated_usage.",
    "llm.token_count.",
    "ai.usage.",
    "llm.usage.",
)
COST_PARTS = (
    "gen_ai.cost.input_cost",
    "gen_ai.cost.output_cost",
    "llm.cost.prompt",
    "llm.cost.completion",
)
OUTCOMES = {"isError", "state"}  # beside a tool's content, as MCP has it: whether it failed
FUNCTION_RESPONSE = {"id", "name", "response"}  # Gemini's
MANY_NAMES, MANY_SPANS = 10_000, 256  # attributes and sets of them that are remembered
RAW_VALUES = (LANGFUSE, VERCEL, TRACELOOP, OPENINFERENCE, PYDANTIC_AI, GENAI)
GIVEN = tuple(name for adapter in RAW_VALUES for name in adapter.given)
ANSWER = tuple(name for adapter in RAW_VALUES for name in adapter.answer)
RAW_REQUEST, RAW_RESPONSE = (*GIVEN, "gen_ai.prompt"), (*ANSWER, "gen_ai.completion", "response")
TO_TOOL, FROM_TOOL = (*GIVEN, *genai.INPUT), (*ANSWER, *genai.OUTPUT)
VALUES = frozenset(GIVEN + ANSWER)
KNOWN = frozenset(name for adapter in ADAPTERS for name in adapter.known) | VALUES
KNOWN_PREFIXES = tuple(prefix for adapter in ADAPTERS for prefix in adapter.prefixes)


def says_kind(span: Span) -> bool:
    """Whether a convention says what kind of span it is."""
    return bool(_kind(span)[1])


def read(
    span: Span, logs: list[LogRecord], seen: dict[bytes, list[Message]] | None = None
) -> Reading:
    """What the span and the log records that belong to it (in the order of time) say.

    `seen` carries what was read of messages from one span of a trace to the next.
    """
    span = _with_exceptions(span, logs)
    attributes = span.attributes
    kind, name = _kind(span)
    reading = Reading(kind, name or span.scope.name[:80], is_open=not name)
    if span.status_code == 2 or label(attributes.get("error.type")):
        reading.error = problem_of(span)
    spoken = Spoken(span, logs, reading, {} if seen is None else seen)
    adapters = _adapters(attributes)
    for adapter in adapters:
        adapter.fill(reading, attributes)
        adapter.rest(spoken)
    if reading.has_messages:
        _read_usage(reading, attributes, spoken.details)
        complete_by_objects(spoken, attributes)
    if kind == "model":
        _read_state(reading, attributes)
    reading.session_id = reading.session_id or reading.conversation_id
    reading.tags = _tags(reading.tags)
    if kind == "tool":
        _read_tool(spoken)
    elif reading.has_messages:
        _read_messages(spoken, adapters)
        if kind == "model":
            complete_by_raw(spoken, first(attributes, RAW_REQUEST), first(attributes, RAW_RESPONSE))
    if kind in ("model", "tool") and _has_thrown(span, reading):
        reading.error = reading.error or problem_of(span)
    if mend := frameworks.MENDS.get(span.scope.name):
        mend(spoken)
    return reading


def _with_exceptions(span: Span, logs: list[LogRecord]) -> Span:
    """The span with the exceptions that log records say, as newer versions of OpenTelemetry do."""
    thrown = [
        Event("exception", log.time_ns, log.attributes)
        for log in logs
        if log.event_name.rsplit(".", 1)[-1] == "exception"
    ]
    return replace(span, events=[*span.events, *thrown]) if thrown else span


def complete(reading: Reading, attributes: Attributes) -> None:
    """Fills what is empty from the attributes that an event stands for."""
    GENAI.fill(reading, attributes)
    if reading.kind == "model":
        _read_usage(reading, attributes)
    elif not isinstance(reading.tool_arguments, str | dict | None):
        reading.tool_arguments = text(reading.tool_arguments)


def _read_state(reading: Reading, attributes: Attributes) -> None:
    state = state_of(attributes, ANSWER)
    reading.previous_id = reading.previous_id or state.previous
    reading.response_id = reading.response_id or state.answer
    reading.answer_id, reading.server_conversation = state.answer, state.conversation


def _read_usage(
    reading: Reading, attributes: Attributes, details: Sequence[Attributes] = ()
) -> None:
    """Counts and cost, which every convention has under names of its own. `details`: what events
    say; of several calls that one span records, each has its own.
    """
    for said in details:
        attributes = said | attributes
    if reading.cost_usd is None:
        parts = [part for name in COST_PARTS if (part := number(attributes.get(name))) is not None]
        reading.cost_usd = sum(parts) if parts else _cost_beside(attributes)
    if not reading.usage.is_known:
        calls = _calls_of(details) if len(details) > 1 else []
        reading.usage = total(calls) if len(calls) > 1 else _usage_of(attributes)
    if reading.cost_usd is not None:
        reading.usage = replace(reading.usage, cost_usd=reading.cost_usd)
    if reading.service_tier:
        reading.usage = replace(reading.usage, service_tier=reading.service_tier[:40])
    if reading.usage.cost_usd == 0 and _has_a_price(reading) and not _was_cached(attributes):
        reading.usage, reading.cost_usd = replace(reading.usage, cost_usd=None), None
        reading.doubts_cost = True


def _has_a_price(reading: Reading) -> bool:
    """Whether the tokens of a call cost something: then a cost of exactly 0 only says that the
    sender knows no price.
    """
    if not reading.usage.tokens:
        return False
    names = (reading.model, reading.request_model)
    prices = (list_price(name, provider=reading.provider) for name in names)
    price = next(filter(None, prices), None)
    return price is not None and (price.input > 0 or price.output > 0)


def _was_cached(attributes: Attributes) -> bool:
    """Whether a gateway answered from its own cache, which costs nothing."""
    said = (attributes[name] for name in attributes if name.endswith(("cache_hit", "cacheHit")))
    return any(value is True or label(value).lower() == "true" for value in said)


def _usage_of(attributes: Attributes) -> Usage:
    keys = tuple(attributes)
    names = (_usage_names if len(keys) <= USUAL_NAMES else _usage_names.__wrapped__)(keys)
    said = {plain: attributes[key] for key, plain in names}
    return parse(said, includes_cache=True) if said else NO_USAGE


@lru_cache(MANY_SPANS)
def _usage_names(keys: tuple[str, ...]) -> list[tuple[str, str]]:
    """Of these attributes those that count tokens and their bare names, the best last: it stays."""
    named = [(key, name) for key in keys if (name := _usage_name(key))]
    named.sort(key=lambda item: item[1].rank, reverse=True)
    return [(key, name.plain) for key, name in named]


def _calls_of(details: Sequence[Attributes]) -> list[Usage]:
    """What each call of a span used that several events describe; two of one answer are one."""
    calls = {
        label(said.get("gen_ai.response.id")) or place: used
        for place, said in enumerate(details)
        if (used := _usage_of(said)).is_known
    }
    return list(calls.values())


class UsageName(Struct, frozen=True):
    rank: int
    plain: str


@lru_cache(MANY_NAMES)
def _usage_name(key: str) -> UsageName | None:
    """Of an attribute that counts tokens: by how exact its convention is, and its bare name."""
    prefix = next((prefix for prefix in USAGE if key.startswith(prefix)), None)
    if prefix is None:
        return None
    return UsageName(USAGE.index(prefix), plain_name(key.removeprefix(prefix)))


def _cost_beside(attributes: Attributes) -> float | None:
    """A cost that only a gateway's own JSON says (LiteLLM; OpenRouter and Vercel's gateway in the
    AI SDK).
    """
    hidden = structured(attributes.get("hidden_params"))
    if isinstance(hidden, dict):
        return number(hidden.get("response_cost"))
    for entry in said_by_providers(attributes):
        for value in (entry.get("usage"), entry):
            if isinstance(value, dict) and (cost := number(value.get("cost"))) is not None:
                return cost
    return None


def _kind(span: Span) -> tuple[str, str]:
    """The kind, and the convention that said so."""
    attributes = span.attributes
    kind, convention = "other", ""
    for name, adapter, kind_of in SPEAKS:
        if (found := attributes.get(name)) is not None and (says := kind_of(found)):
            if adapter is CLAUDE_CODE and not span.name.startswith(coding_agents.CLAUDE.prefix):
                continue  # others have an attribute of that name
            kind, convention = says, adapter.name
            break
    framework = frameworks.kind_of(span.scope.name, span.name)
    return (framework, convention or span.scope.name[:80]) if framework else (kind, convention)


def _adapters(attributes: Attributes) -> list[Convention]:
    found = (
        _spoken_by(tuple(attributes))
        if len(attributes) <= USUAL_NAMES
        else _spoken_by.__wrapped__(attributes)
    )
    return [ADAPTERS[place] for place in found]


@lru_cache(MANY_SPANS)
def _spoken_by(keys: Iterable[str]) -> list[int]:
    """The places of the adapters that read these attributes. Spans of one instrumentation have the
    same ones.
    """
    return sorted(
        {0}.union(*map(_places, keys))
    )  # GENAI always: its events may come without any attribute


@lru_cache(MANY_NAMES)
def _places(key: str) -> tuple[int, ...]:
    return BY_NAMESPACE.get(key.partition(".")[0], ()) + BY_SIGN.get(key, ())


def _tags(value: object) -> list[str]:
    found = structured(value)
    return [
        tag[:80] for item in (found if isinstance(found, list) else [found]) if (tag := label(item))
    ]


def read_as_tool(span: Span, reading: Reading, name: str) -> None:
    """Makes a tool of what has been read of a span of no known kind."""
    reading.kind, reading.tool_name = "tool", name
    _read_tool(Spoken(span, [], reading, {}))


def _read_tool(spoken: Spoken) -> None:
    """The tool's name, arguments and result as text; of LangChain's ToolMessage its content, and
    its id if it has one.
    """
    attributes, reading = spoken.attributes, spoken.reading
    reading.tool_name = reading.tool_name or spoken.span.name.removeprefix("execute_tool ").strip()
    if reading.tool_arguments is None:
        reading.tool_arguments = first(attributes, TO_TOOL)
    arguments = called_with(out_of_message(reading.tool_arguments, "assistant"))
    reading.tool_arguments = arguments if isinstance(arguments, str | dict) else text(arguments)
    if reading.tool_result is None:
        reading.tool_result = first(attributes, FROM_TOOL)
    reading.tool_result = out_of_message(reading.tool_result, "tool")
    message = structured(reading.tool_result)
    is_text = message is reading.tool_result
    reading.is_cut = is_cut(arguments) or (is_text and is_cut(message))
    if message is None:
        genai.add_events(spoken)
        return
    if isinstance(message, dict) and message.keys() == FUNCTION_RESPONSE:
        reading.tool_result = message["response"]
    elif (answer := tool_message(message)) is not None:
        reading.tool_call_id = reading.tool_call_id or label(answer["tool_call_id"])
        reading.tool_name = label(answer.get("name")) or reading.tool_name
        reading.tool_result = answer["content"]
    elif isinstance(message, dict) and message.keys() & OUTCOMES:
        _read_outcome(spoken, message)
    reading.tool_result = reply_text(reading.tool_result)


def _read_outcome(spoken: Spoken, result: dict) -> None:
    """Text blocks beside which a tool says whether it failed; no blocks are no text."""
    content, reading = result.get("content"), spoken.reading
    if content != [] and not are_texts(content):
        return
    reading.tool_result = reply_text(content) if content else ""
    if reading.error is None and (result.get("isError") is True or result.get("state") == "error"):
        reading.error = problem_of(spoken.span, reading.tool_result)


def _read_messages(spoken: Spoken, adapters: list[Convention]) -> None:
    reading = spoken.reading
    for adapter in adapters:
        adapter.messages(spoken)
    if not reading.complete:
        genai.add_events(spoken)
        if not reading.input or not reading.output:
            _read_values(spoken)
    genai.add_instructions(spoken)
    if reading.kind == "model" and any(map(_is_mixed, reading.output)):
        _drop_leftovers(reading)


def _is_mixed(message: Message) -> bool:
    calls = message.get("tool_calls") or ()
    return bool(calls) and (len(calls) > 1 or message.get("content") is not None)


def _drop_leftovers(reading: Reading) -> None:
    """Calls beside an answer that the request already holds with their replies: where one span
    records several calls of a model, the attributes of an earlier answer stay.
    """
    replied = {message.get("tool_call_id") for message in reading.input}
    known = {
        call["id"]: call
        for message in reading.input
        for call in message.get("tool_calls") or ()
        if len(call.get("id") or "") >= UNIQUE and call["id"] in replied
    }
    for place, message in enumerate(reading.output):
        calls = message.get("tool_calls") or ()
        new = [call for call in calls if known.get(call.get("id")) != call]
        if calls and len(new) < len(calls) and (new or message.get("content") is not None):
            rest = {name: value for name, value in message.items() if name != "tool_calls"}
            reading.output[place] = rest | ({"tool_calls": new} if new else {})


def _has_thrown(span: Span, reading: Reading) -> bool:
    """Whether an exception came instead of an answer, whatever the span's status says."""
    said = reading.output if reading.kind == "model" else reading.tool_result
    if said not in (None, "", "{}", []):
        return False
    is_error = reading.kind == "model" and genai.says_error(span.attributes)
    return is_error or span.has_thrown


def _read_values(spoken: Spoken) -> None:
    """Raw input and output, where no messages say what went in or came out."""
    reading = spoken.reading
    given, answer = (
        spoken.messages(given_to(spoken.span), "user"),
        spoken.messages(_answered(spoken.span), "assistant"),
    )
    if not reading.input:
        reading.input = given
        reading.raw_input = not holds_messages(given_to(spoken.span))
    if not reading.output:
        reading.output = answer
        reading.raw_output = not holds_messages(_answered(spoken.span))


def values_of(span: Span) -> tuple[list[Message], list[Message]]:
    """A span's raw input and output as messages: for a run that says nothing better."""
    given, answer = messages_of(given_to(span), "user"), messages_of(_answered(span), "assistant")
    return one_turn(given), one_turn(answer)


def given_to(span: Span) -> Any:
    """A span's raw input."""
    return called_with(first(span.attributes, GIVEN))


def _answered(span: Span) -> Any:
    found = first(span.attributes, ANSWER)
    return None if found == "null" else found  # the JSON of nothing


@lru_cache(MANY_NAMES)
def is_known(key: str, kind: str) -> bool:
    """Whether a reading of that kind has taken the attribute up."""
    if key in USAGE_OBJECTS:
        return kind in ("model", "agent")
    if key in VALUES:
        return kind in ("model", "tool", "agent")
    if (name := _usage_name(key)) and kind in ("model", "agent"):
        return not parse({name.plain: 1}).unread
    return key in KNOWN or key.startswith(KNOWN_PREFIXES)


def tools_of(raw: list[object]) -> list[dict]:
    """The readings' raw tool definitions as OpenAI tools, each name once: the first that has
    parameters.
    """
    found: dict[str, dict] = {}
    for value in raw:
        for tool in tool_definitions(value):
            function = tool["function"]
            known = found.setdefault(function["name"], tool)["function"]
            if "parameters" in function and "parameters" not in known:
                found[function["name"]] = tool
    return list(found.values())
