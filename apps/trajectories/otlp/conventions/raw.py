"""The request and the response as they went over the wire, which some spans hold beside attributes
for each message: what those leave out is taken from there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from msgspec import Struct

from apps.trajectories.dialects import INSTRUCTIONS, Message, carries_role, instructions_beside
from apps.trajectories.otlp.conventions.base import Attributes, Reading, Spoken
from apps.trajectories.otlp.server_state import RESPONSES
from apps.trajectories.values import label, python_literal, structured
from workers.lib.messages import PROMPT_ROLES, RESULT_ROLES, is_reasoning
from workers.lib.token_usage import Usage, parse

MODEL = ("model_name", "model", "modelVersion", "model_version")
USAGE = ("usage", "token_usage", "usageMetadata", "usage_metadata")
METADATA = "response_metadata"
HEADS = frozenset(("model_name", "model_provider", "token_usage"))
CALL_ID = re.compile(r'"call_id"\s*:\s*"([^"]+)"')
MAX_DEPTH = 8
USAGE_OBJECTS = (  # a provider's, as it came
    "gen_ai.usage.raw",
    "metadata.usage_object",
    "langsmith.metadata.usage_metadata",
    "usage",
)
# The end of the name of what is said about an answer, an object of each provider that had a say.
ABOUT_ANSWER = re.compile(r"(?:provider|response)[._]?metadata$", re.IGNORECASE)
MANY_SPANS, USUAL_NAMES = 256, 64


def complete_by_objects(spoken: Spoken, attributes: Attributes) -> None:
    """Counts that only the provider's own usage object says."""
    for name in USAGE_OBJECTS:
        if (value := attributes.get(name)) is not None:
            _complete_usage(spoken.reading, _object(value))
    for said in said_by_providers(attributes):
        _complete_usage(spoken.reading, said)


def said_by_providers(attributes: Attributes) -> Iterator[dict]:
    """What each provider or gateway says of an answer, in an object of its own."""
    keys = tuple(attributes)
    named = _about_answer if len(keys) <= USUAL_NAMES else _about_answer.__wrapped__
    for name in named(keys):
        by_provider = _object(attributes[name])
        for said in by_provider.values() if isinstance(by_provider, dict) else ():
            if isinstance(said, dict):
                yield said


@lru_cache(MANY_SPANS)
def _about_answer(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in names if ABOUT_ANSWER.search(name))


def complete_by_raw(spoken: Spoken, given: Any, answer: Any) -> None:
    """What the flattened attributes of a model call leave out."""
    reading = spoken.reading
    used = reading.usage
    lacks_parts = used.cache_read_tokens is used.reasoning_tokens is None
    if is_alias(reading) or lacks_parts or not (reading.response_id and reading.tools):
        _read_response(reading, _head(structured(answer)))
    if reading.input and not any(m["role"] in PROMPT_ROLES for m in reading.input[:1]):
        request = structured(given) if isinstance(given, str) and _has_prompt(given) else None
        if isinstance(request, dict):
            reading.input = instructions_beside(request, reading.input) + reading.input
    if not reading.tools and isinstance(given, str) and '"tools"' in given:
        request = structured(given)
        tools = request.get("tools") if isinstance(request, dict) else None
        reading.tools = [tools] if tools else []
    if is_lossy(reading.input) or _lacks_replies(reading.input):
        reading.input = _more_exact(reading.input, spoken.messages(given, "user"))
    if is_lossy(reading.output):
        reading.output = _more_exact(reading.output, spoken.messages(answer, "assistant"))
    if isinstance(answer, str) and '"reasoning"' in answer:
        reading.output = _with_thoughts(reading.output, spoken.messages(answer, "assistant"))
    _name_calls(reading, given, answer)


def _name_calls(reading: Reading, *raws: Any) -> None:
    """A response's items have an id of the item and one of the call. Where messages name calls by
    the item, they are given the call's id, which is what the provider takes.
    """
    texts = [raw for raw in raws if isinstance(raw, str) and '"call_id"' in raw]
    known = {found for raw in texts for found in CALL_ID.findall(raw)}
    messages = [*reading.input, *reading.output]
    if not known or known.issuperset(ids_of(messages)):
        return
    names = dict(pair for raw in texts for pair in _ids_of_items(structured(raw), MAX_DEPTH))
    reading.input = [_named(message, names) for message in reading.input]
    reading.output = [_named(message, names) for message in reading.output]


def ids_of(messages: list[Message]) -> Iterator[str]:
    for message in messages:
        yield from filter(None, [message.get("tool_call_id")])
        yield from (call["id"] for call in message.get("tool_calls") or () if call.get("id"))


def _ids_of_items(value: Any, levels: int) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        item, call = label(value.get("id")), label(value.get("call_id"))
        if item and call:
            yield item, call
    if levels and isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _ids_of_items(inner, levels - 1)


def _named(message: Message, names: dict[str, str]) -> Message:
    calls = message.get("tool_calls") or ()
    if not any(call.get("id") in names for call in calls) and (
        message.get("tool_call_id") not in names
    ):
        return message
    renamed = dict(message)
    if calls:
        renamed["tool_calls"] = [
            call | {"id": names[call["id"]]} if call.get("id") in names else call for call in calls
        ]
    if message.get("tool_call_id") in names:
        renamed["tool_call_id"] = names[message["tool_call_id"]]
    return renamed


