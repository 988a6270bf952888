"""The tool calls of a message, in all formats in use. Only the standard library.

Native: OpenAI's `tool_calls` (arguments as text or object), the older `function_call`, a Responses
item. As text: if the whole text is JSON of one call or a list of calls, bare, in a code fence, or
in <tool_call> tags (Hermes, Qwen). Prose that contains JSON is an answer. Text that begins like a
call but cannot be parsed is a call with a `problem`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from workers.lib.messages.content import Message, text_of, unfenced, without_reasoning
from workers.lib.messages.json_text import is_json, json_of

NO_NAME = "broken call: a tool call has no name"
TWO_NAMES = "broken call: it names two tools"
TWO_ARGUMENTS = "broken call: its arguments are given twice and differ"
NOT_A_CALL = "broken call: expected {“tool”: text, “args”: object}"
BROKEN_TEXT = "broken JSON: the text sets out to be JSON and is none"
BROKEN_TAG = "broken call: there is no call in JSON after <tool_call>"
NAMES = ("name", "tool", "toolName", "tool_name")
ARGUMENTS = ("arguments", "args", "parameters", "kwargs")
TOOL_USE = (*ARGUMENTS, "input")
_SAID = frozenset(NAMES + ARGUMENTS)
IDS = (
    "call_id",
    "id",
    "tool_call_id",
    "toolCallId",
)  # a Responses item has two ids: `id` is the item's own
_TAG, _END = "<tool_call>", "</tool_call>"
_BEGINS_A_CALL = re.compile(r"\s*(?:\[\s*)?\{\s*[\"'}]")


@dataclass(slots=True)
class ToolCall:
    """One call. `args` is None if the arguments are not a JSON object; `given` is their original
    form; `problem` says why the call cannot be parsed, "" if it can.
    """

    tool: str
    args: dict | None
    id: str = ""
    given: Any = None
    problem: str = ""

    @property
    def plain(self) -> dict:
        """{"tool", "args"}, the format of expected calls."""
        return {"tool": self.tool, "args": self.args}

    @property
    def arguments(self) -> str:
        """The arguments as text: the original text, or as JSON."""
        return (
            self.given
            if isinstance(self.given, str)
            else ""
            if self.given is None
            else as_json(self.given)
        )


def calls_of(message: Message) -> list[ToolCall]:
    """The calls of an assistant message, native or as text; other roles have none."""
    if message.get("role", "assistant") != "assistant":
        return []
    return native_calls(message) or calls_in_text(text_of(message))


def native_calls(message: Message) -> list[ToolCall]:
    """The native calls of a message: `tool_calls`, `function_call`, or a Responses item that is a
    call.
    """
    return [known_call(item) for item in native_items(message)]


def native_items(message: Message) -> list[Any]:
    """The same items in their original form."""
    if message.get("type") == "function_call":
        return [message]
    given = message.get("tool_calls")
    if isinstance(given, list) and given:
        return given
    older = message.get("function_call")
    return [older] if isinstance(older, dict) else []


def known_call(item: Any) -> ToolCall:
    """A call of any format, known to be one by its position in a message; anything missing becomes
    its problem.
    """
    name, given, identity = _parts(item)
    made = ToolCall(name if isinstance(name, str) else "", arguments_of(given), identity, given)
    if not isinstance(name, str):
        made.problem = NO_NAME
    elif made.args is None:
        made.problem = f"broken JSON: the arguments of {name[:80]} are not a JSON object"
    else:
        made.problem = _rivals(item)
    return made


def _parts(item: Any) -> tuple[Any, Any, str]:
    """(name, original arguments, id) of {function: {name, arguments}}, {name, arguments}, {tool,
    args}, …
    """
    if not isinstance(item, dict):
        return None, None, ""
    function = item.get("function")
    body = function if isinstance(function, dict) else item
    if (name := body.get("name")) is None:
        name = _first(body, NAMES)
    if (given := body.get("arguments")) is None:
        given = _first(body, TOOL_USE if body.get("type") == "tool_use" else ARGUMENTS)
    return name, given, _id_of(item)


def _rivals(item: dict) -> str:
    """The problem of a contradictory call, in which different readers would see different calls."""
    function = item.get("function")
    bodies = [item, function] if isinstance(function, dict) else [item]
    said = [name for body in bodies for name in _SAID.intersection(body)]
    if len(said) < 2 or (len(said) == 2 and (said[0] in NAMES) != (said[1] in NAMES)):
        return ""  # the normal case: one name, and the arguments given once
    names = {found for body in bodies for key in NAMES if isinstance(found := body.get(key), str)}
    given = [found for body in bodies for key in ARGUMENTS if (found := body.get(key)) is not None]
    if len(names) > 1:
        return TWO_NAMES
    return (
        ""
        if len(given) < 2 or all(arguments_of(one) == arguments_of(given[0]) for one in given[1:])
        else TWO_ARGUMENTS
    )


def _first(body: dict, keys: tuple[str, ...]) -> Any:
    for key in keys:
        if (found := body.get(key)) is not None:
            return found
    return None


def _id_of(item: dict) -> str:
    for key in IDS:
        if isinstance(found := item.get(key), str) and found:
            return found
    return ""


def unread_calls(message: Message) -> list[tuple[str, Any]]:
    """(tool, original arguments) of the native calls with a name; for many messages much faster
    than parsing them.
    """
    if not (items := native_items(message)):
        return []  # as for most messages
    return [(name, given) for name, given, _ in map(_parts, items) if isinstance(name, str)]


def tool_names(message: Message) -> list[str]:
    """The names of the tools that a message calls."""
    return [name for name, _ in unread_calls(message)]


def arguments_of(given: Any) -> dict | None:
    """A call's arguments, given as JSON text or as an object: {} if there are none, None if they
    are not a JSON object (broken, NaN, nested too deep, a list, `null`).
    """
    if isinstance(given, str):
        given = json_of(given) if given and not given.isspace() else {}
        return given if isinstance(given, dict) else None
    if given is None:
        return {}
    return given if isinstance(given, dict) and is_json(given) else None


def calls_in_text(text: str) -> list[ToolCall]:
    """The calls that a text consists of, ignoring its reasoning; none if it is an answer."""
    text = without_reasoning(text)
    if _TAG in text:
        return [call for part in text.split(_TAG)[1:] for call in _in_tag(part.split(_END)[0])]
    return list(_in_json(unfenced(text)))


def _in_tag(text: str) -> list[ToolCall]:
    """The calls between tags; a broken call if none can be parsed."""
    return list(_in_json(text)) or [ToolCall("", None, given=text, problem=BROKEN_TAG)]


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
    """A call in any format; None for a value that is not a call. {"name": "Ben"} is an answer,
    {"tool": "x"} a call without arguments.
    """
    if not isinstance(value, dict):
        return None
    call = known_call(value)
    if isinstance(value.get("function"), dict) or value.get("type") in (
        "function_call",
        "tool_use",
    ):
        return call
    if call.given is None:
        return ToolCall(call.tool, None, call.id, problem=NOT_A_CALL) if "tool" in value else None
    if call.args is None or not call.tool:
        call.problem = call.problem and NOT_A_CALL
    return call


def calls_in(value: Any) -> list[ToolCall] | None:
    """The calls in any kind of value: a message, a call, a list of either, or any of these as JSON
    text.

    None if the value says nothing about calls; [] if it says that there are none.
    """
    if isinstance(value, str):
        value = json_of(unfenced(value))
    if isinstance(value, list):
        found = [
            calls_of(item) if isinstance(item, dict) and "role" in item else calls_in(item)
            for item in value
        ]
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
    """JSON text as it is written into messages; values without a JSON type as Python's str."""
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return str(value)


def to_native(tool: str, args: dict, identity: str = "") -> dict:
    """A call in OpenAI's format, with arguments as text."""
    function = {"name": tool, "arguments": as_json(args)}
    return ({"id": identity} if identity else {}) | {"type": "function", "function": function}


def answer_text(message: Message) -> str:
    """An assistant turn as the text that a model generates: its calls as JSON if it has any (text
    next to them is left out).
    """
    calls = native_calls(message)
    if not calls:
        return text_of(message)
    written = [
        to_text(call.tool, call.arguments if call.args is None else call.args) for call in calls
    ]
    return (
        written[0]
        if len(written) == 1
        else json.dumps([json.loads(one) for one in written], ensure_ascii=False)
    )


def to_text(tool: str, args: dict) -> str:
    """A call in the format of agents without native calls."""
    return as_json({"tool": tool, "args": args})
