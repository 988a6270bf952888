"""Spans and log records to rows: one run of an agent is one trajectory. Pure; the order of arrival changes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct, json

from apps.trajectories.otlp.conventions import Reading, is_known, tools_of, values_of
from apps.trajectories.otlp.runs import Group, Links, Node, groups_of, links_of
from apps.trajectories.otlp.spans import LogRecord, Span
from apps.trajectories.otlp.threads import Thread, chain, print_of, threads_of
from apps.trajectories.otlp.values import kept, structured
from apps.trajectories.schema import END_OF_TIME, MAX_LATENCY_MS, MAX_TOKENS
from workers.lib.messages import PROMPT_ROLES, Message

MAX_STEPS = 2_000
MAX_ERRORS = 20
MAX_STACKTRACE = 8_192
MAX_MESSAGES = 100_000
MAX_TOOLS = 500
ATTRIBUTES_BYTES = 64 * 1024
RESOURCE_BYTES = 16 * 1024
END_OF_TIME_NS = int(END_OF_TIME.timestamp()) * 10**9


class Run(Struct):
    """One trajectory: `row` passes `schema.parse`, `key` is its id, `spans` the (trace id, span id) that it was made of.

    Traces of one run that come apart find each other by their `links`: one has what another wants (see `runs.Links`).
    """

    key: str
    row: dict[str, Any]
    spans: set[tuple[str, str]]
    links: dict[str, Links]

    @property
    def trace_ids(self) -> set[str]:
        return {trace_id for trace_id, _ in self.spans}


def assemble(spans: Iterable[Span], logs: Iterable[LogRecord]) -> list[Run]:
    """The runs that the spans hold, by start. Traces without a model, agent or tool span hold none."""
    return [_run(group) for group in groups_of(spans, logs)]


def _run(group: Group) -> Run:
    threads = threads_of(group.calls)
    main = max(threads, key=_rank) if threads else None
    talk = _Talk(group, main)
    row = {
        "id": group.key,
        "agent": _agent(group),
        "model": _model(group),
        "workload": _most_outer(group, "workload")[:120],
        "session_id": group.id_of("session_id")[:200],
        "user_id": group.id_of("user_id")[:200],
        "messages": talk.messages[:MAX_MESSAGES],
        "tools": tools_of(_distinct(tool for node in group.nodes for tool in node.reading.tools))[:MAX_TOOLS],
        "outcome": _outcome(group),
        "usage": _usage(group),
        "tags": list(dict.fromkeys(tag for node in group.nodes for tag in node.reading.tags)),
        **_times(group),
    }
    row["metadata"] = _metadata(group, threads, main, talk)
    return Run(group.key, row, {(node.span.trace_id, node.span.span_id) for node in group.nodes}, links_of(group))


def _rank(thread: Thread) -> tuple:
    """The agent's own thread comes before those of agents that are its tools, the longest before the others."""
    return (not thread.calls[0].nested, len(thread.messages), thread.last.span.end_ns, thread.last.span.span_id)


# Messages


