"""Spans and log records to rows: one run of an agent is one trajectory. Pure; the order of arrival
changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct, json

from apps.trajectories import costs
from apps.trajectories.interruptions import says_timeout
from apps.trajectories.otlp.conventions import Reading, flywheel, is_known, tools_of
from apps.trajectories.otlp.conventions.base import MAX_LINE
from apps.trajectories.otlp.conventions.genai import REASONS
from apps.trajectories.otlp.conversation import Conversation
from apps.trajectories.otlp.links import Links, links_of
from apps.trajectories.otlp.replies import words_at_end
from apps.trajectories.otlp.runs import Group, Node, groups_of
from apps.trajectories.otlp.shape import MAX_NAMES, TAG
from apps.trajectories.otlp.spans import LogRecord, Span
from apps.trajectories.otlp.threads import Call, Thread, threads_of
from apps.trajectories.schema import END_OF_TIME, MAX_LATENCY_MS, MAX_SAMPLE
from apps.trajectories.steps import MAX_ARGUMENTS
from apps.trajectories.values import kept, label, letters, structured
from workers.lib import token_usage
from workers.lib.messages import Message, as_json, text_of

MAX_STEPS = 2_000
MAX_ERRORS = 20
MAX_STACKTRACE = 8_192
MAX_MESSAGES = 100_000
MAX_TOOLS = 500
ATTRIBUTES_BYTES = 64 * 1024
RESOURCE_BYTES = 16 * 1024
END_OF_TIME_NS = int(END_OF_TIME.timestamp()) * 10**9


class Run(Struct):
    """One trajectory: `row` passes `schema.parse`, `key` is its id, `spans` the (trace id, span id)
    that it was made of.

    Traces of one run that come apart find each other by their `links`: one has what another wants
    (see `links.Links`).
    """

    key: str
    row: dict[str, Any]
    spans: set[tuple[str, str]]
    links: dict[str, Links]

    @property
    def trace_ids(self) -> set[str]:
        return {trace_id for trace_id, _ in self.spans}


def assemble(spans: Iterable[Span], logs: Iterable[LogRecord]) -> list[Run]:
    """The runs that the spans hold, by start. Traces without a model, agent or tool span hold
    none.
    """
    return [_run(group) for group in groups_of(spans, logs)]


def _run(group: Group) -> Run:
    if not group.calls:
        _take_last_words(group)
    threads = threads_of(group.calls)
    main = max(threads, key=_rank) if threads else None
    talk = Conversation(group, main)
    row = {
        "id": group.key,
        "agent": _agent(group),
        "model": _model(group),
        "workload": _most_outer(group, "workload")[:120],
        "session_id": group.id_of("session_id")[:200],
        "user_id": group.id_of("user_id")[:200],
        "messages": talk.messages[:MAX_MESSAGES],
        "tools": tools_of(_distinct(tool for node in group.nodes for tool in node.reading.tools))[
            :MAX_TOOLS
        ],
        "outcome": _outcome(group),
        "usage": _usage(group),
        "tags": _tags(group, threads, talk),
        **_times(group),
    }
    row["metadata"] = _metadata(group, threads, main, talk)
    if named := _eval_sample(group):
        row["eval"] = named
    return Run(
        group.key,
        row,
        {(node.span.trace_id, node.span.span_id) for node in group.nodes},
        links_of(group),
    )


def _take_last_words(group: Group) -> None:
    """What an agent that failed said last is its error and no answer, where no model calls are
    recorded: frameworks write there what the provider said.
    """
    for node in group.nodes:
        reading = node.reading
        if reading.kind == "agent" and reading.error and (words := words_at_end(reading.output)):
            reading.error.text = f"{reading.error.text}: {words}"[:MAX_LINE]
            reading.output = reading.output[:-1]


def _rank(thread: Thread) -> tuple:
    """The agent's own thread comes before those of agents that are its tools, the longest before
    the others.
    """
    return (
        not thread.calls[0].nested,
        len(thread.messages),
        thread.last.span.end_ns,
        thread.last.span.span_id,
    )


# Who, when, how much


def _agent(group: Group) -> dict[str, str]:
    resource = group.nodes[0].span.resource
    name = _most_outer(group, "agent_name") or resource.get("service.name") or ""
    version = _most_outer(group, "agent_version") or resource.get("service.version") or ""
    return {"name": str(name)[:120], "version": str(version)[:120]}


def _most_outer(group: Group, name: str) -> str:
    """What the run's agents say of themselves, the outer and earlier first; else what any span
    says.
    """
    agents = [node for node in group.nodes if node.reading.kind == "agent" and not node.in_tool]
    return next(
        (found for node in agents if (found := getattr(node.reading, name))), ""
    ) or group.id_of(name)


def _eval_sample(group: Group) -> dict[str, Any] | None:
    """The sample of an evaluation that a span, or what the process says of itself, names; None if
    none does.
    """
    resource = group.nodes[0].span.resource
    run, task, sample = (
        group.id_of(name) or label(resource.get(key))
        for name, key in (
            ("eval_run", flywheel.RUN),
            ("eval_task", flywheel.TASK),
            ("eval_sample", flywheel.SAMPLE),
        )
    )
    if not run:
        return None
    # What is not a number is none of any evaluation's samples, and is said so where it is settled.
    number = (
        int(sample)
        if sample.isascii() and sample.isdigit() and len(sample) < 6
        else MAX_SAMPLE
        if sample
        else 0
    )
    return {"run": run[:200], "task": task[:200] or "(none)", "sample": min(number, MAX_SAMPLE)}


def _model(group: Group) -> str:
    """The model that answered most calls; where none answered, the one that was asked."""
    readings = [call.reading for call in group.calls] or [node.reading for node in group.nodes]
    answered = Counter(reading.model for reading in readings if reading.model)
    asked = Counter(reading.request_model for reading in readings if reading.request_model)
    return next((name for name, _ in (answered or asked).most_common(1)), "")[:200]


def _usage(group: Group) -> dict[str, Any]:
    """The model calls; the agents' sums count only where no call reports them."""
    agents = token_usage.total(node.reading.usage for node in group.nodes if node.top is node)
    calls = [_call(call) for call in group.calls if not _is_free(call.reading)]
    if not any(call["usage"] for call in calls):
        return agents.as_sent
    return agents.counts | costs.usage_of_calls(calls)


