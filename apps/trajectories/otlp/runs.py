"""Which spans are one run of an agent: first by trace, then, for traces without an agent span, by
what was said.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import islice
from typing import Any

from msgspec import Struct, json, structs

from apps.trajectories.otlp.around import (
    MAX_ABOVE,
    tell_answers,
    tell_loops,
    tell_requests,
    tell_sums,
)
from apps.trajectories.otlp.conventions import Reading, read
from apps.trajectories.otlp.conventions.genai import EVALUATION, evaluation_of
from apps.trajectories.otlp.conventions.raw import ids_of, is_alias, is_lossy
from apps.trajectories.otlp.replies import says_error, words_at_end
from apps.trajectories.otlp.shape import read_shapes
from apps.trajectories.otlp.spans import LogRecord, Span
from apps.trajectories.otlp.streamed import tell_arguments
from apps.trajectories.otlp.threads import Call
from apps.trajectories.otlp.told import tell
from apps.trajectories.otlp.unrecorded import read_steps
from workers.lib.messages import Message
from workers.lib.token_usage import Usage

RUN_KINDS = ("model", "agent", "tool")
TALKS = ("conversation_id", "session_id")
MAX_CANDIDATES = 256
MAX_SIDE_BY_SIDE = 16  # calls that are compared with one that may be the same
CLOCK_NS = 1_000_000  # JavaScript's spans begin at whole milliseconds
SOON_NS = 600 * 10**9  # in which a tool has answered, where nothing else tells runs apart
OUTSIDE = ("", "")
CONTEXT = (
    "session_id",
    "user_id",
    "workload",
    "tags",
    "agent_version",
    "eval_run",
    "eval_task",
    "eval_sample",
)


class Node(Struct):
    """A span in its trace. `top` is its outermost agent, `agent` the nearest; `frame` is the
    outermost model call above it, `model` the nearest; `parent` is None if it has not come (yet).
    """

    span: Span
    reading: Reading
    parent: Node | None = None
    top: Node | None = None
    agent: Node | None = None
    rooted: bool = False  # its root has come
    frame: Node | None = None
    model: Node | None = None
    in_tool: bool = False

    @property
    def in_model(self) -> bool:
        return self.frame is not None


class Group:
    """The spans of one run. `key` is its first trace's id (with the agent's span id where a trace
    holds several).
    """

    def __init__(self, key: str, nodes: list[Node]) -> None:
        self.key, self.nodes = key, nodes
        self.calls = sorted(_calls(nodes), key=lambda call: (call.span.start_ns, call.span.span_id))
        self.start_ns = min(node.span.start_ns for node in nodes)
        self.loose = not any(node.reading.kind == "agent" for node in nodes)

    @property
    def is_run(self) -> bool:
        return any(node.reading.kind in RUN_KINDS for node in self.nodes)

    @cached_property
    def is_alone(self) -> bool:
        """Whether it holds one model call or one tool, and no agent."""
        calls = len(self.calls) + sum(node.reading.kind == "tool" for node in self.nodes)
        return self.loose and calls == 1

    def id_of(self, name: str) -> str:
        return next((found for node in self.nodes if (found := getattr(node.reading, name))), "")


def groups_of(spans: Iterable[Span], logs: Iterable[LogRecord]) -> list[Group]:
    """The runs that the spans hold, in the order of their start; the order of arrival changes
    nothing.
    """
    groups = [
        group for nodes in _traces(spans, logs).values() for group in _split(nodes) if group.is_run
    ]
    groups.sort(key=lambda group: (group.start_ns, group.key))
    return _stitched(_recorded_apart(groups))


def _traces(spans: Iterable[Span], logs: Iterable[LogRecord]) -> dict[str, list[Node]]:
    by_span: dict[tuple[str, str], list[LogRecord]] = defaultdict(list)
    by_trace: dict[str, list[LogRecord]] = defaultdict(list)
    logged: set[tuple] = set()
    seen: dict[bytes, list[Message]] = {}
    for log in sorted(logs, key=lambda log: log.time_ns):
        if log.trace_id:
            same = (
                log.trace_id,
                log.span_id,
                log.time_ns,
                log.event_name,
                json.encode((log.body, log.attributes), order="sorted"),
            )
            if same not in logged:
                logged.add(same)
                by_span[same[:2]].append(log)
                by_trace[log.trace_id].append(log)
    traces: dict[str, list[Node]] = defaultdict(list)
    for span in _each_once(spans):
        of_span = by_span.get((span.trace_id, span.span_id), [])
        traces[span.trace_id].append(Node(span, read(span, of_span, seen)))
    for nodes in traces.values():
        read_shapes(nodes, seen)
        _drop_errors(nodes)
        _drop_copied_errors(nodes)
    for trace_id, nodes in traces.items():
        _add_evaluations(nodes, by_span.get((trace_id, ""), ()))
    _find_previous([node for nodes in traces.values() for node in nodes])
    for trace_id, nodes in traces.items():
        nodes.sort(key=lambda node: (node.span.start_ns, node.span.span_id))
        _name_graphs(nodes)
        read_steps(nodes)
        _relate(nodes)
        if _name_loops(nodes):
            _relate(nodes)
        tell_answers(nodes)
        tell_arguments(nodes)
        tell_loops(nodes)
        tell_sums(nodes)
        _fail_silent_calls(nodes)
        tell_requests(nodes)
        tell(nodes, by_trace[trace_id])
    return traces


def _drop_errors(nodes: list[Node]) -> None:
    """The text of the error that a call ended with is no answer."""
    for reading in (node.reading for node in nodes):
        error = reading.error
        if error is not None and reading.kind == "model" and says_error(reading.output, error):
            reading.output = []


def _drop_copied_errors(nodes: list[Node]) -> None:
    """Where the model answered after a tool failed, the tool's error is its alone: some copy its
    status to that call and to the spans around both. What threw an error itself keeps it.
    """
    ends: dict[str, int] = {}
    for node in nodes:
        if node.reading.kind == "tool" and (error := node.reading.error) is not None:
            ends[error.said] = min(node.span.end_ns, ends.get(error.said, node.span.end_ns))
    if not ends:
        return
    unthrown = [
        node
        for node in nodes
        if node.reading.kind != "tool"
        and not node.span.has_thrown
        and words_at_end(node.reading.output)
    ]
    calls = (node.span.start_ns for node in unthrown if node.reading.kind == "model")
    answered = max(calls, default=-1)
    for node in unthrown:
        error = node.reading.error
        if error is not None and error.said and ends.get(error.said, answered) < answered:
            node.reading.error = None


def _add_evaluations(nodes: list[Node], logs: Iterable[LogRecord]) -> None:
    """Evaluations that name no span, but the answer that they are about."""
    for log in logs:
        answer = log.attributes.get("gen_ai.response.id")
        if answer and log.event_name == EVALUATION:
            about = (node.reading for node in nodes if node.reading.response_id == answer)
            for reading in islice(about, 1):
                reading.evaluations.append(evaluation_of(log.attributes))


def _each_once(spans: Iterable[Span]) -> list[Span]:
    """A span that was sent twice counts once: the one that ended last. Of different spans with one
    id, all but the first get another. Logfire's pending spans only announce one.
    """
    found: defaultdict[tuple[str, str], list[Span]] = defaultdict(list)
    for span in spans:
        if span.attributes.get("logfire.span_type") == "pending_span":
            continue
        same_id = found[span.trace_id, span.span_id]
        place = next((n for n, known in enumerate(same_id) if _are_one(known, span)), None)
        if place is None:
            same_id.append(span)
        else:
            same_id[place] = max(
                same_id[place], span, key=lambda one: (one.end_ns, json.encode(one))
            )
    return [one for same_id in found.values() for one in _with_own_ids(same_id)]


def _are_one(known: Span, span: Span) -> bool:
    """Not those at different times, or that began at another time under another name."""
    first, second = sorted((known, span), key=lambda one: one.start_ns)
    are_apart = max(first.start_ns, first.end_ns) < second.start_ns
    is_other = known.start_ns != span.start_ns and known.name != span.name
    return not (are_apart or is_other)


def _with_own_ids(spans: list[Span]) -> list[Span]:
    first, *others = sorted(spans, key=lambda span: (span.start_ns, span.name))
    named = [
        structs.replace(span, span_id=f"{span.span_id}:{n}") for n, span in enumerate(others, 2)
    ]
    return [first, *named]


def _name_graphs(nodes: list[Node]) -> None:
    """A LangGraph is an agent, though OpenInference calls its span a chain like each of its
    steps.
    """
    by_id = {
        node.span.span_id: node
        for node in nodes
        if node.reading.kind == "other" and not node.reading.in_graph
    }
    for step in nodes:
        above = by_id.get(step.span.parent_id) if step.reading.in_graph else None
        if above is not None and above.reading.format == step.reading.format == "openinference":
            above.reading.kind = "agent"
            if above.span.name != "LangGraph":
                above.reading.agent_name = above.reading.agent_name or above.span.name


def _name_loops(nodes: list[Node]) -> bool:
    """A span that calls itself a model call, but has several below it that count their own tokens,
    is the loop around them: an agent. Returns whether there was one. Calls with one answer's id
    are one call, recorded twice.
    """
    inner: defaultdict[str, list[Node]] = defaultdict(list)
    for node in nodes:
        used = node.reading.usage
        is_counted = used.input_tokens is not None and used.output_tokens is not None
        if node.reading.kind == "model" and node.model and not node.in_tool and is_counted:
            inner[node.model.span.span_id].append(node)
    loops = [node for node in nodes if len(inner[node.span.span_id]) > 1]
    for node in loops:
        answers = [below.reading.response_id for below in inner[node.span.span_id]]
        if len(set(answers) - {""}) + answers.count("") > 1:
            node.reading.kind = "agent"
    return any(node.reading.kind == "agent" for node in loops)


def _find_previous(nodes: list[Node]) -> None:
    """A conversation id that is the id of an answer names the call before (a server keeps the
    history), not a talk.
    """
    answers = {node.reading.response_id for node in nodes} - {""}
    for node in nodes:
        reading = node.reading
        if reading.conversation_id in answers:
            reading.previous_id = reading.previous_id or reading.conversation_id
            if reading.session_id == reading.conversation_id:
                reading.session_id = ""
            reading.conversation_id = ""


def _relate(nodes: list[Node]) -> None:
    """Sets what every node has above it. Parents that form a ring, which only a broken sender
    makes, are cut.
    """
    by_id = {node.span.span_id: node for node in nodes}
    done: set[str] = set()
    for node in nodes:
        path: list[Node] = []
        walking: set[str] = set()
        current: Node | None = node
        while current is not None and current.span.span_id not in done:
            path.append(current)
            walking.add(current.span.span_id)
            above = by_id.get(current.span.parent_id)
            current.parent = None if above is None or above.span.span_id in walking else above
            current = current.parent
        for below in reversed(path):
            _inherit(below)
            done.add(below.span.span_id)


def _inherit(node: Node) -> None:
    above = node.parent
    if above is None:
        node.rooted = not node.span.parent_id
    else:
        node.top, node.agent = above.top, above.agent
        node.rooted = above.rooted
        if above.reading.kind != "tool":  # what a tool calls is no second record of its caller
            node.model = above if above.reading.kind == "model" else above.model
            node.frame = above.frame or node.model
        node.in_tool = above.in_tool or above.reading.kind == "tool"
    if node.reading.kind == "agent":
        node.top, node.agent = node.top or node, node


def _fail_silent_calls(nodes: list[Node]) -> None:
    """An agent's last step, where it is a call that neither answered nor counted anything, is what
    failed where the agent did: some keep the error on the agent's span alone.
    """
    steps = [node for node in nodes if node.reading.kind in ("model", "tool") and not node.in_model]
    for node in {id(node.agent): node for node in steps}.values():
        reading, error = node.reading, node.agent.reading.error if node.agent else None
        if reading.kind != "model" or error is None or error.interruption:
            continue
        if not (reading.output or reading.usage.is_known or reading.error or reading.response_id):
            reading.error = error


# Runs side by side in one trace


def _split(nodes: list[Node]) -> list[Group]:
    """A trace is one run, unless it holds several side by side, as below the root of a batch job.

    The first keeps the trace's id as its key. What lies outside of them (the root) belongs to none,
    unless a model or a tool was called there: then that is a run, too.
    """
    trace_id = nodes[0].span.trace_id
    parts: defaultdict[tuple[str, str], list[Node]] = defaultdict(list)
    borders = _borders(nodes)
    for node in nodes:
        parts[borders[node.span.span_id]].append(node)
    outside = parts.pop(OUTSIDE, [])
    if len(parts) < 2:
        return [Group(trace_id, nodes)]
    groups = _continued(
        [group for part in parts.values() if (group := Group(trace_id, part)).is_run]
    )
    if len(groups) < 2:
        return [Group(trace_id, nodes)]
    for group in groups:
        _give_context(group)
    if any(node.reading.kind in ("model", "tool") for node in outside):
        groups.append(Group(trace_id, outside))
    groups.sort(key=lambda group: (group.start_ns, group.nodes[0].span.span_id))
    for group in groups[1:]:
        group.key = f"{trace_id}:{group.nodes[0].span.span_id}"
    return groups


def _borders(nodes: list[Node]) -> dict[str, tuple[str, str]]:
    """For each span the run of the trace that it lies in.

    A run begins at the outermost span that names its conversation (where none does: its session),
    or is an agent below a root that is none. As long as the root has not come it may be an agent,
    whose tools these agents are. An agent that calls no model itself is only the frame of
    conversations that are named below it.
    """
    own = [node for node in nodes if not (node.in_tool or node.in_model)]
    talk = "conversation_id" if any(node.reading.conversation_id for node in own) else "session_id"
    alone = len({name for node in own if (name := getattr(node.reading, talk))}) < 2
    callers = {id(node.agent) for node in nodes if node.reading.kind == "model"}
    teams = _teams(own)
    borders: dict[str, tuple[str, str]] = {}
    for node in nodes:
        for below in _path_from_known(node, borders):
            reading, above = below.reading, below.parent
            border = borders[above.span.span_id] if above is not None else OUTSIDE
            if border == OUTSIDE and (name := getattr(reading, talk)):
                border = ("talk", name)
            elif (
                border == OUTSIDE
                and below.rooted
                and reading.kind == "agent"
                and (alone or id(below) in callers)
            ):
                border = ("agent", teams.get(id(below), below.span.span_id))
            borders[below.span.span_id] = border
    return borders


def _path_from_known(node: Node, known: dict[str, Any]) -> list[Node]:
    """The node and those above it that are not known yet, from above."""
    path: list[Node] = []
    current: Node | None = node
    while current is not None and current.span.span_id not in known:
        path.append(current)
        current = current.parent
    return path[::-1]


def _teams(nodes: list[Node]) -> dict[int, str]:
    """Chains of a framework whose agents, each of another name, work on one thing (a crew): for
    each of their outermost agents the chain's span id.
    """
    teams: defaultdict[str, dict[int, Node]] = defaultdict(dict)
    for node in nodes:
        chain = _nearest_of_scope(node) if node.reading.kind == "agent" else None
        if chain is None or chain.top is not None:
            continue
        if chain.reading.format == node.reading.format == "openinference":
            teams[chain.span.span_id].setdefault(id(node.top), node)
    return {
        top: chain
        for chain, found in teams.items()
        for top in found
        if len({node.reading.agent_name or node.span.name for node in found.values()}) == len(found)
    }


def _nearest_of_scope(node: Node) -> Node | None:
    """The nearest span above that the same instrumentation made."""
    above = node.parent
    for _ in range(MAX_ABOVE):
        if above is None or above.span.scope.name == node.span.scope.name:
            return above
        above = above.parent
    return None


def _continued(groups: list[Group]) -> list[Group]:
    """Joins those that go on with what an earlier one said, as the turns of one conversation do."""
    joined: list[Group] = []
    ends: dict[bytes, int] = {}
    for group in sorted(groups, key=lambda group: (group.start_ns, group.nodes[0].span.span_id)):
        place = len(joined)
        for before in group.calls[0].before[:0:-1] if group.calls else ():
            earlier = joined[ends[before]] if before in ends else None
            if (
                earlier is not None
                and earlier.calls[-1].spoke
                and _same_id(earlier, group, "conversation_id") is not False
            ):
                place = ends[before]
                break
        joined[place : place + 1] = [_joined([*joined[place : place + 1], group])]
        if group.calls:
            ends[group.calls[-1].after] = place
    return joined


def _give_context(group: Group) -> None:
    """What the spans above all runs of a trace say of user, session and workload holds for each of
    them.
    """
    inside = {node.span.span_id for node in group.nodes}
    for node in group.nodes:
        above = node.parent
        if above is not None and above.span.span_id in inside:
            continue
        while above is not None:
            for name in CONTEXT:
                if not getattr(node.reading, name):
                    setattr(node.reading, name, getattr(above.reading, name))
            above = above.parent


def _calls(nodes: list[Node]) -> list[Call]:
    """The model calls, each once: a span inside another, or beside it with the same answer, is the
    same call recorded by a second instrumentation. The exact form of its messages wins, and each
    completes the other.
    """
    outer = [node for node in nodes if node.reading.kind == "model" and not node.in_model]
    same = _recorded_twice(outer)
    inner = [node for node in nodes if node.reading.kind == "model" and node.in_model]
    alone = Counter(node.frame.span.span_id for node in inner)
    for node in inner:
        frame = same.get(node.frame.span.span_id, node.frame).reading
        is_same = _have_same_id(frame, node.reading) is not False
        _complete(frame, node.reading, is_same and alone[node.frame.span.span_id] == 1)
    calls = [node for node in outer if node.span.span_id not in same]
    calls = [node for node in calls if not node.reading.is_fetched] or calls
    for node in outer:
        if node.span.span_id in same:
            _complete(same[node.span.span_id].reading, node.reading, is_same=True)
    if any(_is_exact(node.reading) for node in calls):
        calls = [
            node for node in calls if _is_exact(node.reading) or not _is_preparation(node.reading)
        ]
    prints: dict[int, bytes] = {}
    return [
        Call(node.span, node.reading, node.in_tool, prints, _name_of(node.agent)) for node in calls
    ]


def _name_of(agent: Node | None) -> str:
    return agent.reading.agent_name if agent is not None else ""


def _recorded_twice(calls: list[Node]) -> dict[str, Node]:
    """For each span that records the call of another one beside it: its id, and that other one."""
    same: dict[str, Node] = {}
    seen: defaultdict[tuple, list[Node]] = defaultdict(list)
    for node in calls:
        reading = node.reading
        keys = _keys_of(reading)
        used = reading.usage
        if used.input_tokens and used.output_tokens:
            keys.append(("tokens", node.span.parent_id, used.input_tokens, used.output_tokens))
        keys += _counts_of(reading)
        twin = next(
            (
                other
                for key in keys
                for other in seen[key][-MAX_SIDE_BY_SIDE:]
                if _may_be_of(key, other, node) and _is_same_call(other, node)
            ),
            None,
        )
        if twin is not None:
            same[node.span.span_id] = twin
            continue
        for key in keys:
            seen[key].append(node)
    return same


def _keys_of(reading: Reading) -> list[tuple]:
    """What another record of the same call has, too: the answer's id, or that there was an error,
    or the same request.
    """
    keys: list[tuple] = []
    if reading.kind == "tool":
        return [("tool", reading.tool_name.rsplit("__", 1)[-1])]  # MCP's prefix
    if reading.response_id:
        keys.append(("response", reading.response_id))
    elif reading.error is not None:
        keys.append(("failed", reading.request_model))
    if reading.input:
        keys.append(("request", reading.request_model, len(reading.input)))
    return keys


def _counts_of(reading: Reading) -> Iterator[tuple]:
    """What another record of the same call has counted, which may leave out what a cache gave."""
    used = reading.usage
    if reading.kind == "model" and used.input_tokens and used.output_tokens:
        cached = (used.cache_read_tokens or 0) + (used.cache_write_tokens or 0)
        for sent in {used.input_tokens, used.input_tokens - cached}:
            yield "counts", sent, used.output_tokens


def _may_be_of(key: tuple, one: Node, other: Node) -> bool:
    """Equal counts alone say that it is one call only where one record has no messages."""
    return key[0] != "counts" or _is_silent(one.reading, other.reading)


def _is_end_of(earlier: Node, later: Node) -> bool:
    """Whether a span without any length says how a call ended that had no answer when its own span
    ended: the end of its stream.
    """
    one, other = earlier.reading, later.reading
    return (
        later.span.start_ns == later.span.end_ns >= earlier.span.end_ns
        and earlier.span.scope.name == later.span.scope.name
        and bool(other.output)
        and one.error is None
        and one.output in ([], other.output)  # it may be completed already
        and one.request_model == other.request_model
        and one.input == other.input
    )


def _recorded_apart(groups: list[Group]) -> list[Group]:
    """Joins traces that hold nothing but a second record of a call to the trace with the first one:
    an SDK's own telemetry beside an instrumentation's, or the end of a stream.
    """
    joined: list[Group | None] = list(groups)
    seen: defaultdict[tuple, list[tuple[int, Node]]] = defaultdict(list)
    for place, group in enumerate(groups):
        nodes = [
            node
            for node in group.nodes
            if node.reading.kind in ("model", "tool") and not node.in_model
        ]
        service = group.nodes[0].span.resource.get("service.name")
        keys = {
            key: node
            for node in nodes
            for key in (*_keys_of(node.reading), *_counts_of(node.reading))
        }
        home = next(
            (
                earlier
                for key, node in keys.items()
                for earlier, other in reversed(seen[(service, *key)][-MAX_SIDE_BY_SIDE:])
                if _is_second(key, group, groups[earlier], other, node)
            ),
            None,
        )
        if home is not None:
            for node in group.nodes:
                if node.reading.kind == "tool":  # what its server saw of it
                    node.reading.kind = "other"
            first = joined[home]
            joined[home] = _joined([first, group]) if first is not None else None
            joined[place] = None
        for key, node in keys.items():
            seen[(service, *key)].append((place if home is None else home, node))
    return [group for group in joined if group is not None]


def _is_second(key: tuple, group: Group, earlier: Group, other: Node, node: Node) -> bool:
    """Whether one of two traces, which have something of a call in common, holds nothing but calls
    of the other one.
    """
    if group.is_alone or earlier.is_alone:
        return _may_be_of(key, other, node) and _is_twin(group, other, node)
    is_same = key[0] == "response" and other.span.scope.name != node.span.scope.name
    if not is_same or not (group.loose or earlier.loose):
        return False
    one, two = ({call.reading.response_id for call in of.calls} for of in (group, earlier))
    traces = [{call.span.trace_id for call in of.calls} for of in (group, earlier)]
    return (
        traces[0].isdisjoint(traces[1])
        and (one <= two or two <= one)
        and "" not in min(one, two, key=len)
    )


def _is_twin(group: Group, earlier: Node, later: Node) -> bool:
    """Whether two traces, one of which is a single call (`group` has the later one), record the
    same one.
    """
    if earlier.span.trace_id == later.span.trace_id:
        return False
    if earlier.reading.kind == "tool":  # a server of tools beside its client
        is_within = later.span.end_ns <= earlier.span.end_ns and group.is_alone
        return is_within and earlier.span.scope.name != later.span.scope.name
    return _is_same_call(earlier, later)


def _is_same_call(earlier: Node, later: Node) -> bool:
    """Whether two spans with the same answer or the same counts are one call. Calls of one
    instrumentation never are, but for the end of a stream: they may run side by side, and a cache
    or a test server may give each the same response id.
    """
    one, other = earlier.reading, later.reading
    is_fetched = other.is_fetched and bool(other.response_id)
    if _is_end_of(earlier, later) or (is_fetched and one.response_id == other.response_id):
        return True
    if (
        earlier.span.scope.name == later.span.scope.name
        or later.span.start_ns > earlier.span.end_ns
    ):
        return False
    if (is_same := _have_same_id(one, other)) is not None:
        return is_same
    if one.error is not other.error and not (one.error and other.error and _is_silent(one, other)):
        return False
    models = [{reading.model, reading.request_model} - {""} for reading in (one, other)]
    return later.span.end_ns <= earlier.span.end_ns and not (
        all(models) and models[0].isdisjoint(models[1])
    )


def _is_silent(*readings: Reading) -> bool:
    """Whether one of two records of a call says nothing of its messages."""
    return not all(reading.input for reading in readings)


def _is_exact(reading: Reading) -> bool:
    return bool(reading.input and not reading.raw_input) or bool(
        reading.output and not reading.raw_output
    )


def _is_preparation(reading: Reading) -> bool:
    """A step that a framework calls a model call, without a sign that a model was asked."""
    used = reading.usage
    return reading.error is None and used.input_tokens is used.output_tokens is None


def _have_same_id(one: Reading, other: Reading) -> bool | None:
    """Whether two answers have the same id; None where one has none."""
    known = one.response_id and other.response_id
    return one.response_id == other.response_id if known else None


def _complete(reading: Reading, other: Reading, is_same: bool) -> None:
    """What a span leaves out is taken from the other one, the more exact messages win. `is_same`:
    it is the same call, and not one of several that the span stands for.
    """
    for name in ("input", "output"):
        is_raw = f"raw_{name}"
        mine, theirs = (
            _exactness(getattr(one, name), getattr(one, is_raw), is_same)
            for one in (reading, other)
        )
        if theirs > mine:
            setattr(reading, name, getattr(other, name))
            setattr(reading, is_raw, getattr(other, is_raw))
    if other.response_id and not reading.response_id:  # it knows what answered
        reading.response_id, reading.answer_id = other.response_id, other.answer_id
        reading.model = other.model or reading.model
    if is_same and is_alias(reading) and not is_alias(other):
        reading.request_model = reading.request_model or reading.model
        reading.model = other.model
    for name in ("tools", "model", "request_model", "provider"):
        if not getattr(reading, name):
            setattr(reading, name, getattr(other, name))
    used = _inner_output(reading, other)
    used = used.corrected_by(other.usage) if is_same else used
    reading.usage = used.completed_by(other.usage)


def _exactness(messages: list[Message], is_raw: bool, with_links: bool) -> tuple:
    """How exact messages are: whether there are any, whether they are no raw value, and whether
    they lack nothing; of the same call then by how many calls and replies have their ids.
    """
    links = sum(1 for _ in ids_of(messages)) if with_links else 0
    return bool(messages), not is_raw, is_raw or not is_lossy(messages), links


def _inner_output(reading: Reading, other: Reading) -> Usage:
    """What the outer one of two records of an answer counted, with the output of the inner one
    where these differ: it is nearer to the wire, where the chunks of a stream count the same tokens
    again.
    """
    used, inner = reading.usage, other.usage
    is_same = reading.response_id and reading.response_id == other.response_id
    if not (is_same and inner.output_tokens and used.input_tokens == inner.input_tokens):
        return used
    return structs.replace(used, output_tokens=inner.output_tokens)


# Stitching


class _Chain:
    """Groups found to be one run, in the order of time."""

    def __init__(self, group: Group) -> None:
        self.groups = [group]

    @property
    def last(self) -> Group:
        return self.groups[-1]


def _stitched(groups: list[Group]) -> list[Group]:
    """Joins traces that hold only model calls where a later one goes on with what an earlier one
    said.
    """
    chains: list[_Chain] = []
    tails: dict[tuple, list[_Chain]] = defaultdict(list)
    talks: dict[tuple, _Chain] = {}
    states: dict[tuple, list[_Chain]] = defaultdict(list)
    for group in groups:
        if not group.loose or not group.calls:
            chains.append(_Chain(group))
            continue
        source = source_of(group)
        chain = (
            _by_history(group, source, tails)
            or _by_lost_answer(group, source, tails)
            or _by_state(group, source, states)
            or _by_id(group, source, talks)
        )
        if chain is None:
            chains.append(chain := _Chain(group))
        else:
            chain.groups.append(group)
        for ids in {group.calls[-1].ids, None}:
            tails[(*source, group.calls[-1].after, ids)].append(chain)
        for state in group.calls[-1].leaves:
            states[(*source, state)].append(chain)
        for name in TALKS:
            if found := group.id_of(name):
                talks[(*source, name, found)] = chain
    return [_joined(chain.groups) for chain in chains]


def source_of(group: Group) -> tuple[str, str]:
    """Who speaks: the instrumentation and the service. Runs of different ones are never joined."""
    span = group.calls[0].span
    service = span.resource.get("service.name")
    return span.scope.name, service if isinstance(service, str) else ""


def _by_history(group: Group, source: tuple, tails: dict[tuple, list[_Chain]]) -> _Chain | None:
    """The latest run that ended with what a call begins with; where the history leaves out the ids
    of calls, the only one.
    """
    call = group.calls[0]
    for known in range(len(call.before) - 1, 0, -1):
        own = call.ids_at(known)
        for ids in {own: 0, (): 0}:
            open_ends = reversed(tails.get((*source, call.before[known], ids), ()))
            for chain in islice(open_ends, MAX_CANDIDATES):
                if _ends_with(chain, call, known, group):
                    return chain
        if not own:
            chains = tails.get((*source, call.before[known], None), ())[-MAX_CANDIDATES:]
            found = [chain for chain in chains if _ends_with(chain, call, known, group)]
            if len(found) == 1:
                return found[0]
    return None


def _ends_with(chain: _Chain, call: Call, known: int, group: Group) -> bool:
    return chain.last.calls[-1].after == call.before[known] and _may_follow(chain.last, group)


def _by_lost_answer(group: Group, source: tuple, tails: dict[tuple, list[_Chain]]) -> _Chain | None:
    """A call whose request repeats an earlier one and goes on with what the model called then,
    which the earlier span leaves out. Where several calls wait for it, none is taken.
    """
    call = group.calls[0]
    body = call.reading.input[call.lead :]
    for known in range(len(body) - 1, 0, -1):
        if not body[known].get("tool_calls"):
            continue
        chains = tails.get((*source, call.before[known], ()), ())[-MAX_CANDIDATES:]
        waiting = [chain for chain in chains if _waits_for(chain.last, group, known)]
        if waiting:
            return waiting[0] if len(waiting) == 1 else None
    return None


def _waits_for(earlier: Group, later: Group, known: int) -> bool:
    before, after = earlier.calls[-1], later.calls[0]
    ids = [_same_id(earlier, later, name) for name in (*TALKS, "user_id")]
    return (
        before.after == after.before[known]
        and before.is_answered_in(after, known)
        and -CLOCK_NS <= after.span.start_ns - before.span.end_ns <= SOON_NS
        and False not in ids
    )


def _by_state(group: Group, source: tuple, states: dict[tuple, list[_Chain]]) -> _Chain | None:
    """A call that names the response before it, or begins with replies to its calls: the server
    keeps the history. Where several runs wait for the same, none is taken.
    """
    for state in group.calls[0].needs:
        chains = dict.fromkeys(states.get((*source, state), ())[-MAX_CANDIDATES:])
        waiting = [
            chain
            for chain in chains
            if state in chain.last.calls[-1].leaves and _may_follow(chain.last, group)
        ]
        if len(waiting) == 1:
            return waiting[0]
    return None


def _may_follow(earlier: Group, later: Group) -> bool:
    before, after = earlier.calls[-1], later.calls[0]
    if before.span.end_ns - CLOCK_NS > after.span.start_ns:
        return False
    same = [_same_id(earlier, later, name) for name in (*TALKS, "user_id")]
    if False in same:
        return False
    # the same question asked again is a retry only if somebody says that it is the same talk
    return before.spoke or True in same[:2]


def _same_id(earlier: Group, later: Group, name: str) -> bool | None:
    one, other = earlier.id_of(name), later.id_of(name)
    return one == other if one and other else None


def _by_id(group: Group, source: tuple, talks: dict[tuple, _Chain]) -> _Chain | None:
    """The same conversation or session, where the history was cut but still holds the earlier
    answer, or is not sent.
    """
    call = group.calls[0]
    for name in TALKS:
        found = group.id_of(name)
        chain = talks.get((*source, name, found)) if found else None
        if chain is None:
            continue
        earlier = chain.last.calls[-1]
        if earlier.output and call.anchor(earlier.output[-1]):
            return chain
        silent = not (earlier.output or earlier.reading.input or call.output or call.reading.input)
        if silent and name == "conversation_id":
            return chain
    return None


def _joined(groups: list[Group]) -> Group:
    if len(groups) == 1:
        return groups[0]
    nodes = [node for group in groups for node in group.nodes]
    return Group(
        groups[0].key, sorted(nodes, key=lambda node: (node.span.start_ns, node.span.span_id))
    )