def is_alias(reading: Reading) -> bool:
    """Whether the model that answered is only known by the name that was asked for."""
    return reading.model in ("", reading.request_model) or not reading.request_model


class Head(Struct):
    """What a framework keeps of a response beside the answer: `said` of the response itself."""

    message: dict
    said: dict
    usage: Usage


def head_beside(message: dict) -> Head | None:
    """The head of a response in a member of its message: LangChain's, else an object of any name
    in which the tokens are counted.
    """
    if isinstance(said := message.get(METADATA), dict):
        return Head(message, said, parse(message.get("usage_metadata"))) if said else None
    if "role" not in message or not carries_role(message):
        return None
    for said in message.values():
        if isinstance(said, dict) and isinstance(used := _first(said, USAGE), dict):
            return Head(message, said, parse(used))
    return None


def complete_by_answer(reading: Reading, head: Head, messages: list[Message]) -> None:
    """`messages` is the answer as it stands beside the head."""
    _read_response(reading, head.said)
    reading.usage = reading.usage.completed_by(head.usage)
    reading.output = _with_thoughts(reading.output, messages)


def _first(value: dict, names: tuple[str, ...]) -> Any:
    return next((value[name] for name in names if value.get(name)), None)


def _has_prompt(request: str) -> bool:
    return any(f'"{name}"' in request for name in INSTRUCTIONS)


def _head(response: Any) -> Any:
    """What a framework keeps of the response beside its own message (LangChain's)."""
    found = response.get("generations") if isinstance(response, dict) else None
    while isinstance(found, list) and found:
        found = found[0]
    for names in (("message",), ("kwargs", "data"), (METADATA,)):
        inner = next(
            (found[name] for name in names if isinstance(found, dict) and name in found), 0
        )
        found = inner if isinstance(inner, dict) else found if names != ("message",) else None
    return found if isinstance(found, dict) else response


def _read_response(reading: Reading, response: Any) -> None:
    if not isinstance(response, dict) or (RESPONSES | HEADS | {"usage"}).isdisjoint(response):
        return
    answered = next(filter(None, (label(response.get(name)) for name in MODEL)), "")
    if answered and answered.startswith(reading.model):  # of an alias what stands behind it
        reading.request_model = reading.request_model or reading.model
        reading.model = answered
    if not reading.tools and isinstance(response.get("tools"), list):
        reading.tools = [response["tools"]]  # OpenAI's responses repeat them
    if "model" in response:  # a message alone has an id, too
        reading.response_id = reading.response_id or label(response.get("id"))
    _complete_usage(reading, _first(response, USAGE))


def _complete_usage(reading: Reading, found: Any) -> None:
    if isinstance(found, dict):
        reading.usage = reading.usage.completed_by(parse(found))


def _object(value: Any) -> Any:
    found = structured(value)
    return python_literal(found) if isinstance(found, str) and found[:1] == "{" else found


def _more_exact(messages: list[Message], raw: list[Message]) -> list[Message]:
    """The raw messages, where the flattened ones are the same but lack something."""
    return raw if not is_lossy(raw) and _outline(raw) == _outline(messages) else messages


def _lacks_replies(messages: list[Message]) -> bool:
    """Whether a history goes on after calls that it holds no replies to."""
    calls = sum(len(message.get("tool_calls") or ()) for message in messages)
    return calls > sum(message["role"] in RESULT_ROLES for message in messages)


def _with_thoughts(messages: list[Message], raw: list[Message]) -> list[Message]:
    """The answer with the reasoning before it that only the raw response has."""
    if _thoughts(messages) or len(messages) != len(raw) != 0 or not (found := _thoughts(raw)):
        return messages
    content = messages[0].get("content")
    words = content if isinstance(content, list) else [{"type": "text", "text": content or ""}]
    blocks = [*found, *(block for block in words if block.get("text") != "")]
    return [messages[0] | {"content": blocks}, *messages[1:]]


def _thoughts(messages: list[Message]) -> list[dict]:
    contents = (message.get("content") for message in messages)
    return [
        block
        for content in contents
        if isinstance(content, list)
        for block in content
        if is_reasoning(block)
    ]


def is_lossy(messages: list[Message]) -> bool:
    """Whether calls or replies lack their ids, or messages what they say."""
    return any(map(_lacks_something, messages))


def _lacks_something(message: Message) -> bool:
    if message["role"] in RESULT_ROLES:
        return not (message.get("tool_call_id") and message.get("content"))
    calls = message.get("tool_calls")
    if not calls:
        return message.get("content") is None
    return any(not call.get("id") for call in calls)


def _outline(messages: list[Message]) -> list[tuple]:
    """Who speaks and what is called, apart from replies."""
    return [
        (message["role"], [call["function"]["name"] for call in message.get("tool_calls") or ()])
        for message in messages
        if message["role"] not in RESULT_ROLES
    ]