class _Talk:
    """The messages of the run, and where in them each span has its say."""

    def __init__(self, group: Group, main: Thread | None) -> None:
        self.index: dict[str, int] = {}
        self.messages: list[Message] = list(main.messages) if main else []
        calls = main.calls if main else []
        answers = {call.message_index: call.span.span_id for call in calls if call.message_index is not None}
        self._add_outer(group)
        self.captured = bool(self.messages)
        if not self.captured:
            self.messages = [{"role": "user", "content": None}]
        self._add_replies([node for node in group.nodes if node.reading.kind == "tool"], answers)

    def _add_outer(self, group: Group) -> None:
        """Takes the agent's account where there is none, or where it begins with ours and knows more."""
        body = _body(self.messages)
        ours = chain(b"", [print_of(message) for message in body])[-1]
        for node in _outermost(group, bool(body)):
            reading = node.reading
            found = _together(reading.input, reading.output)
            if not found and not body and reading.kind != "tool":
                found = _together(*values_of(node.span))
            theirs = chain(b"", [print_of(message) for message in _body(found)])
            if found and (not body or (len(theirs) - 1 > len(body) and theirs[len(body)] == ours)):
                lead = self.messages[: len(self.messages) - len(body)]
                self.messages = [*lead, *_body(found)] if lead else found
                return

    def _add_replies(self, tools: list[Node], answers: dict[int, str]) -> None:
        """Puts what tools answered after the calls that nothing answered, and notes where every span speaks."""
        spare = _Tools(tools)
        if tools and not any(message.get("tool_calls") for message in self.messages):
            self._add_calls(tools, answers)
        replied = {m.get("tool_call_id") for m in self.messages if m["role"] == "tool"}
        built: list[Message] = []
        waiting: list[dict] = []
        unnamed = 0
        for position, message in enumerate([*self.messages, None]):
            if message is None or message["role"] != "tool":
                self._answer(waiting, unnamed, replied, spare, built)
                waiting, unnamed = [], 0
            if message is None:
                break
            if position in answers:
                self.index[answers[position]] = len(built)
            if message["role"] == "tool":
                call = next((c for c in waiting if c.get("id") == message.get("tool_call_id")), None)
                node = spare.take(call) if call else None
                if node is not None:
                    self.index[node.span.span_id] = len(built)
                unnamed += "tool_call_id" not in message
            waiting += message.get("tool_calls") or ()
            built.append(message)
        self.messages = built

    def _answer(self, calls: list[dict], unnamed: int, replied: set, spare: _Tools, built: list[Message]) -> None:
        for call in calls[unnamed:]:
            if call.get("id") in replied and call.get("id") is not None:
                continue
            node = spare.take(call)
            if node is not None:
                self.index[node.span.span_id] = len(built)
                built.append(_reply(call, node.reading))

    def _add_calls(self, tools: list[Node], answers: dict[int, str]) -> None:
        """Tool spans where no message names a call (content is not captured, or the agent calls tools itself)."""
        found = [message for node in tools for message in _call_and_reply(node)]
        last = len(self.messages) - 1
        if self.messages and self.messages[last]["role"] == "assistant":
            self.messages[last:last] = found
            if last in answers:
                answers[last + len(found)] = answers.pop(last)
        else:
            self.messages += found


class _Tools:
    """Tool spans, each to be taken once: by the call's id, else the first of that name."""

    def __init__(self, nodes: list[Node]) -> None:
        self.by_id: dict[str, list[Node]] = {}
        self.by_name: dict[str, list[Node]] = {}
        for node in reversed(nodes):
            if node.reading.tool_call_id:
                self.by_id.setdefault(node.reading.tool_call_id, []).append(node)
            else:
                self.by_name.setdefault(node.reading.tool_name, []).append(node)

    def take(self, call: dict) -> Node | None:
        for found in (self.by_id.get(call.get("id") or ""), self.by_name.get(call["function"]["name"])):
            if found:
                return found.pop()
        return None


def _outermost(group: Group, known: bool) -> list[Node]:
    """The spans that may tell the whole run: agents from the outside in, then the roots if nothing is known."""
    agents = [node for node in group.nodes if node.reading.kind == "agent" and not node.in_tool]
    roots = [node for node in group.nodes if node.parent is None and node.reading.kind not in ("agent", "model")]
    return agents if known else agents + roots


def _body(messages: list[Message]) -> list[Message]:
    lead = next((i for i, message in enumerate(messages) if message["role"] not in PROMPT_ROLES), len(messages))
    return messages[lead:]


def _together(given: list[Message], answer: list[Message]) -> list[Message]:
    """Input and output, where the output may repeat the input."""
    if not given or not answer:
        return given or answer
    prints = [print_of(message) for message in given]
    repeats = [print_of(message) for message in answer[: len(given)]] == prints
    return answer if repeats else given + answer


def _reply(call: dict, reading: Reading) -> Message:
    reply: Message = {"role": "tool", "content": _said(reading), "name": call["function"]["name"]}
    if "id" in call:
        reply["tool_call_id"] = call["id"]
    return reply


def _said(reading: Reading) -> str | None:
    """What the tool answered; where it failed without an answer, its error."""
    if reading.tool_result is None and reading.error is not None:
        return reading.error.text
    return reading.tool_result


def _call_and_reply(node: Node) -> list[Message]:
    reading = node.reading
    arguments = reading.tool_arguments
    call: dict[str, Any] = {
        "id": reading.tool_call_id or node.span.span_id,
        "type": "function",
        "function": {"name": reading.tool_name or "tool", "arguments": arguments or "{}"},
    }
    reading.tool_call_id = call["id"]
    return [{"role": "assistant", "content": None, "tool_calls": [call]}, _reply(call, reading)]


