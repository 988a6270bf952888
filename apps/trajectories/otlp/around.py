"""What the spans around model calls say of them, where the calls themselves do not.

`tell_answers`: some frameworks keep the head of a response (its id, the model that answered, its
usage) and the reasoning in a message that only the span above the call holds.

`tell_loops`: some record all steps of an agent as one call, inside which the steps and the tools
lie.

`tell_requests`: some have the messages of a request in an attribute of their own, in a span above
the call; others repeat in each call only what the agent was asked. The words and the tools are put
into the readings of the calls, as if the server kept the history: each has what is new, so that
threads and messages are made as for all other traces.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from apps.trajectories.dialects import OWN_ROLES, chat, instructions_beside, messages_of, one_turn
from apps.trajectories.otlp.conventions import ANSWER, Reading, is_known
from apps.trajectories.otlp.conventions.raw import (
    METADATA,
    USAGE,
    Head,
    complete_by_answer,
    head_beside,
    is_alias,
    is_lossy,
)
from apps.trajectories.otlp.replies import call_of, reply
from apps.trajectories.otlp.threads import print_of
from apps.trajectories.values import label, structured
from workers.lib.messages import PROMPT_ROLES, Message
from workers.lib.token_usage import Usage

if TYPE_CHECKING:
    from apps.trajectories.otlp.runs import Node

Talk = tuple[int, bool]
Answer = tuple[bytes, Head, list[Message]]  # its print, what is beside it, and as chat
SIGNS_OF_HEADS = (f'"{METADATA}"', *(f'"{name}"' for name in USAGE))
MAX_DEPTH = 12  # of objects around an answer
MAX_ABOVE = 32  # spans above a call that are looked through


def tell_answers(nodes: list[Node]) -> None:
    """Completes calls by the same answer in the raw output of a span above them, up to the agent.
    The nodes know what is above them.
    """
    kept: dict[str, list[Answer]] = {}
    uncached: dict[str, Reading] = {}
    for node in nodes:
        reading = node.reading
        if reading.kind != "model" or node.in_model:
            continue
        if reading.response_id and reading.usage.cache_read_tokens is None:
            uncached[reading.response_id] = reading
        if len(reading.output) != 1 or reading.response_id or not _lacks_head(reading):
            continue
        said = b""
        for print_, head, messages in _answers_above(node, kept):
            said = said or print_of(reading.output[0])
            if print_ == said and _may_count(reading.usage, head.usage):
                complete_by_answer(reading, head, messages)
                break
    if uncached:
        _tell_cached(nodes, uncached)


def _lacks_head(reading: Reading) -> bool:
    used = reading.usage
    return is_alias(reading) or used.cache_read_tokens is used.reasoning_tokens is None


def _may_count(known: Usage, other: Usage) -> bool:
    """Whether two counts may be of one call: the same words may be answered twice."""
    return known.output_tokens in (None, other.output_tokens) or other.output_tokens is None


def _tell_cached(nodes: list[Node], calls: dict[str, Reading]) -> None:
    """What calls read from a cache and wrote to it, where only the answer of the same id in another
    span says it. A count of the input that leaves it out is completed.
    """
    for node in nodes:
        for name in ANSWER:
            value = node.span.attributes.get(name)
            if not isinstance(value, str) or not any(identity in value for identity in calls):
                continue
            for head in _heads_in(value):
                if (reading := calls.pop(label(head.said.get("id")), None)) is not None:
                    _complete_cached(reading, head.usage)
            if not calls:
                return


def _complete_cached(reading: Reading, used: Usage) -> None:
    if used.cache_read_tokens or used.cache_write_tokens:
        reading.usage = reading.usage.corrected_by(used)


def _answers_above(call: Node, kept: dict[str, list[Answer]]) -> Iterator[Answer]:
    node = call.parent
    for _ in range(MAX_ABOVE):
        if node is None:
            return
        span = node.span
        if span.span_id not in kept:
            values = (span.attributes.get(name) for name in ANSWER)
            kept[span.span_id] = [found for value in values for found in _answers_in(value)]
        yield from kept[span.span_id]
        node = node.parent if node is not call.agent else None


def _answers_in(value: Any) -> list[Answer]:
    answers = []
    for head in _heads_in(value):
        if len(messages := one_turn(chat(head.message, "assistant"))) == 1:
            answers.append((print_of(messages[0]), head, messages))
    return answers


def _heads_in(value: Any) -> Iterator[Head]:
    if isinstance(value, str) and any(sign in value for sign in SIGNS_OF_HEADS):
        yield from _with_heads(structured(value), MAX_DEPTH)


def _with_heads(value: Any, levels: int) -> Iterator[Head]:
    """The messages that have a response's head beside them."""
    if isinstance(value, dict) and (head := head_beside(value)) is not None:
        yield head
    elif levels and isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _with_heads(item, levels - 1)


