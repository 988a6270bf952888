"""Calls whose stream was recorded as words: some add up the pieces of a call's arguments like those
of a text and leave out which tool was called.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from apps.trajectories.dialects import tool_definitions
from apps.trajectories.values import structured
from workers.lib.messages import RESULT_ROLES, Message

if TYPE_CHECKING:
    from apps.trajectories.otlp.runs import Node


def tell_arguments(nodes: list[Node]) -> None:
    """Makes calls of answers that are the arguments of one of the tools, where the next request
    begins alike and goes on with the reply to a call that nobody made. The nodes are in the order
    of time.
    """
    calls = [node for node in nodes if node.reading.kind == "model" and not node.in_tool]
    for node, later in pairwise(calls):
        said = node.reading.output
        if len(said) != 1 or not _is_object(said[0]):
            continue
        replies = later.reading.input[len(node.reading.input) :]
        begins_alike = later.reading.input[: len(node.reading.input)] == node.reading.input
        if begins_alike and replies and replies[0]["role"] in RESULT_ROLES:
            identity = replies[0].get("tool_call_id")
            if identity and (name := _tool_of(node, said[0]["content"])):
                node.reading.output = [_call(identity, name, said[0]["content"])]
                later.reading.input = [*node.reading.input, *node.reading.output, *replies]


def _is_object(message: Message) -> bool:
    words = message.get("content")
    return (
        isinstance(words, str)
        and words[:1] == "{"
        and message["role"] == "assistant"
        and not message.get("tool_calls")
    )


def _tool_of(node: Node, words: str) -> str:
    """The only tool that the words may be the arguments of."""
    arguments = structured(words)
    if not isinstance(arguments, dict):
        return ""
    tools = [tool["function"] for raw in node.reading.tools for tool in tool_definitions(raw)]
    names = {tool["name"] for tool in tools if _takes(tool.get("parameters"), arguments)}
    return names.pop() if len(names) == 1 else ""


def _takes(schema: object, arguments: dict) -> bool:
    if not isinstance(schema, dict) or not isinstance(schema.get("properties"), dict):
        return False
    required = schema.get("required")
    needed = set(required) if isinstance(required, list) else set()
    return needed <= arguments.keys() <= schema["properties"].keys()


def _call(identity: str, name: str, arguments: str) -> Message:
    function = {"name": name, "arguments": arguments}
    call = {"id": identity, "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}