# Who, when, how much


def _agent(group: Group) -> dict[str, str]:
    resource = group.nodes[0].span.resource
    name = _most_outer(group, "agent_name") or resource.get("service.name") or ""
    version = _most_outer(group, "agent_version") or resource.get("service.version") or ""
    return {"name": str(name)[:120], "version": str(version)[:120]}


def _most_outer(group: Group, name: str) -> str:
    """What the run's agents say of themselves, the outer and earlier first; else what any span says."""
    agents = [node for node in group.nodes if node.reading.kind == "agent" and not node.in_tool]
    return next((found for node in agents if (found := getattr(node.reading, name))), "") or group.id_of(name)


def _model(group: Group) -> str:
    """The model that answered most calls; where none answered, the one that was asked."""
    readings = [call.reading for call in group.calls] or [node.reading for node in group.nodes]
    answered = Counter(reading.model for reading in readings if reading.model)
    asked = Counter(reading.request_model for reading in readings if reading.request_model)
    return next((name for name, _ in (answered or asked).most_common(1)), "")[:200]


def _usage(group: Group) -> dict[str, Any]:
    """Summed over the model calls; the agents' sums count only where no call reports them."""
    agents = [node.reading for node in group.nodes if node.top is node]
    usage: dict[str, Any] = {}
    for name in ("input_tokens", "output_tokens", "cost_usd"):
        for readings in ([call.reading for call in group.calls], agents):
            found = [value for reading in readings if (value := getattr(reading, name)) is not None]
            if found:
                usage[name] = min(sum(found), 999_999.0) if name == "cost_usd" else int(min(sum(found), MAX_TOKENS))
                break
    return usage


def _times(group: Group) -> dict[str, Any]:
    starts = [node.span.start_ns for node in group.nodes if 0 < node.span.start_ns < END_OF_TIME_NS]
    ends = [node.span.end_ns for node in group.nodes if 0 < node.span.end_ns < END_OF_TIME_NS]
    times: dict[str, Any] = {}
    if starts:
        times["started_at"] = _time(min(starts))
    if ends and starts and max(ends) >= min(starts):
        times["ended_at"] = _time(max(ends))
        times["latency_ms"] = min(round((max(ends) - min(starts)) / 1e6, 3), MAX_LATENCY_MS)
    return times