def tell_loops(nodes: list[Node]) -> None:
    """What a call answered in whose span tools were called between its steps: all that the steps
    said, the calls and their replies. The nodes are in the order of time.
    """
    steps: defaultdict[str, list[Node]] = defaultdict(list)
    tools: defaultdict[str, list[Node]] = defaultdict(list)
    frames: dict[str, Node] = {}
    for node in nodes:
        frame = node.frame
        if frame is None or node.in_tool:
            continue
        key = frame.span.span_id
        frames[key] = frame
        if node.reading.kind == "tool":
            tools[key].append(node)
        elif node.reading.kind == "model" and node.model is frame and node.reading.output:
            steps[key].append(node)
    for key, own in tools.items():
        if steps[key]:
            _tell_loop(frames[key].reading, steps[key], own)


def tell_sums(nodes: list[Node]) -> None:
    """The counts of an agent's only call, in whose time the agent's tools ran beside it: the span
    stands for all calls of a loop, and some say there only what the last of them counted. What the
    agent counts is then theirs.
    """
    calls: defaultdict[int, list[Node]] = defaultdict(list)
    tools: defaultdict[int, list[Node]] = defaultdict(list)
    agents: dict[int, Node] = {}
    for node in nodes:
        agent = node.agent
        if agent is not None and agent.reading.usage.is_known and not node.in_model:
            agents[id(agent)] = agent
            kinds = {"model": calls, "tool": tools}
            if (own := kinds.get(node.reading.kind)) is not None:
                own[id(agent)].append(node)
    for key, agent in agents.items():
        if len(calls[key]) == 1 and any(_ran_within(tool, calls[key][0]) for tool in tools[key]):
            reading, summed = calls[key][0].reading, agent.reading.usage
            if summed.tokens > reading.usage.tokens:
                reading.usage = summed


def _ran_within(tool: Node, call: Node) -> bool:
    return call.span.start_ns <= tool.span.start_ns and tool.span.end_ns <= call.span.end_ns


def _tell_loop(reading: Reading, steps: list[Node], tools: list[Node]) -> None:
    called = _by_call(steps, tools)
    output: list[Message] = []
    for place, step in enumerate(steps):
        said, replies = _answer(step.reading.output, called[place])
        output += [*said, *replies]
    reading.output, reading.raw_output = output, False


def _by_call(calls: list[Node], tools: list[Node]) -> dict[int, list[Node]]:
    """The tools that began after each call: they are what it called."""
    starts = [call.span.start_ns for call in calls]
    called: defaultdict[int, list[Node]] = defaultdict(list)
    for tool in tools:
        called[last_before(starts, tool.span.start_ns)].append(tool)
    return called


def last_before(starts: list[int], at: int) -> int:
    """The place of the last one that began by then, else of the first."""
    return max(bisect_right(starts, at) - 1, 0)


def tell_requests(nodes: list[Node]) -> None:
    """Completes the calls of each agent of a trace. The nodes are in the order of time and know
    what is above them.
    """
    calls: defaultdict[Talk, list[Node]] = defaultdict(list)
    tools: defaultdict[Talk, list[Node]] = defaultdict(list)
    for node in nodes:
        if node.agent is not None and not node.in_model:
            kinds = {"model": calls, "tool": tools}
            if (own := kinds.get(node.reading.kind)) is not None:
                own[id(node.agent), node.in_tool].append(node)
    for talk, own in calls.items():
        if any(map(_holds_request, own)):
            _tell_repeats(own, tools[talk])
        elif request := _request_around(own[0]):
            _tell(own, tools[talk], request)


