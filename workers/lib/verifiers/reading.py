"""One tolerant reader of an agent's calls: native tool calls, or JSON text in one of the usual forms. Pure.

Text is a call where all of it is one: bare JSON, a code fence, or <tool_call> tags (Hermes, Qwen); prose with JSON
somewhere in it is an answer. What sets out to be a call and is none is a fault, not an answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from workers.lib.checks import json_of, unfenced
from workers.lib.verifiers.types import text_of

MAX_CALLS = 1000
_TAG, _END = "<tool_call>", "</tool_call>"
_SETS_OUT = re.compile(r"\s*(?:\[\s*)?\{\s*[\"'}]")


@dataclass(frozen=True, slots=True)
class Call:
    """A call that the agent made."""

    tool: str
    args: dict


@dataclass(slots=True)
class Made:
    """The calls of an agent, and what was wrong with those that cannot be read."""

    calls: list[Call] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


def calls_in(messages: Iterable[dict]) -> Made:
    """The calls of all assistant messages, in their order."""
    made = Made()
    for message in messages:
        if isinstance(message, dict) and message.get("role") == "assistant":
            _add(made, message)
    if len(made.calls) > MAX_CALLS:
        made.faults.append(f"too many calls: {len(made.calls)}")
    return made


def _add(made: Made, message: dict) -> None:
    native = message.get("tool_calls")
    if isinstance(native, list) and native:
        found: Iterable[Call | str] = map(_native, native)
    else:
        found = _in_text(text_of(message.get("content")))
    for item in found:
        (made.faults if isinstance(item, str) else made.calls).append(item)


def _native(item: Any) -> Call | str:
    """A call of an OpenAI message, or what is wrong with it."""
    function = item.get("function", item) if isinstance(item, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        return "broken call: a tool call has no name"
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        arguments = json_of(arguments) if arguments.strip() else {}
    if not isinstance(arguments, dict):
        return f"broken JSON: the arguments of {function['name'][:80]} are not a JSON object"
    return Call(function["name"], arguments)


def _in_text(text: str) -> Iterator[Call | str]:
    if _TAG in text:
        for part in text.split(_TAG)[1:]:
            yield from _of_json(part.split(_END)[0])
        return
    yield from _of_json(unfenced(text))


def _of_json(text: str) -> Iterator[Call | str]:
    if not _SETS_OUT.match(text):
        return
    value = json_of(text)
    if value is None:
        yield "broken JSON: the text sets out to be JSON and is none"
        return
    if isinstance(value, dict) and isinstance(value.get("tool_calls"), list):
        value = value["tool_calls"]
    for item in value if isinstance(value, list) else [value]:
        if (found := _of_value(item)) is not None:
            yield found


def _of_value(item: Any) -> Call | str | None:
    """A call, a fault, or None for JSON that is no call at all."""
    if not isinstance(item, dict):
        return None
    if isinstance(item.get("function"), dict):
        return _native(item)
    tool = item.get("tool", item.get("name"))
    args = item.get("args", item.get("arguments", item.get("parameters")))
    if "tool" not in item and args is None:
        return None  # {"name": "Ben"} is an answer
    if isinstance(args, str):
        args = json_of(args)
    if not isinstance(tool, str) or not isinstance(args, dict):
        return "broken call: expected {“tool”: text, “args”: object}"
    return Call(tool, args)