def _time(ns: int) -> str:
    return datetime.fromtimestamp(ns // 10**9, UTC).replace(microsecond=ns % 10**9 // 1000).isoformat()


# How it ended


def _outcome(group: Group) -> dict[str, str]:
    """Failure where an error ended the run, else unknown: that all went well does not say that the answer was right."""
    fatal = [node for node in _failed(group) if node.span.end_ns > _last_answer(group)]
    if not fatal:
        return {"status": "unknown"}
    cause = min(fatal, key=lambda node: (node.span.end_ns, -node.span.start_ns, node.span.span_id))
    return {"status": "failure", "reason": cause.reading.error.text}


def _failed(group: Group) -> list[Node]:
    """Spans whose error says something of the run: not one inside a tool that went well, nor a mere HTTP request."""
    return [
        node
        for node in group.nodes
        if node.reading.error is not None
        and (
            node.reading.kind != "other" or node.parent is None or node.reading.format in ("openinference", "langfuse")
        )
        and not _handled_by_a_tool(node)
    ]


def _handled_by_a_tool(node: Node) -> bool:
    above = node.parent if node.in_tool else None
    while above is not None:
        if above.reading.kind == "tool" and above.reading.error is None:
            return True
        above = above.parent
    return False


def _last_answer(group: Group) -> int:
    """When the last model call that went well began, in ns: the run recovered from every error before that."""
    return max((c.span.start_ns for c in group.calls if c.reading.error is None and not c.nested), default=-1)


# Metadata


def _metadata(group: Group, threads: list[Thread], main: Thread | None, talk: _Talk) -> dict[str, Any]:
    spans = [node.span for node in group.nodes]
    failed = _failed(group)
    origin = min((span.start_ns for span in spans if span.start_ns), default=0)
    trace_ids = sorted({span.trace_id for span in spans})
    metadata: dict[str, Any] = {
        "source": "otlp",
        "format": next((node.reading.format for node in group.nodes if node.reading.format), ""),
        "scope": list(dict.fromkeys(" ".join(filter(None, (s.scope.name, s.scope.version))) for s in spans))[:20],
        "schema_url": list(dict.fromkeys(s.scope.schema_url for s in spans if s.scope.schema_url))[:20],
        "resource": _Budget(RESOURCE_BYTES).keep(group.nodes[0].span.resource),
        "span_count": len(spans),
        "trace_ids": trace_ids[:1_000],
        "steps": [_step(node, talk, origin, len(trace_ids) > 1) for node in group.nodes[:MAX_STEPS]],
        "steps_omitted": max(len(spans) - MAX_STEPS, 0),
        "errors": [_error(node) for node in failed[:MAX_ERRORS]],
        "recovered_errors": sum(node.span.end_ns <= _last_answer(group) for node in failed),
        "request_model": next((c.reading.request_model for c in group.calls if c.reading.request_model), ""),
        "evaluations": [kept(said) for node in group.nodes for said in node.reading.evaluations][:100],
        **_unknown_attributes(group),
        "threads": _other_threads(threads, main),
        "content_captured": talk.captured,
    }
    return {
        name: value for name, value in metadata.items() if value not in ("", 0, [], {}) or name == "content_captured"
    }


def _step(node: Node, talk: _Talk, origin: int, is_of_several: bool) -> dict[str, Any]:
    """A span in the waterfall; with its trace's id where the run is of several."""
    span = node.span
    step: dict[str, Any] = {
        "span_id": span.span_id,
        "parent_id": span.parent_id,
        "name": span.name[:200],
        "kind": node.reading.kind,
        "start_ms": round(max(span.start_ns - origin, 0) / 1e6, 3),
        "duration_ms": round(max(span.end_ns - span.start_ns, 0) / 1e6, 3),
    }
    if is_of_several:
        step["trace_id"] = span.trace_id
    if node.reading.error is not None:
        step["error"] = node.reading.error.text
    if (index := talk.index.get(span.span_id)) is not None:
        step["message_index"] = index
    return step


def _error(node: Node) -> dict[str, str]:
    error = node.reading.error
    said = {"span_id": node.span.span_id, "name": node.span.name[:200], "type": error.type, "error": error.text}
    return said | ({"stacktrace": error.stacktrace[-MAX_STACKTRACE:]} if error.stacktrace else {})


def _other_threads(threads: list[Thread], main: Thread | None) -> list[dict[str, Any]]:
    """What was said beside the main thread (agents that are tools, guards), as far as there is room."""
    others = [thread for thread in threads if thread is not main and thread.messages]
    room, said = ATTRIBUTES_BYTES, []
    for thread in others:
        entry = {"agent": thread.calls[0].reading.agent_name, "messages": thread.messages}
        room -= len(json.encode(entry))
        if room < 0:
            return [*said, {"omitted": len(others) - len(said)}]
        said.append(entry)
    return said


class _Budget:
    """Attributes as long as there is room for them, in bytes of JSON."""

    def __init__(self, room: int) -> None:
        self.room, self.omitted = room, 0

    def keep(self, attributes: dict[str, Any]) -> dict[str, Any]:
        return {key: kept(value) for key, value in attributes.items() if self.takes(key, value)}

    def takes(self, key: str, value: Any) -> bool:
        size = len(json.encode((key, value)))
        if size > self.room:
            self.omitted += 1
            return False
        self.room -= size
        return True


def _unknown_attributes(group: Group) -> dict[str, Any]:
    """What no convention has taken up: the first span's value by name, and by span where a later one differs."""
    budget = _Budget(ATTRIBUTES_BYTES)
    common: dict[str, Any] = {}
    differing: dict[str, dict[str, Any]] = {}
    for node in group.nodes:
        for key, value in node.span.attributes.items():
            if is_known(key, node.reading.kind) or (key in common and common[key] == value):
                continue
            if not budget.takes(key, value):
                continue
            if key in common:
                differing.setdefault(node.span.span_id, {})[key] = kept(value)
            else:
                common[key] = kept(value)
    return {"attributes": common, "attributes_by_span": differing, "attributes_omitted": budget.omitted}


def _distinct(values: Iterable[Any]) -> list[Any]:
    """Each value once: calls repeat the same definitions, and reading them is dear."""
    seen: dict[Any, Any] = {}
    for value in values:
        seen.setdefault(value if isinstance(value, str) else json.encode(value), structured(value))
    return list(seen.values())
