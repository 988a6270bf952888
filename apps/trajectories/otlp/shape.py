"""Spans of no known convention, read by their shape: by the words in the names of attributes, and
by what their values hold, whatever the vendor.

Nothing is read in a trace without a model call, which needs more than one sign: that a span says
it is one, a list of messages with roles, counts of tokens of both sides, a model. So the spans of
a service that calls no model stay what they are. What a convention says is never touched: only the
kinds of spans that no convention gave in a trace are looked for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from apps.trajectories.dialects import (
    Message,
    carries_role,
    instructions_beside,
    messages_of,
    one_turn,
    reply_text,
    tool_definitions,
    tool_message,
)
from apps.trajectories.otlp.conventions import is_known, says_kind
from apps.trajectories.otlp.conventions.base import Attributes, Reading, called_with, problem_of
from apps.trajectories.otlp.spans import Span
from apps.trajectories.otlp.threads import print_of
from apps.trajectories.values import label, nest, structured, text, unquoted
from workers.lib.messages import PROMPT_ROLES
from workers.lib.prices import list_price
from workers.lib.token_usage import Usage, is_part, is_side, parse

if TYPE_CHECKING:
    from apps.trajectories.otlp.runs import Node

FORMAT, TAG = "by shape", "by-shape"
MANY_NAMES, MANY_SPANS, USUAL_NAMES = 10_000, 256, 64
MAX_DEPTH = 6  # of objects around messages and counts
MAX_NAMES = 20  # of attributes that a run says it was read from
WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
ID = re.compile(r"[\w.-]+/[\w.:/-]+")  # of a model, with its provider
NUMBERED = re.compile(r"(.+?\.)\d{1,4}\.")

# What the words of a value say of the kind of a span, the first that has one of them.
KINDS = (
    ("other", ("embedding", "embeddings", "embed", "memory")),
    ("tool", ("tool", "function", "tools", "toolcall")),
    ("retriever", ("retriever", "retrieval", "rerank", "reranker")),
    ("guardrail", ("guardrail", "guardrails")),
    ("agent", ("agent", "subagent")),
    (
        "model",
        (
            "llm",
            "chat",
            "generation",
            "generate",
            "completion",
            "completions",
            "model",
            "inference",
        ),
    ),
    ("frame", ("workflow", "flow", "chain", "pipeline", "graph", "crew", "task", "run")),
)
MAX_KIND_WORDS, MAX_KIND = 4, 60
WEAK = 2  # of a type that may be anything's
KIND_WORDS = ("kind", "type", "subtype", "operation", "category")
OF_ITS_OWN = ("llm", "tool", "agent", "retriever", "guardrail")  # as in `llm.input`
OF_A_SPAN = ("span", "observation", "step", "node")  # whose type is the span's own
GIVEN = (
    "messages",
    "input",
    "inputs",
    "prompt",
    "prompts",
    "request",
    "contents",
    "arguments",
    "args",
    "kwargs",
    "question",
    "query",
    "params",
    "parameters",
)
ANSWERS = (
    "output",
    "outputs",
    "response",
    "completion",
    "completions",
    "result",
    "results",
    "answer",
    "reply",
    "replies",
    "generation",
    "generations",
    "choices",
    "return",
)
# Words that say nothing of what a value is.
NEUTRAL = ("content", "text", "value", "values", "body", "data", "json", "raw", "full")
TAILS = {
    ("tool", "name"): "tool_name",
    ("function", "name"): "function_name",
    ("call", "id"): "call_id",
    ("use", "id"): "call_id",
    ("agent", "name"): "agent_name",
    ("model", "name"): "model",
    ("model", "id"): "model",
    ("model", "version"): "model",
    ("model",): "model",
    ("provider",): "provider",
    ("system", "prompt"): "instructions",
    ("system", "instruction"): "instructions",
    ("system", "message"): "instructions",
    ("instructions",): "instructions",
    ("session", "id"): "session",
    ("conversation", "id"): "session",
    ("thread", "id"): "session",
    ("chat", "id"): "session",
    ("user", "id"): "user",
    ("tools",): "tools",
    ("tool", "definitions"): "tools",
    ("usage",): "usage",
    ("usage", "metadata"): "usage",
    ("metrics",): "usage",
    ("metadata",): "metadata",
    ("name",): "name",
    ("error",): "error",
    ("tool", "description"): "description",
    ("function", "description"): "description",
}
USAGES = {"usage", "tokenusage", "usagemetadata", "tokencounts", "tokencount"}
MODELS = ("model", "model_name", "modelName", "modelVersion", "model_version", "model_id")
ROLE_SIGNS = ("role", "type", '"lc')
SIGNS = ("given", "answer", "count", "usage", "tool_name", "kind", "model")
HISTORIES = ("messages", "contents", "input", "inputs", "prompt", "request", "kwargs", "body")
COUNTED = {"token", "tokens", "usage"}


@lru_cache(MANY_NAMES)
def _words(name: str) -> tuple[str, ...]:
    return tuple(word.lower() for word in WORDS.findall(name))


class Sign(Struct, frozen=True):
    """What the name of an attribute says: of which `field` it is, how well, and which count."""

    field: str = ""
    rank: int = 0
    count: str = ""
    group: str = ""
    kind: str = ""  # which the word before says (`llm.input`)


@lru_cache(MANY_NAMES)
def _sign(name: str) -> Sign:
    words = _words(name)
    if COUNTED.intersection(words) and (found := _counted(words)):
        return found
    for size in (2, 1):
        if what := TAILS.get(words[-size:]):
            if what == "call_id" and words[-1] == "id" and not {"tool", "function"} & set(words):
                break
            is_answers = what == "model" and not {"response", "answer", "output"}.isdisjoint(words)
            return Sign("answered_by" if is_answers else what, len(words), group=_before(name))
    if (rank := _kind_rank(words)) is not None:
        return Sign("kind", rank, group=_before(name))
    while len(words) > 1 and words[-1] in NEUTRAL:
        words = words[:-1]
    for what, names in (("given", GIVEN), ("answer", ANSWERS)):
        if words and words[-1] in names:
            own = set(words[-2:-1]).intersection(OF_ITS_OWN)
            return Sign(what, names.index(words[-1]), kind=kind_in_words(own))
    return Sign()


def _kind_rank(words: tuple[str, ...]) -> int | None:
    """How well a name says that its value is the kind of the span; None if it does not."""
    last, before = words[-1:], words[-2:-1]
    if last and last[0] in (*KIND_WORDS, "attributes") and before and before[0] in OF_A_SPAN:
        return 0
    if last == ("subtype",):
        return 1
    if last and last[0] in KIND_WORDS:
        return WEAK
    return None


def _before(name: str) -> str:
    """The namespace of a name: all before its last part."""
    cut = max(name.rfind(sign) for sign in ".:/_")
    return name[: cut + 1]


def _counted(words: tuple[str, ...]) -> Sign | None:
    """A count of tokens: by the longest end of its name that is one."""
    start = max((at + 1 for at, word in enumerate(words) if word == "usage"), default=0)
    for at in range(max(start, len(words) - 4), len(words)):
        name = "".join(words[at:])
        if is_part(name) or is_side(name) or name == "totaltokens":
            return Sign("count", count=name, group=".".join(words[:at]))
    return None


def kind_in_words(words: Iterable[str]) -> str:
    found = set(words)
    if len(found) > MAX_KIND_WORDS:
        return ""
    return next((kind for kind, names in KINDS if not found.isdisjoint(names)), "")


class Plan(Struct, frozen=True):
    """The attributes of a span by what their names say, the best first; `lists`: the beginnings of
    those that are one list with a name for each member."""

    fields: dict[str, tuple[str, ...]]
    lists: tuple[str, ...]

    def names(self, what: str) -> tuple[str, ...]:
        return self.fields.get(what, ())


@lru_cache(MANY_SPANS)
def _plan(names: tuple[str, ...]) -> Plan | None:
    fields: dict[str, list[tuple[int, int, str]]] = {}
    for place, name in enumerate(names):
        sign = _sign(name)
        if sign.field:
            fields.setdefault(sign.field, []).append((sign.rank, place, name))
    ranked = {what: tuple(name for *_, name in sorted(found)) for what, found in fields.items()}
    numbered = (
        match[1] for name in names if name.endswith("role") and (match := NUMBERED.match(name))
    )
    lists = tuple(dict.fromkeys(numbered))
    if not lists and ranked.keys().isdisjoint(SIGNS):
        return None
    return Plan(ranked, lists)


@lru_cache(MANY_SPANS)
def _rest(names: tuple[str, ...], kind: str) -> Plan | None:
    """A plan of what a convention leaves, if that may be messages or values."""
    plan = _plan.__wrapped__(tuple(name for name in names if not is_known(name, kind)))
    has_values = plan and (plan.lists or plan.names("given") or plan.names("answer"))
    return plan if has_values else None


class Look:
    """What one span seems to say. Values are read when they are asked for."""

    def __init__(self, span: Span, plan: Plan, seen: dict[bytes, list[Message]]) -> None:
        self.span, self.plan, self.seen = span, plan, seen
        self.attributes = _with_events(span)
        self.used: list[str] = []
        self.kind, self.is_sure = self._kind()

    def _kind(self) -> tuple[str, bool]:
        """The kind that the span says, and whether it says so of itself: in its own type, else in a
        type of something, else in the names of what it was given.
        """
        found, is_sure = "", False
        for name in self.plan.names("kind"):
            rank, kind = _sign(name).rank, kind_in_words(_words(_kind_label(self.attributes[name])))
            if not rank:
                return kind or "other", True
            if kind and (not found or found in ("agent", "frame")):
                found, is_sure = kind, rank < WEAK
                self.used.append(name)
        if found:
            return found, is_sure
        named = (_sign(name).kind for what in ("given", "answer") for name in self.plan.names(what))
        return next((kind for kind in named if kind), ""), True

    def value(self, what: str) -> str:
        """The first label among the attributes of a field."""
        for name in self.plan.names(what):
            if found := _label(self.attributes[name]):
                self.used.append(name)
                return found
        return ""

    def sibling(self) -> str:
        """The name beside what says the kind: `x.name` beside `x.type`, or in the namespaces
        above."""
        groups = [_sign(name).group for name in self.plan.names("kind")]
        for name in self.plan.names("name"):
            beside = _sign(name).group
            is_beside = beside and any(group.startswith(beside) for group in groups)
            if is_beside and (found := _label(self.attributes[name])):
                self.used.append(name)
                return found
        return ""

    # Messages

    def request(self) -> list[Message]:
        """The messages of the request: the first list of messages with roles."""
        for prefix in self.plan.lists:
            if _sign(prefix).field in ("given", "") and (found := nest(self.attributes, prefix)):
                self.used.append(f"{prefix}*")
                return self._messages(found, "user")
        for name in self.plan.names("given"):
            value = self.attributes[name]
            if isinstance(value, str) and not any(sign in value for sign in ROLE_SIGNS):
                continue
            value = _opened(value)
            if (found := _history(value, MAX_DEPTH)) is not None:
                self.used.append(name)
                holder, listed = found
                messages = self._messages(listed, "user")
                return instructions_beside(holder, messages) + messages
        return []

    def answer(self, request: list[Message]) -> list[Message]:
        """What came out: without what the span was given, where it repeats that."""
        for prefix in self.plan.lists:
            if _sign(prefix).field == "answer" and (found := nest(self.attributes, prefix)):
                self.used.append(f"{prefix}*")
                return self._messages(found, "assistant")
        for name in self.plan.names("answer"):
            value = _opened(self.attributes[name])
            if value is None or value in ("", [], {}):
                continue
            found = self._messages(value, "assistant")
            if _prints(found[: len(request)]) == _prints(request):
                found = found[len(request) :]
            if found:
                self.used.append(name)
                return found
        return []

    def words(self) -> list[Message]:
        """What was given as text, or as an object."""
        for name in self.plan.names("given"):
            value = _opened(self.attributes[name])
            if value is not None and value not in ("", [], {}):
                self.used.append(name)
                return self._messages(value, "user")
        return []

    def instructions(self) -> list[Message]:
        for name in self.plan.names("instructions"):
            if isinstance(value := _opened(self.attributes[name]), str | list) and value:
                self.used.append(name)
                return self._messages(value, "system")
        return []

    def _messages(self, value: Any, role: str) -> list[Message]:
        return one_turn(messages_of(value, role, self.seen))

    # Counts, model, tools

    def usage(self) -> Usage:
        """The counts that attributes name, completed by the objects that count in what came
        out."""
        groups: dict[str, dict[str, Any]] = {}
        names: dict[str, list[str]] = {}
        for name in self.plan.names("count"):
            sign = _sign(name)
            if isinstance(value := self.attributes[name], int | float | str):
                groups.setdefault(sign.group, {})[sign.count] = value
                names.setdefault(sign.group, []).append(name)
        counted = sorted(
            ((parse(group), names[key]) for key, group in groups.items()),
            key=lambda item: -_sides(item[0]),
        )
        used = counted[0][0] if counted and _sides(counted[0][0]) else Usage()
        if used.counts:
            self.used += counted[0][1]
        for name in (*self.plan.names("usage"), *self.plan.names("answer")):
            value = _opened(self.attributes[name])
            inside = {"usage": value} if name in self.plan.names("usage") else value
            for found in _usages(inside, MAX_DEPTH):
                if not used.counts or used.input_tokens in (None, found.input_tokens):
                    used = used.completed_by(found)
                    self.used.append(name)
                    break
        return used

    def models(self) -> tuple[str, str]:
        """The model that answered, and the one that was asked."""
        asked = next(
            (
                found
                for name in (*self.plan.names("given"), *self.plan.names("metadata"))
                if isinstance(value := _opened(self.attributes[name]), dict)
                and (found := next(filter(None, (_label(value.get(key)) for key in MODELS)), ""))
            ),
            "",
        )
        answered = self.value("answered_by") or next(
            (
                found
                for name in self.plan.names("answer")
                for found in _models(_opened(self.attributes[name]), MAX_DEPTH)
            ),
            "",
        )
        named = [_label(self.attributes[name]) for name in self.plan.names("model")]
        named = [name for name in named if name and not any(map(str.isspace, name))]
        self.used += self.plan.names("model")
        if not asked:
            asked = min(named, key=len, default="")
        if not answered:  # of an alias what stands behind it
            answered = max((n for n in named if asked in n and n != asked), key=len, default="")
        return answered, asked

    def tools(self) -> list[Any]:
        found = [
            self.attributes[name]
            for name in self.plan.names("tools")
            if tool_definitions(self.attributes[name])
        ]
        for value in self.attributes.values() if not found else ():
            if isinstance(value, str) and '"tools"' in value:
                inside = structured(value)
                tools = inside.get("tools") if isinstance(inside, dict) else None
                if isinstance(tools, list) and tool_definitions(tools):
                    return [tools]
        return found

    def single(self, what: str) -> Any:
        """The best value of a field, as it is."""
        for name in self.plan.names(what):
            value = self.attributes[name]
            if value is not None and value != "" and not _is_schema(value):
                self.used.append(name)
                return _opened(value)
        return None


def _with_events(span: Span) -> Attributes:
    """The span's attributes, and those of its events under the event's name."""
    said = {
        f"{event.name}.{name}": value
        for event in span.events
        if event.name != "exception"
        for name, value in event.attributes.items()
    }
    return said | span.attributes if said else span.attributes


def _label(value: Any) -> str:
    return label(unquoted(value))


def _kind_label(value: Any) -> str:
    found = _opened(value)
    kind = label(found.get("type") if isinstance(found, dict) else found)
    return kind if len(kind) <= MAX_KIND else ""


def _opened(value: Any) -> Any:
    """A value out of its JSON, at most two levels of it."""
    for _ in range(2):
        if not isinstance(value, str):
            break
        value = structured(unquoted(value))
    return value


def _history(value: Any, levels: int) -> tuple[dict, list] | None:
    """The list of messages with roles that a value is or has inside, and the object around it."""
    if isinstance(value, str) and '"role"' in value and value[:1] in "[{":
        value = structured(value)
    are_objects = isinstance(value, list) and all(isinstance(item, dict) for item in value)
    if are_objects and any(map(carries_role, value)):
        return {}, value
    if not levels or not isinstance(value, dict | list):
        return None
    if isinstance(value, list):
        return _history(value[0], levels - 1) if len(value) == 1 else None
    first = [name for name in HISTORIES if name in value]
    for name in (*first, *(name for name in value if name not in HISTORIES)):
        if isinstance(value[name], dict | list | str) and (
            found := _history(value[name], levels - 1)
        ):
            holder, listed = found
            return (value if listed is value[name] else holder), listed
    return None


def _inside(value: Any, levels: int) -> Iterator[dict]:
    """The objects in a value, the outer ones first."""
    layer = [value]
    for _ in range(levels):
        objects = [item for item in layer if isinstance(item, dict)]
        yield from objects
        lists = [item for item in layer if isinstance(item, list)]
        layer = [inner for item in objects for inner in item.values()]
        layer += [inner for item in lists for inner in item[:64]]


def _usages(value: Any, levels: int) -> Iterator[Usage]:
    for inside in _inside(value, levels):
        for name, found in inside.items():
            if isinstance(found, str) and found[:1] == "{":
                found = structured(found)
            is_usage = isinstance(found, dict) and name.replace("_", "").lower() in USAGES
            if is_usage and (used := parse(found)).counts:
                yield used


def _models(value: Any, levels: int) -> Iterator[str]:
    for inside in _inside(value, levels):
        yield from (
            found
            for name in MODELS
            if isinstance(found := inside.get(name), str) and found and len(found) < 200
        )


def _sides(used: Usage) -> int:
    return (used.input_tokens is not None) + (used.output_tokens is not None)


def _prints(messages: list[Message]) -> list[bytes]:
    return [print_of(message) for message in messages]


def _is_schema(value: Any) -> bool:
    found = structured(value)
    return isinstance(found, dict) and found.get("type") == "object"


# Of a trace


class _Trace:
    """The spans of a trace that no convention reads, and what is above them."""

    def __init__(self, nodes: list[Node], looks: list[tuple[Node, Look]]) -> None:
        self.nodes, self.looks = nodes, looks
        self.by_id = {node.span.span_id: node for node in nodes}

    def above(self, nodes: Iterable[Node]) -> set[str]:
        """The ids of the spans that have one of these below them."""
        found: set[str] = set()
        for node in nodes:
            parent = node.span.parent_id
            while parent and parent not in found:
                found.add(parent)
                parent = self.by_id[parent].span.parent_id if parent in self.by_id else ""
        return found


def read_shapes(nodes: list[Node], seen: dict[bytes, list[Message]]) -> None:
    """Makes model calls, tools and agents of the spans of one trace whose kind no convention
    knows."""
    known = {node.reading.kind for node in nodes}
    _complete(nodes, seen)
    if not any(node.reading.is_open for node in nodes):
        return
    looks = _looks(nodes, seen)
    if not looks:
        return
    trace = _Trace(nodes, looks)
    if "model" not in known:
        _read_calls(trace)
    has_calls = any(node.reading.kind == "model" for node in nodes)
    if not has_calls and not any(_is_agent_alone(look) for _, look in looks):
        return
    for node, look in looks:
        if look.kind in ("retriever", "guardrail") and look.is_sure:
            node.reading.kind = look.kind
    if "tool" not in known:
        for node, look in looks:
            if node.reading.kind == "other" and _is_tool(look):
                _fill_tool(node, look)
    if "agent" not in known:
        _read_agents(trace)
    for node, look in looks:
        if node.reading.format == FORMAT:
            _fill_context(node.reading, look)


def holds_call(spans: Iterable[Span]) -> bool:
    """Whether one of these spans is a model call by its shape, or an agent whose calls are not
    recorded."""
    return any(
        _is_call(look) or _is_agent_alone(look)
        for span in spans
        if not says_kind(span) and (look := _look(span, {}))
    )


def _look(span: Span, seen: dict[bytes, list[Message]]) -> Look | None:
    names = tuple(span.attributes)
    for event in span.events:
        if event.name != "exception":
            names += tuple(f"{event.name}.{name}" for name in event.attributes)
    plan = _plan(names) if len(names) <= USUAL_NAMES else _plan.__wrapped__(names)
    return Look(span, plan, seen) if plan is not None else None


def _looks(nodes: list[Node], seen: dict[bytes, list[Message]]) -> list[tuple[Node, Look]]:
    return [
        (node, look)
        for node in nodes
        if node.reading.kind == "other"
        and node.reading.is_open
        and (look := _look(node.span, seen)) is not None
    ]


def _is_call(look: Look) -> bool:
    """Whether there is more than one sign of a model call. A span that does not say of itself that
    it is one needs messages with roles, and counts of tokens or a model that has a price.
    """
    if look.kind not in ("model", "frame", ""):
        return False
    is_asked = bool(look.request())
    if look.kind != "model" and not is_asked:
        return False
    sides = _sides(look.usage())
    if look.kind == "model" and look.is_sure:
        has_said = is_asked or sides == 2
        return has_said or (any(look.models()) and bool(sides or _has_words(look)))
    return is_asked and (sides == 2 or _has_price(look))


def _has_words(look: Look) -> bool:
    """Whether text went in and text came out."""
    values = (look.single(what) for what in ("given", "answer"))
    return all(isinstance(value, str) and bool(value) for value in values)


def _is_agent_alone(look: Look) -> bool:
    """Whether a span says of itself that it is an agent, and has messages with roles or counts
    tokens: of an agent whose calls are not recorded.
    """
    is_agent = look.kind == "agent" and look.is_sure
    return is_agent and (bool(look.request()) or _sides(look.usage()) == 2)


def _has_price(look: Look) -> bool:
    return any(map(list_price, look.models())) and bool(look.answer([]))


def _read_calls(trace: _Trace) -> None:
    """What only repeats the calls below it is none."""
    calls = [(node, look) for node, look in trace.looks if _is_call(look)]
    above = trace.above(node for node, _ in calls)
    for node, look in calls:
        if look.kind == "model" or node.span.span_id not in above:
            _fill_call(node, look)


def _fill_call(node: Node, look: Look) -> None:
    reading = _begun(node, "model")
    _fill_messages(reading, look)
    reading.usage = look.usage()
    reading.model, reading.request_model = look.models()
    if not reading.model and not reading.request_model and look.kind == "model":
        name = look.sibling() or (node.span.name if ID.fullmatch(node.span.name) else "")
        reading.request_model = "" if any(map(str.isspace, name)) else name
    reading.provider = look.value("provider")
    reading.tools = look.tools()
    if not reading.output and any(event.name == "exception" for event in node.span.events):
        reading.error = reading.error or problem_of(node.span)


def _fill_messages(reading: Reading, look: Look) -> None:
    request = look.request()
    if not request:
        request, reading.raw_input = look.words(), True
    if request and len(request) > 1 and request[-1]["role"] == "assistant":
        answer = look.answer(request[:-1])
        if not answer or _prints(answer) == _prints(request[-1:]):
            request, answer = request[:-1], request[-1:]
    else:
        answer = look.answer(request)
    if not any(message["role"] in PROMPT_ROLES for message in request[:1]):
        request = look.instructions() + request
    reading.input, reading.output = request, answer


def _is_tool(look: Look) -> bool:
    """Whether a span says that it is a tool, or names one with what it was given and answered. A
    name alone is nothing."""
    was_given = bool(look.plan.names("given"))
    ended = bool(look.plan.names("answer")) or look.span.status_code == 2
    if look.kind == "tool":
        return was_given or ended or bool(look.plan.names("call_id"))
    return not look.kind and bool(look.plan.names("tool_name")) and was_given and ended


def _fill_tool(node: Node, look: Look) -> None:
    reading = _begun(node, "tool")
    named = look.value("tool_name") or look.value("function_name")
    reading.tool_name = named or look.sibling() or _last_name(node.span.name)
    reading.tool_call_id = look.value("call_id")
    _fill_values(reading, look)
    schemas = (look.attributes[name] for name in look.plan.names("given"))
    if (schema := next(filter(_is_schema, schemas), None)) is not None:
        said = {"name": reading.tool_name, "parameters": structured(schema)}
        about = look.value("description")
        reading.tools = [said | ({"description": about} if about else {})]
    has_failed = any(look.attributes[name] is True for name in look.plan.names("error"))
    threw = reading.tool_result is None and any(
        event.name == "exception" for event in node.span.events
    )
    if has_failed or threw:
        reading.error = reading.error or problem_of(node.span, reading.tool_result or "")


def _fill_values(reading: Reading, look: Look) -> None:
    """What a tool was called with, and what it answered."""
    arguments, result = called_with(look.single("given")), look.single("answer")
    reading.tool_arguments = arguments if isinstance(arguments, dict) else text(arguments)
    message = tool_message(result)
    if message is not None:
        reading.tool_call_id = reading.tool_call_id or label(message["tool_call_id"])
        result = message["content"]
    reading.tool_result = None if result is None else reply_text(result)


def _last_name(name: str) -> str:
    """`get_weather` of `tool.call:get_weather` and `execute_tool get_weather`."""
    return re.split(r"[\s:/]", name.strip())[-1] or name


def _read_agents(trace: _Trace) -> None:
    """Spans that say they are agents and have calls or tools below; else the root, if it is a
    frame of theirs, or of the same instrumentation with an input or output of its own."""
    steps = [node for node in trace.nodes if node.reading.kind in ("model", "tool")]
    above = trace.above(steps)
    open_ = [(node, look) for node, look in trace.looks if node.reading.kind == "other"]
    agents = [
        (node, look)
        for node, look in open_
        if look.kind == "agent"
        and (node.span.span_id in above or not node.span.parent_id or _is_agent_alone(look))
    ]
    scopes = {node.span.scope.name for node in steps if node.reading.format == FORMAT}
    if not agents:
        agents = [
            (node, look)
            for node, look in open_
            if not node.span.parent_id
            and node.span.span_id in above
            and look.kind in ("frame", "")
            and node.span.scope.name in scopes
            and (look.plan.names("given") or look.plan.names("answer"))
        ]
    for node, look in agents:
        reading = _begun(node, "agent")
        _fill_messages(reading, look)
        reading.usage = look.usage()
        reading.raw_output = True
        reading.tools = look.tools()
        reading.model, reading.request_model = look.models()
        reading.agent_name = look.value("agent_name") or look.sibling()


def _begun(node: Node, kind: str) -> Reading:
    node.reading.kind, node.reading.format = kind, FORMAT
    return node.reading


def _fill_context(reading: Reading, look: Look) -> None:
    reading.session_id = reading.session_id or look.value("session")
    reading.user_id = reading.user_id or look.value("user")
    reading.shape = tuple(dict.fromkeys(look.used))


def _complete(nodes: list[Node], seen: dict[bytes, list[Message]]) -> None:
    """Steps of a known convention that say neither what went in nor what came out."""
    for node in nodes:
        reading = node.reading
        has_said = reading.input or reading.output or reading.tool_arguments or reading.tool_result
        if has_said or reading.kind not in ("model", "agent", "tool"):
            continue
        names = tuple(node.span.attributes)
        is_usual = len(names) <= USUAL_NAMES
        plan = (_rest if is_usual else _rest.__wrapped__)(names, reading.kind)
        if plan is None:
            continue
        look = Look(node.span, plan, seen)
        if reading.kind == "tool":
            _fill_values(reading, look)
        elif look.request() or reading.kind == "agent":
            _fill_messages(reading, look)
            reading.raw_output = reading.kind == "agent"
        if reading.has_messages and not reading.usage.counts:
            reading.usage = look.usage()
        reading.shape = tuple(dict.fromkeys(look.used))