def _is_free(reading: Reading) -> bool:
    """Whether the provider refused a call: then it charges nothing. Where somebody stopped waiting,
    or a part of the answer came, it may have charged, and nobody knows how much.
    """
    error = reading.error
    return (
        error is not None
        and not (reading.usage.is_known or reading.output or error.interruption)
        and not says_timeout(f"{error.type} {error.text}")
    )


def _call(call: Call) -> dict[str, Any]:
    reading = call.reading
    return {
        "usage": reading.usage.as_sent,
        "model": reading.model[:200],
        "request_model": reading.request_model[:200],
        "provider": reading.provider[:200],
    } | ({"at": _time(call.span.start_ns)} if 0 < call.span.start_ns < END_OF_TIME_NS else {})


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
    return (
        datetime.fromtimestamp(ns // 10**9, UTC).replace(microsecond=ns % 10**9 // 1000).isoformat()
    )


# How it ended


def _outcome(group: Group) -> dict[str, str]:
    """Failure where an error ended the run, else unknown: that all went well does not say that the
    answer was right.
    """
    fatal = [node for node in _failed(group) if not _is_recovered(node, group)]
    if not fatal:
        return {"status": "unknown"}
    first, *around = sorted(
        fatal, key=lambda node: (node.span.end_ns, -node.span.start_ns, node.span.span_id)
    )
    told = first
    if not first.reading.error.said:  # only its type: what it was, another record of it may say
        begun = (node for node in around if node.span.start_ns <= first.span.start_ns)
        told = next((node for node in begun if node.reading.error.said), first)
    return {"status": "failure", "reason": told.reading.error.text}


def _failed(group: Group) -> list[Node]:
    """Spans whose error says something of the run: not one inside a tool that went well, nor a mere
    HTTP request.
    """
    return [
        node
        for node in group.nodes
        if node.reading.error is not None
        and not node.reading.error.interruption
        and (
            node.reading.kind != "other"
            or node.parent is None
            or node.reading.format in ("openinference", "langfuse")
        )
        and not _handled_by_a_tool(node)
    ]


def _is_recovered(node: Node, group: Group) -> bool:
    """Whether the run went on after an error: a model call that began later went well, or, where no
    model calls are recorded, the agent above a tool that failed ended later and without an error.
    Where there is no agent, a call in whose time the tool ran may have answered.
    """
    if node.span.end_ns <= _last_answer(group):
        return True
    if node.reading.kind != "tool":
        return False
    calls = [call for call in group.calls if not call.nested]
    around = [call for call in calls if _goes_on_around(call, node)]
    if calls and not around:
        return False
    above = node.agent or _open_root(node)
    if above is None:
        return any(words_at_end(call.reading.output) for call in around)
    return above.reading.error is None and above.span.end_ns > node.span.end_ns


def _goes_on_around(call: Call, tool: Node) -> bool:
    """Whether a tool ran in the time of a call that went well: its span stands for a loop."""
    return (
        call.reading.error is None
        and call.span.start_ns <= tool.span.start_ns
        and tool.span.end_ns <= call.span.end_ns
    )


def _open_root(node: Node) -> Node | None:
    """The root above, if no convention says what it is: it may be the agent."""
    above = node.parent
    while above is not None and above.parent is not None:
        above = above.parent
    return above if above is not None and above.reading.is_open else None


def _tags(group: Group, threads: list[Thread], talk: Conversation) -> list[str]:
    """What the spans say; how the run was stopped if that was no error and nothing came after it;
    whether its attributes were cut or its history lies elsewhere, so that messages are missing."""
    said = [tag for node in group.nodes for tag in node.reading.tags]
    is_over = _outcome(group)["status"] == "failure"
    stopped = [
        node.reading.error.interruption
        for node in group.nodes
        if not is_over and node.reading.error is not None and node.span.end_ns > _last_answer(group)
    ]
    marks = {"is_cut": "cut-off", "is_unread": "unread-messages"}
    lost = [
        tag for mark, tag in marks.items() if any(getattr(n.reading, mark) for n in group.nodes)
    ]
    begins = [thread.calls[0] for thread in threads if not thread.calls[0].nested]
    if any(_misses_answer(thread, talk) for thread in threads):
        lost.append("missing-answer")
    shaped = [TAG] if any(node.reading.shape for node in group.nodes) else []
    lacks = ["missing-history"] if any(call.lacks_history for call in begins) else []
    return list(dict.fromkeys([*said, *filter(None, stopped), *lost, *lacks, *shaped]))


def _misses_answer(thread: Thread, talk: Conversation) -> bool:
    """Whether what the model said is in no message: of the last call the run's end may say it."""
    lacking = [call for call in thread.calls if call.lacks_answer and call.message_index is None]
    is_last = lacking == thread.calls[-1:]
    return bool(lacking) and not (is_last and bool(words_at_end(talk.messages)))


def _handled_by_a_tool(node: Node) -> bool:
    above = node.parent if node.in_tool else None
    while above is not None:
        if above.reading.kind == "tool" and above.reading.error is None:
            return True
        above = above.parent
    return False


def _last_answer(group: Group) -> int:
    """When the last model call that went well began, in ns: the run recovered from every error
    before that. A call that another one contains counts if it has an answer: a framework may record
    all steps of an agent as one call.
    """
    calls = [c.span.start_ns for c in group.calls if c.reading.error is None and not c.nested]
    steps = [
        node.span.start_ns
        for node in group.nodes
        if node.in_model and not node.in_tool and _has_spoken(node.reading)
    ]
    return max(calls + steps, default=-1)


def _has_spoken(reading: Reading) -> bool:
    return reading.kind == "model" and reading.error is None and bool(reading.output)


# Metadata


def _metadata(
    group: Group, threads: list[Thread], main: Thread | None, talk: Conversation
) -> dict[str, Any]:
    spans = [node.span for node in group.nodes]
    failed = _failed(group)
    origin = min((span.start_ns for span in spans if span.start_ns), default=0)
    trace_ids = sorted({span.trace_id for span in spans})
    counted = {id(call.reading) for call in group.calls}
    metadata: dict[str, Any] = {
        "source": "otlp",
        "format": next((node.reading.format for node in group.nodes if node.reading.format), ""),
        "scope": list(
            dict.fromkeys(" ".join(filter(None, (s.scope.name, s.scope.version))) for s in spans)
        )[:20],
        "schema_url": list(dict.fromkeys(s.scope.schema_url for s in spans if s.scope.schema_url))[
            :20
        ],
        "resource": _Budget(RESOURCE_BYTES).keep(group.nodes[0].span.resource),
        "span_count": len(spans),
        "trace_ids": trace_ids[:1_000],
        "steps": [
            _step(node, talk, origin, len(trace_ids) > 1, id(node.reading) in counted)
            for node in group.nodes[:MAX_STEPS]
        ],
        "uncounted_calls": sum(
            not call.reading.usage.is_known and not _is_free(call.reading) for call in group.calls
        ),
        "costs_not_believed": sum(call.reading.doubts_cost for call in group.calls),
        "steps_omitted": max(len(spans) - MAX_STEPS, 0),
        "errors": [_error(node) for node in failed[:MAX_ERRORS]],
        "recovered_errors": sum(_is_recovered(node, group) for node in failed),
        "request_model": next(
            (c.reading.request_model for c in group.calls if c.reading.request_model), ""
        ),
        "finish_reason": _finish_reason(group),
        "evaluations": [
            kept(said | {"span_id": node.span.span_id})
            for node in group.nodes
            for said in node.reading.evaluations
        ][:100],
        **_unknown_attributes(group),
        "threads": _other_threads(threads, main),
        "content_captured": talk.captured,
        "read_by_shape": list(
            dict.fromkeys(name for node in group.nodes for name in node.reading.shape)
        )[:MAX_NAMES],
    }
    return {
        name: value
        for name, value in metadata.items()
        if value not in ("", 0, [], {}) or name == "content_captured"
    }


def _finish_reason(group: Group) -> str:
    """Why the last model call ended, in its provider's word."""
    last = next((call for call in reversed(group.calls) if not call.nested), None)
    said = last.span.attributes if last else {}
    reasons = structured(said.get(REASONS) or said.get("llm.finish_reason"))
    return label(reasons[0] if isinstance(reasons, list) and reasons else reasons)[:MAX_LINE]


def _step(
    node: Node, talk: Conversation, origin: int, is_of_several: bool, is_counted: bool
) -> dict[str, Any]:
    """A span in the waterfall; with its trace's id where the run is of several. Of several spans
    that record one model call only one counts its tokens.
    """
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
    reading = node.reading
    if reading.kind == "model":
        named = {"model": reading.model or reading.request_model}
        if reading.request_model != named["model"]:
            named["request_model"] = reading.request_model
        named["provider"] = reading.provider[:200]
        used = reading.usage.as_sent if is_counted else {}
        step |= {name: value for name, value in (named | used).items() if value != ""}
        if not is_counted:
            step["repeats"] = True
    index = talk.index.get(span.span_id)
    if reading.kind == "tool":
        step |= _tool(reading, span.name, index)
    elif reading.kind == "agent" and reading.agent_name not in ("", span.name):
        step["agent"] = reading.agent_name[:200]
    if reading.error is not None:
        interruption = reading.error.interruption
        step |= {"interrupted": interruption} if interruption else {"error": reading.error.text}
    if index is not None:
        step["message_index"] = index
    return step


def _tool(reading: Reading, name: str, index: int | None) -> dict[str, Any]:
    """What the span's name does not say, and the arguments where no message has them."""
    tool = reading.tool_name[:200]
    known = ("", name.removeprefix("execute_tool "))
    said: dict[str, Any] = {"tool": tool} if tool not in known else {}
    if index is None and reading.tool_arguments:
        given = reading.tool_arguments
        said["input"] = (given if isinstance(given, str) else as_json(given))[:MAX_ARGUMENTS]
    return said


def _error(node: Node) -> dict[str, str]:
    error = node.reading.error
    said = {
        "span_id": node.span.span_id,
        "name": node.span.name[:200],
        "type": error.type,
        "error": error.text,
    }
    return said | ({"stacktrace": error.stacktrace[-MAX_STACKTRACE:]} if error.stacktrace else {})


def _other_threads(threads: list[Thread], main: Thread | None) -> list[dict[str, Any]]:
    """What was said beside the main thread (agents that are tools, guards), as far as there is
    room.
    """
    others = [
        thread
        for thread in threads
        if thread is not main and thread.messages and not _is_repeated(thread, main)
    ]
    room, said = ATTRIBUTES_BYTES, []
    for thread in others:
        entry = {"agent": thread.calls[0].agent, "messages": thread.messages}
        room -= len(json.encode(entry))
        if room < 0:
            return [*said, {"omitted": len(others) - len(said)}]
        said.append(entry)
    return said


def _is_repeated(thread: Thread, main: Thread | None) -> bool:
    """Whether a thread is only the beginning of the run's own conversation: a history that comes
    again in another notation.
    """
    if main is None or thread.calls[0].nested != main.calls[0].nested:
        return False
    said, known = map(_outline, (thread.messages, main.messages))
    return len(said) > 1 and known[: len(said)] == said


def _outline(messages: list[Message]) -> list[tuple]:
    """Who says what, in letters and digits alone, and which calls are made and answered."""
    return [
        (
            message["role"],
            letters(text_of(message)),
            message.get("tool_call_id"),
            [
                call.get("id") or call["function"]["name"]
                for call in message.get("tool_calls") or ()
            ],
        )
        for message in messages
    ]


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
    """What no convention has taken up: the first span's value by name, and by span where a later
    one differs.
    """
    budget = _Budget(ATTRIBUTES_BYTES)
    common: dict[str, Any] = {}
    differing: dict[str, dict[str, Any]] = {}
    for node in group.nodes:
        for key, value in node.span.attributes.items():
            reading = node.reading
            is_read = is_known(key, reading.kind) or key in reading.shape
            if is_read and key not in reading.unread:
                continue
            if key in common and common[key] == value:
                continue
            if not budget.takes(key, value):
                continue
            if key in common:
                differing.setdefault(node.span.span_id, {})[key] = kept(value)
            else:
                common[key] = kept(value)
    return {
        "attributes": common,
        "attributes_by_span": differing,
        "attributes_omitted": budget.omitted,
    }


def _distinct(values: Iterable[Any]) -> list[Any]:
    """Each value once: calls repeat the same definitions, and reading them is slow."""
    seen: dict[Any, Any] = {}
    for value in values:
        key = value if isinstance(value, str) else json.encode(value)
        if key not in seen:
            seen[key] = structured(value)
    return list(seen.values())