def _tell_repeats(calls: list[Node], tools: list[Node]) -> None:
    """Some say of each call what the agent was asked and leave out the history: a call with the
    request of the one before it, between which a tool ran that this one called, goes on with it.
    """
    asked: list[Message] = []
    for before, call in pairwise(calls):
        asked = asked or before.reading.input
        is_same = bool(asked) and call.reading.input == asked
        if not is_same or not _ran_between(tools, before, call):
            asked = []
            continue
        for reading in (before.reading, call.reading):
            reading.server_conversation = f"{call.span.trace_id}:{call.agent.span.span_id}"
        call.reading.input = []


def _ran_between(tools: list[Node], before: Node, call: Node) -> bool:
    """Whether a tool that a call called ran before the next one."""
    said = before.reading.output[-1:]
    called = {one["function"]["name"] for m in said for one in m.get("tool_calls") or ()}
    return bool(called) and any(
        tool.reading.tool_name in called
        and before.span.start_ns <= tool.span.start_ns <= call.span.start_ns
        for tool in tools
    )


def _holds_request(call: Node) -> bool:
    """Whether a call says what it was asked, or what it called."""
    reading = call.reading
    is_asked = any(message["role"] not in PROMPT_ROLES for message in reading.input)
    return is_asked or any(message.get("tool_calls") for message in reading.output)


def _request_around(call: Node) -> list[Message]:
    """The longest of the requests that the call and the spans up to its agent hold."""
    return max(_requests_around(call), key=len, default=[])


def _requests_around(call: Node) -> Iterator[list[Message]]:
    node: Node | None = call
    while node is not None:
        for key, value in node.span.attributes.items():
            if not is_known(key, node.reading.kind) and (request := _request(value)):
                yield request
        if node is call.agent:
            return
        node = node.parent


def _request(value: Any) -> list[Message]:
    """The messages of a value that is a list of them, or has one as its `messages`; none where it
    ends with an answer, or only outlines what was said.
    """
    found = structured(value)
    listed = found.get("messages") if isinstance(found, dict) else found
    if not isinstance(listed, list) or not all(map(_is_plain, listed)):
        return []
    messages = one_turn(messages_of(listed, "user"))
    roles = [message["role"] for message in messages]
    if "user" not in roles or roles[-1] == "assistant" or is_lossy(messages):
        return []
    lead = instructions_beside(found, messages) if isinstance(found, dict) else []
    return lead + messages


def _is_plain(message: Any) -> bool:
    return (
        isinstance(message, dict)
        and message.get("role") in OWN_ROLES
        and not message.keys().isdisjoint(("content", "parts", "tool_calls"))
    )


def _tell(calls: list[Node], tools: list[Node], request: list[Message]) -> None:
    """The first call has the request, each later one the replies to the calls of the one before;
    the tools that began after a call are what it called.
    """
    first = calls[0]
    if request[0]["role"] not in PROMPT_ROLES:
        above = first.agent.reading.input
        request = [message for message in above[:1] if message["role"] in PROMPT_ROLES] + request
    called = _by_call(calls, tools)
    given = request
    for place, call in enumerate(calls):
        reading = call.reading
        reading.input = given
        reading.output, given = _answer(reading.output, called[place])
        reading.raw_input = reading.raw_output = False
        reading.server_conversation = f"{call.span.trace_id}:{first.agent.span.span_id}"


def _answer(said: list[Message], tools: list[Node]) -> tuple[list[Message], list[Message]]:
    """What a call answered, with its calls, and the replies to these."""
    made = [call for message in said for call in message.get("tool_calls") or ()]
    open_calls = list(made)
    replies: list[Message] = []
    for tool in tools:
        reading = tool.reading
        call = next((call for call in open_calls if _is_call_of(call, reading)), None)
        if call is None:
            made.append(call := call_of(reading, tool.span.span_id))
        else:
            open_calls.remove(call)
        if reading.has_answered:
            replies.append(reply(call, reading))
    words = [
        {name: value for name, value in message.items() if name != "tool_calls"}
        for message in said
        if message.get("content")
    ]
    if not made:
        return words, []
    last = words[-1] if words else {"role": "assistant", "content": None}
    return [*words[:-1], last | {"tool_calls": made}], replies


def _is_call_of(call: dict, tool: Reading) -> bool:
    if tool.tool_call_id:
        return call.get("id") == tool.tool_call_id
    return call["function"]["name"] == tool.tool_name
