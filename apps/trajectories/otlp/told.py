"""What events say of a trace's model calls and tools, where its spans do not: words, arguments,
tokens and cost.

Events name the request or the tool call that they are about; what names none belongs to the call
that was made at the time. The words are put into the readings of the calls, as if the server kept
the history: each has what is new, so that threads and messages are made as for all other traces.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

from msgspec import structs

from apps.trajectories.otlp.around import last_before
from apps.trajectories.otlp.conventions import Reading, complete
from apps.trajectories.otlp.conventions.base import problem_of
from apps.trajectories.otlp.conventions.coding_agents import (
    ANSWER,
    CALL,
    CLAUDE,
    PROMPT,
    REQUEST,
    TOOL,
    Told,
    agent_of,
    told_by,
)
from apps.trajectories.otlp.replies import call_of, reply
from apps.trajectories.otlp.spans import LogRecord
from apps.trajectories.values import label, number, structured, text
from workers.lib.messages import Message

if TYPE_CHECKING:
    from apps.trajectories.otlp.runs import Node

CALL_ID, RESPONSE_ID = "gen_ai.tool.call.id", "gen_ai.response.id"
COUNTS = ("input_tokens", "output_tokens")
ORDER = "event.sequence"  # of Claude Code's events, within one millisecond


def tell(nodes: list[Node], logs: Iterable[LogRecord]) -> None:
    """Completes the nodes of a trace, which are in the order of time and know what is above
    them.
    """
    events: defaultdict[str, list[Told]] = defaultdict(list)
    for log in sorted(logs, key=lambda log: (log.time_ns, number(log.attributes.get(ORDER)) or 0)):
        if told := told_by(log):
            events[told.says].append(told)
    _tell_executions(nodes)
    if not events:
        return
    for node in nodes:
        node.reading.format = agent_of(next(iter(events.values()))[0].log).name
    tools = [node for node in nodes if node.reading.kind == "tool"]
    _tell_tools(tools, events[TOOL])
    calls = [node for node in nodes if node.reading.kind == "model"]
    _tell_starts(calls, events[REQUEST])
    _tell_calls(calls, events[CALL])
    calls = [node for node in calls if node.reading.kind == "model"]
    found = _Calls(calls)
    answers = {id(node): told.words for told in events[ANSWER] if (node := found.of(told))}
    prompts = [told for told in events[PROMPT] if told.words]
    if prompts or any(answers.values()) or any(node.reading.tool_arguments for node in tools):
        _tell_words(calls, tools, answers, prompts)
    nodes.sort(key=lambda node: (node.span.start_ns, node.span.span_id))


def _tell_executions(nodes: list[Node]) -> None:
    """Claude Code says that a tool failed in the span of its execution, which is below the
    tool's.
    """
    for node in nodes:
        above, error = node.parent, node.reading.error
        if node.reading.kind != "other" or above is None or error is None:
            continue
        if above.reading.kind == "tool" and above.reading.format == CLAUDE.name:
            _fail(above, error.text)


def _tell_tools(tools: list[Node], events: list[Told]) -> None:
    by_id = {node.reading.tool_call_id: node for node in tools}
    for told in events:
        node = by_id.get(label(told.attributes.get(CALL_ID)))
        if node is not None:
            complete(node.reading, told.attributes)
            _fail(node, told.error)


def _fail(node: Node, error: str) -> None:
    if error and node.reading.error is None:
        node.reading.error = problem_of(node.span, error)


def _tell_starts(calls: list[Node], events: list[Told]) -> None:
    """A call whose end alone is known began when the model was asked."""
    starts = sorted(told.started_ns for told in events)
    ended = 0
    for node in calls:
        place = bisect_left(starts, ended)
        if place < len(starts) and node.span.start_ns == node.span.end_ns >= starts[place]:
            node.span = structs.replace(node.span, start_ns=starts[place])
        ended = node.span.end_ns


class _Calls:
    """Finds the call that an event is about: by its span, else by the id of the request; where that
    is not known, by its tokens, and of several the nearest in time.
    """

    def __init__(self, calls: list[Node]) -> None:
        self.calls = calls
        self.starts = [node.span.start_ns for node in calls]
        self.by_span = {node.span.span_id: node for node in calls}
        self.by_request = {node.reading.response_id: node for node in calls}
        self.by_counts: defaultdict[tuple, list[Node]] = defaultdict(list)
        for node in sorted(calls, key=lambda node: node.span.end_ns):
            self.by_counts[tuple(getattr(node.reading.usage, name) for name in COUNTS)].append(node)

    def of(self, told: Told) -> Node | None:
        if (node := self.by_span.get(told.log.span_id)) is not None:
            return node
        if request := label(told.attributes.get(RESPONSE_ID)):
            return self.by_request.get(request)
        if told.says == ANSWER:
            return _last_before(self.calls, self.starts, told.log.time_ns)
        counts = tuple(told.attributes.get(f"gen_ai.usage.{name}") for name in COUNTS)
        same = self.by_counts[counts]
        place = bisect_left(same, told.log.time_ns, key=lambda node: node.span.end_ns)
        near = range(max(place - 1, 0), min(place + 1, len(same)))
        nearest = min(
            near, key=lambda at: abs(same[at].span.end_ns - told.log.time_ns), default=None
        )
        return None if nearest is None else same.pop(nearest)


def _last_before(nodes: list[Node], starts: list[int], at: int) -> Node | None:
    """The last one that began by then, else the first."""
    return nodes[last_before(starts, at)] if nodes else None


def _tell_calls(calls: list[Node], events: list[Told]) -> None:
    """A call of which no event speaks, though events speak of others, is none of the agent's own:
    it made the session's title.
    """
    known: set[int] = set()
    found = _Calls(calls)
    for told in events:
        if (node := found.of(told)) is not None:
            known.add(id(node))
            complete(node.reading, told.attributes)
            _fail(node, told.error)
    for node in calls if known else ():
        if id(node) not in known and node.reading.error is None:
            node.reading.kind = "other"


def _tell_words(
    calls: list[Node], tools: list[Node], answers: dict[int, str], prompts: list[Told]
) -> None:
    """Each call is given the prompts since the one before it, and answers with its words and the
    tools that began after it. Agents that are tools have conversations of their own.
    """
    talks: defaultdict[str, list[Node]] = defaultdict(list)
    replies: defaultdict[int, list[Message]] = defaultdict(list)  # by the call that they answer
    for node in calls:
        talks[_talk_of(node)].append(node)
    starts = {talk: [node.span.start_ns for node in own] for talk, own in talks.items()}
    for node in tools:
        talk = _talk_of(node)
        if call := _last_before(talks.get(talk, []), starts.get(talk, []), node.span.start_ns):
            replies[id(call)].append(reply(_add_call(call, node), node.reading))
    tasks = {node.span.span_id: _task_of(node) for node in tools}
    for talk, own in talks.items():
        task = [(0, tasks[talk])] if tasks.get(talk) else []
        waiting = deque(task if talk else [(told.log.time_ns, told.words) for told in prompts])
        answered: list[Message] = []
        for node in own:
            reading = node.reading
            if reading.input:  # the whole request is known
                continue
            reading.input = answered
            while waiting and waiting[0][0] <= node.span.end_ns:
                reading.input.append({"role": "user", "content": waiting.popleft()[1]})
            answered = replies[id(node)]
            _answer(reading, answers.get(id(node), ""))
            reading.server_conversation = f"{node.span.trace_id}:{talk}"


def _task_of(tool: Node) -> str:
    """What a sub-agent was asked."""
    arguments = structured(tool.reading.tool_arguments)
    return text(arguments.get("prompt")) if isinstance(arguments, dict) else ""


def _talk_of(node: Node) -> str:
    """The id of the tool that a node is inside of."""
    above = node.parent if node.in_tool else None
    while above is not None and above.reading.kind != "tool":
        above = above.parent
    return above.span.span_id if above is not None else ""


def _add_call(call: Node, tool: Node) -> dict:
    called = call_of(tool.reading, tool.span.span_id)
    if not call.reading.output:
        call.reading.output = [{"role": "assistant", "content": None, "tool_calls": []}]
    call.reading.output[0]["tool_calls"].append(called)
    return called


def _answer(reading: Reading, words: str) -> None:
    if words and reading.output:
        reading.output[0]["content"] = words
    elif words:
        reading.output = [{"role": "assistant", "content": words}]
