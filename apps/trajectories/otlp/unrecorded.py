"""Model calls and tools that are not recorded as such, in traces that hold no model call: what the
steps of a framework were given and gave back shows where the model was asked, what it answered and
which tools it called.

The steps are spans of a known convention, of no particular kind. A step that gave back a new
answer of the assistant is the model call; one that gave back a record of a tool's call, with its
id, is the tool.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from apps.trajectories.dialects import (
    Message,
    has_failed,
    holds_messages,
    messages_of,
    one_turn,
    reply_text,
)
from apps.trajectories.otlp.conventions import ANSWER, GIVEN, Reading, values_of
from apps.trajectories.otlp.conventions.base import problem_of
from apps.trajectories.otlp.names import sign_of
from apps.trajectories.otlp.replies import reply
from apps.trajectories.otlp.threads import print_of
from apps.trajectories.values import label, structured

if TYPE_CHECKING:
    from apps.trajectories.otlp.runs import Node


def read_steps(nodes: list[Node]) -> None:
    """Names the steps of one trace, whose nodes are in the order of time."""
    if any(node.reading.kind == "model" for node in nodes):
        return
    agents = [node for node in nodes if node.reading.kind == "agent"]
    if any(all(values_of(node.span)) or node.reading.input for node in agents):
        return  # the agent says itself what it was asked and answered
    for node in nodes:
        _read_record(node)
    talk = _Talk()
    for node, name in _values(nodes, _inside_tools(nodes)):
        talk.add(node, name)
    if talk.calls or not talk.messages:
        return
    request = talk.request
    if agents:
        agents[0].reading.input = agents[0].reading.input or talk.messages
    elif request is not None and not _has_parent(request, nodes):
        request.reading.kind, request.reading.input = "agent", talk.messages


def _is_step(node: Node) -> bool:
    return node.reading.kind == "other" and not node.reading.is_open


def _inside_tools(nodes: list[Node]) -> set[str]:
    """The ids of the spans inside tools: agents that are tools have talks of their own."""
    tools = {node.span.span_id for node in nodes if node.reading.kind == "tool"}
    inside: set[str] = set()
    for node in nodes:
        if node.span.parent_id in tools or node.span.parent_id in inside:
            inside.add(node.span.span_id)
    return inside


def _values(nodes: list[Node], inside: set[str]) -> list[tuple[Node, str]]:
    """The steps and those of their attributes that may hold messages, and the tools that steps
    have turned out to be, in the order in which the values were known.
    """
    found: list[tuple[int, Node, str]] = []
    for node in nodes:
        span = node.span
        if span.span_id in inside:
            continue
        if _is_step(node):
            found += [(span.start_ns, node, name) for name in GIVEN if name in span.attributes]
            found += [(span.end_ns, node, name) for name in ANSWER if name in span.attributes]
        elif node.reading.kind == "tool":
            found.append((span.end_ns, node, ""))
    return [(node, name) for _, node, name in sorted(found, key=lambda one: one[0])]


def _has_parent(node: Node, nodes: list[Node]) -> bool:
    parent = node.span.parent_id
    return not parent or any(other.span.span_id == parent for other in nodes)


class _Talk:
    """The conversation as far as the steps have shown it. `calls`: the steps that answered;
    `request`: the one that held what was asked last.
    """

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.calls: list[Node] = []
        self.request: Node | None = None

    def add(self, node: Node, name: str) -> None:
        if node.reading.kind == "tool":
            self._add_reply(node.reading)
        elif node.reading.kind == "other":
            value = structured(node.span.attributes[name])
            if isinstance(value, dict | list) and holds_messages(value):
                self._add_messages(node, name, one_turn(messages_of(value, "user")))

    def _add_reply(self, reading: Reading) -> None:
        calls = (call for message in self.messages for call in message.get("tool_calls") or ())
        for call in calls:
            if call.get("id") == reading.tool_call_id:
                self.messages.append(reply(call, reading))
                return

    def _add_messages(self, node: Node, name: str, said: list[Message]) -> None:
        known, self.messages = self.messages, merged(self.messages, said)
        is_new = len(self.messages) > len(known) and self.messages[-1] is said[-1]
        if not (is_new and name in ANSWER and said[-1]["role"] == "assistant"):
            self.request = node
        elif any(message["role"] == "user" for message in self.messages):
            reading = node.reading
            reading.kind, reading.shape = "model", (name,)
            reading.input, reading.output = self.messages[:-1], self.messages[-1:]
            self.calls.append(node)


def merged(talk: list[Message], said: list[Message]) -> list[Message]:
    """A conversation with the messages of another account of it: what is new stands before the
    known message that follows it there, else at the end.
    """
    ids = {call.get("id") for message in talk for call in message.get("tool_calls") or ()} - {None}
    if all(message["role"] == "assistant" for message in said):
        is_repeated = _prints(talk[-len(said) :]) == _prints(said)
        called = {call.get("id") for message in said for call in message.get("tool_calls") or ()}
        return talk if is_repeated or ids & called else [*talk, *said]
    places: defaultdict[bytes, list[int]] = defaultdict(list)
    for at, print_ in enumerate(_prints(talk)):
        places[print_].append(at)
    merged: list[Message] = []
    new: list[Message] = []
    place = 0
    for message, print_ in zip(said, _prints(said), strict=True):
        same = places[print_]
        if (known := bisect_left(same, place)) < len(same):
            at = same[known]
            merged += [*talk[place:at], *new, talk[at]]
            new, place = [], at + 1
        else:
            new.append(message)
    return [*merged, *talk[place:], *new]


def _prints(messages: list[Message]) -> list[bytes]:
    return [print_of(message) for message in messages]


def _read_record(node: Node) -> None:
    """Makes a tool of a step that gave back a record of a tool's call."""
    for name in ANSWER if _is_step(node) else ():
        if (value := structured(node.span.attributes.get(name))) and _read_tool(node, value):
            node.reading.shape = (name,)
            return


def _read_tool(node: Node, value: Any) -> bool:
    """Reads a record of a tool's call: the tool's name, the call's id and what came out."""
    if not isinstance(value, dict) or holds_messages(value):
        return False
    said = {field: item for name, item in value.items() if (field := sign_of(name).field)}
    name, identity = label(said.get("tool_name")), label(said.get("call_id"))
    if not (name and identity and "answer" in said):
        return False
    reading, result = node.reading, said["answer"]
    reading.kind, reading.tool_name, reading.tool_call_id = "tool", name, identity
    reading.tool_arguments = said.get("given") or {}
    reading.tool_result = reply_text(result)
    if isinstance(result, dict) and has_failed(result):
        reading.error = reading.error or problem_of(node.span, reading.tool_result)
    return True
