"""The tool calls of a message, in all forms that the field writes. Only the standard library.

Native: OpenAI's `tool_calls` (arguments as text or object), the older `function_call`, a Responses item. As text: where all
of the text is JSON of one call or a list of calls, bare, in a code fence, or in <tool_call> tags (Hermes, Qwen). Prose
with JSON somewhere in it is an answer. What begins as a call and cannot be read is a call with a `problem`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from workers.lib.messages.content import Message, text_of, unfenced
from workers.lib.messages.json_text import is_json, json_of

NO_NAME = "broken call: a tool call has no name"
NOT_A_CALL = "broken call: expected {“tool”: text, “args”: object}"
BROKEN_TEXT = "broken JSON: the text sets out to be JSON and is none"
NAMES = ("tool", "name", "toolName", "tool_name")
ARGUMENTS = ("args", "arguments", "parameters", "kwargs")
IDS = ("call_id", "id", "tool_call_id", "toolCallId")  # a Responses item has both: `id` is the item's
_TAG, _END = "<tool_call>", "</tool_call>"
_BEGINS_A_CALL = re.compile(r"\s*(?:\[\s*)?\{\s*[\"'}]")


@dataclass(slots=True)
class ToolCall:
    """One call. `args` is None where the arguments are not a JSON object; `given` is how they came; `problem` says in
    words why the call cannot be read, "" where it can."""

    tool: str
    args: dict | None
    id: str = ""
    given: Any = None
    problem: str = ""

    @property
    def plain(self) -> dict:
        """{"tool", "args"}, the form of expected calls."""
        return {"tool": self.tool, "args": self.args}

    @property
    def arguments(self) -> str:
        """The arguments as text: as they came, or as JSON."""
        return self.given if isinstance(self.given, str) else "" if self.given is None else as_json(self.given)


def calls_of(message: Message) -> list[ToolCall]:
    """The calls that an assistant message makes, natively or else as text; other roles make none."""
    if message.get("role", "assistant") != "assistant":
        return []
    return native_calls(message) or calls_in_text(text_of(message))


def native_calls(message: Message) -> list[ToolCall]:
    """The calls of a message that came as such: `tool_calls`, `function_call`, or a Responses item that is a call."""
    if message.get("type") == "function_call":
        return [_native(message)]
    given = message.get("tool_calls")
    if isinstance(given, list) and given:
        return [_native(item) for item in given]
    older = message.get("function_call")
    return [_native(older)] if isinstance(older, dict) else []


def _native(item: Any) -> ToolCall:
    """A call that is one by where it stands: what is missing in it is a problem."""
    item = item if isinstance(item, dict) else {}
    function = item.get("function")
    function = function if isinstance(function, dict) else item
    name, found = function.get("name"), item.get("call_id") or item.get("id")
    given = function.get("arguments")
    made = ToolCall(
        name if isinstance(name, str) else "", arguments_of(given), found if isinstance(found, str) else "", given
    )
    if not isinstance(name, str):
        made.problem = NO_NAME
    elif made.args is None:
        made.problem = f"broken JSON: the arguments of {name[:80]} are not a JSON object"
    return made


def arguments_of(given: Any) -> dict | None:
    """A call's arguments, which come as JSON text or as an object: {} where none are given, None where they are not a
    JSON object (broken, NaN, nested too deep, a list, `null`)."""
    if isinstance(given, str):
        given = json_of(given) if given and not given.isspace() else {}
        return given if isinstance(given, dict) else None
    if given is None:
        return {}
    return given if isinstance(given, dict) and is_json(given) else None


def calls_in_text(text: str) -> list[ToolCall]:
    """The calls that a text is; none where it is an answer."""
    if _TAG in text:
        return [call for part in text.split(_TAG)[1:] for call in _in_json(part.split(_END)[0])]
    return list(_in_json(unfenced(text)))


def _in_json(text: str) -> Iterator[ToolCall]:
    if not _BEGINS_A_CALL.match(text):
        return
    value = json_of(text)
    if value is None:
        yield ToolCall("", None, given=text, problem=BROKEN_TEXT)
        return
    if isinstance(value, dict) and isinstance(value.get("tool_calls"), list):
        value = value["tool_calls"]
    for item in value if isinstance(value, list) else [value]:
        if (found := call_of(item)) is not None:
            yield found


def call_of(value: Any) -> ToolCall | None:
    """One call of any form: {function: {name, arguments}}, {name, arguments}, {tool, args}, Anthropic's tool_use; None for a
    value that is not a call. {"name": "Ben"} is an answer, {"tool": "x"} a call that lacks its arguments."""
    if not isinstance(value, dict):
        return None
    if isinstance(value.get("function"), dict):
        return _native(value)
    name = next((value[key] for key in NAMES if key in value), None)
    keys = (*ARGUMENTS, "input") if value.get("type") == "tool_use" else ARGUMENTS
    given = next((value[key] for key in keys if value.get(key) is not None), None)
    if given is None and "tool" not in value and value.get("type") not in ("function_call", "tool_use"):
        return None
    args = None if given is None and "tool" in value else arguments_of(given)
    identity = next((value[key] for key in IDS if isinstance(value.get(key), str)), "")
    broken = not isinstance(name, str) or args is None
    return ToolCall(name if isinstance(name, str) else "", args, identity, given, NOT_A_CALL if broken else "")


def calls_in(value: Any) -> list[ToolCall] | None:
    """The calls that a value says, whatever it is: a message, a call, a list of either, or any of these as JSON text.

    None where the value says nothing about calls; [] where it says that there are none.
    """
    if isinstance(value, str):
        value = json_of(unfenced(value))
    if isinstance(value, list):
        found = [calls_of(item) if isinstance(item, dict) and "role" in item else calls_in(item) for item in value]
        return None if None in found else [call for calls in found for call in calls or ()]
    if not isinstance(value, dict):
        return None
    if "role" in value:
        return calls_of(value) or None
    for name in ("tool_calls", "calls"):
        if isinstance(value.get(name), list):
            return calls_in(value[name])
    call = call_of(value)
    return None if call is None else [call]


# Writing


def as_json(value: Any) -> str:
    """JSON text as it is written into messages; a value that JSON has no type for as Python writes it."""
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return str(value)


def to_native(tool: str, args: dict, identity: str = "") -> dict:
    """A call in OpenAI's form, arguments as text."""
    function = {"name": tool, "arguments": as_json(args)}
    return ({"id": identity} if identity else {}) | {"type": "function", "function": function}


def to_text(tool: str, args: dict) -> str:
    """A call as agents without native calls write it."""
    return as_json({"tool": tool, "args": args})
