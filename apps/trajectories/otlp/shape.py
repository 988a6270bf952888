"""Spans read by their shape: by the words in the names of their attributes and events (`names.py`),
and by what their values hold, whatever the vendor.

Every span goes through it, after the conventions that it speaks: what they say is never touched,
what they left empty is looked for in the rest of the span. Spans that no convention knows become
steps by their shape. Nothing is read in a trace without a model call, which needs more than one
sign: that a span says it is one, a list of messages with roles, counts of tokens of both sides, a
model. So the spans of a service that calls no model stay what they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from apps.trajectories.dialects import (
    Message,
    are_spoken,
    carries_role,
    holds_messages,
    instructions_beside,
    messages_of,
    one_turn,
    out_of_message,
    reply_text,
    tool_definitions,
    tool_message,
)
from apps.trajectories.otlp.conventions import says_kind
from apps.trajectories.otlp.conventions.base import (
    Attributes,
    Problem,
    Reading,
    called_with,
    problem_of,
)
from apps.trajectories.otlp.conventions.genai import is_event_read
from apps.trajectories.otlp.conventions.raw import is_alias
from apps.trajectories.otlp.names import (
    TAILS,
    WEAK,
    Plan,
    kind_in_words,
    plan_of,
    sign_of,
    words_of,
)
from apps.trajectories.otlp.spans import Event, Span
from apps.trajectories.otlp.threads import print_of
from apps.trajectories.values import label, nest, structured, text, unquoted
from workers.lib.messages import PROMPT_ROLES
from workers.lib.prices import list_price
from workers.lib.token_usage import Usage, parse

if TYPE_CHECKING:
    from apps.trajectories.otlp.runs import Node

FORMAT, TAG = "by shape", "by-shape"
CONTEXT = {"session_id": "session", "user_id": "user"}
STEPS = ("model", "agent", "tool")
USUAL_NAMES = 64
MAX_DEPTH = 6  # of objects around messages and counts
MAX_NAMES = 20  # of attributes that a run says it was read from
MAX_KIND = 60
ID = re.compile(r"[\w.-]+/[\w.:/-]+")  # of a model, with its provider
VERSION = re.compile(r"[-@:_]v?\d")  # of a model, behind its name
ROLE_SIGNS = ("role", "type", '"lc')
NO_ERROR = ("", "0", "false", "nil", "no", "none", "null", "ok")
TOOL_SIGNS = ('ools"', 'unctions"')


class Look:
    """What one span seems to say. Values are read when they are asked for. `kind`: as a convention
    says it; else the span's own words for it are looked for."""

    def __init__(
        self, span: Span, plan: Plan, seen: dict[bytes, list[Message]], kind: str = ""
    ) -> None:
        self.span, self.plan, self.seen = span, plan, seen
        self.attributes = _with_events(span)
        self.used: list[str] = []
        self.kind, self.is_sure = kind, True
        if not kind:
            self.kind, self.is_sure = self._kind()

    def _kind(self) -> tuple[str, bool]:
        """The kind that the span says, and whether it says so of itself: in its own type, else in a
        type of something, else in the names of what it was given.
        """
        kind, is_sure = "", False
        for name in self.names("kind"):
            rank = sign_of(name).rank
            said = kind_in_words(words_of(_kind_label(self.attributes[name])))
            if not rank:
                return said or "other", True
            if said and kind in ("", "agent", "frame"):
                kind, is_sure = said, rank < WEAK
                self.used.append(name)
        if kind:
            return kind, is_sure
        named = (sign_of(name).kind for name in self.names("given", "answer"))
        return next(filter(None, named), ""), True

    def names(self, *fields: str) -> list[str]:
        return [name for field in fields for name in self.plan.names(field, self.kind)]

    def values(self, *fields: str) -> Iterator[tuple[str, Any]]:
        """The names and the values, out of their JSON, that say something."""
        for name in self.names(*fields):
            value = _opened(self.attributes[name])
            if value not in (None, "", [], {}) and not isinstance(value, bool):
                yield name, value

    def value(self, field: str) -> str:
        """The first label among the attributes of a field."""
        for name in self.names(field):
            if found := _label(self.attributes[name]):
                self.used.append(name)
                return found
        return ""

    def context(self, field: str) -> str:
        """A label that may also be in an object about the call."""
        if found := self.value(field):
            return found
        for name, value in self.values("about"):
            for key, item in value.items() if isinstance(value, dict) else ():
                if sign_of(key).field == field and (found := _label(item)):
                    self.used.append(name)
                    return found
        return ""

    def sibling(self) -> str:
        """The name beside what says the kind: `x.name` beside `x.type`, or in the namespaces above;
        else one that is a part of the span's name.
        """
        groups = [sign_of(name).group for name in self.names("kind")]
        parts = re.split(r"[\s:/.]", self.span.name)
        for name in self.names("name"):
            group, found = sign_of(name).group, _label(self.attributes[name])
            is_beside = group and any(other.startswith(group) for other in groups)
            if found and (is_beside or (len(parts) > 1 and found in parts)):
                self.used.append(name)
                return found
        return ""

    # Messages

    def listed(self, *fields: str) -> list | None:
        """A list that has a name for each member."""
        for prefix in self.plan.lists:
            if sign_of(prefix).field in fields and (found := nest(self.attributes, prefix)):
                self.used.append(f"{prefix}*")
                return found
        return None

    def request(self) -> list[Message]:
        """The messages of the request: the first list of messages with roles."""
        if listed := self.listed("given", ""):
            return self._messages(listed, "user")
        says_so = self.is_sure and self.kind in ("model", "agent")
        for name in self.names("given", *([""] if says_so else ())):
            value = self.attributes[name]
            if isinstance(value, str) and not any(sign in value for sign in ROLE_SIGNS):
                continue
            if (history := _history(_opened(value), MAX_DEPTH)) is not None:
                self.used.append(name)
                holder, listed = history
                messages = self._messages(listed, "user")
                return instructions_beside(holder, messages) + messages
        return []

    def answer(self, request: list[Message], is_exact: bool = False) -> list[Message]:
        """What came out: without what the span was given, where it repeats that. `is_exact`: only
        messages as such, or text.
        """
        if listed := self.listed("answer"):
            return self._messages(listed, "assistant")
        for name, value in self.values("answer"):
            is_number = isinstance(value, int | float)
            if is_number or (is_exact and not (isinstance(value, str) or holds_messages(value))):
                continue
            messages = self._messages(value, "assistant")
            if _prints(messages[: len(request)]) == _prints(request):
                messages = messages[len(request) :]
            if messages:
                self.used.append(name)
                return messages
        return []

    def words(self, field: str, role: str) -> list[Message]:
        """The first text or object of a field as a message."""
        for name, value in self.values(field):
            if said := self._messages(called_with(value), role):
                self.used.append(name)
                return said
        return []

    def _messages(self, value: Any, role: str) -> list[Message]:
        return one_turn(messages_of(value, role, self.seen))

    # Counts, model, tools

    def usage(self) -> Usage:
        """The counts that attributes name, completed by the objects that count."""
        groups: dict[str, dict[str, str]] = {}
        for name in self.names("count"):
            if isinstance(self.attributes[name], int | float | str):
                groups.setdefault(sign_of(name).group, {})[sign_of(name).count] = name
        best = max(groups, key=lambda group: _sides(self._counted(groups[group])), default="")
        names: dict[str, str] = {}
        for group, counts in groups.items():  # parts may lack what is before the names of sides
            is_part = best.startswith(group) and not _sides(self._counted(counts))
            names |= counts if is_part or group == best else {}
        used = self._counted(names)
        self.used += names.values() if used.counts else ()
        for name, value in self.values("usage", "answer"):
            inside = {"usage": value} if sign_of(name).field == "usage" else value
            for found in _usages(inside):
                if used.input_tokens in (None, found.input_tokens):
                    used = used.completed_by(found)
                    self.used.append(name)
                    break
        return used

    def _counted(self, names: dict[str, str]) -> Usage:
        return parse({count: self.attributes[name] for count, name in names.items()})

    def models(self, known: str = "") -> tuple[str, str]:
        """The model that answered, and the one that was asked. `known`: what a convention says that
        was asked, which may be the one behind an alias.
        """
        named = [_label(self.attributes[name]) for name in self.names("model")]
        named = [name for name in named if name and not any(map(str.isspace, name))]
        if known:
            named = [name for name in named if _is_alias_of(name, known)] + [known]
        requests = (value for _, value in self.values("given", "about") if isinstance(value, dict))
        in_request = next((name for value in requests for name in _models(value, 1)), "")
        asked = in_request if in_request and not known else min(named, key=len, default="")
        short = asked.rpartition("/")[2]
        in_answer = (name for _, value in self.values("answer") for name in _models(value))
        answered = self.value("answered_by") or next(
            (name for name in in_answer if short in name or name in short), ""
        )
        if not answered:  # of an alias what stands behind it
            answered = max((n for n in named if asked in n and n != asked), key=len, default="")
        if {asked, answered} & set(named) - {known}:
            self.used += self.names("model")
        return answered, asked

    def tools(self) -> list[Any]:
        """Definitions in attributes of that name, else in what went in, came out or stands there
        about the call.
        """
        found: list[Any] = [listed] if (listed := self.listed("tools")) else []
        for name, value in self.values("tools"):
            if _defines(value):
                self.used.append(name)
                found.append(value)
        for name in self.names("given", "about", "answer", "") if not found else ():
            if (tools := _tools_in(self.attributes[name])) is not None:
                self.used.append(name)
                return [tools]
        return found

    def definition(self, tool: str) -> list[dict]:
        """What a tool's own span says of its parameters."""
        for name in self.names("schema", "given"):
            if _is_schema(schema := structured(self.attributes[name])):
                self.used.append(name)
                about = self.value("description")
                described = {"description": about} if about else {}
                return [{"name": tool, "parameters": schema} | described]
        return []

    def single(self, field: str) -> Any:
        """The best value of a field, as it came."""
        for name in self.names(field):
            value = self.attributes[name]
            says_nothing = value in (None, "") or isinstance(value, bool)
            if not says_nothing and not _is_schema(structured(value)):
                self.used.append(name)
                return unquoted(value)
        return None

    def error(self) -> Problem | None:
        """What a span that has no answer says of its failure, whatever its status is."""
        if self.span.has_thrown:
            return problem_of(self.span)
        for name, value in self.values("error"):
            said = value.get("message") if isinstance(value, dict) else value
            if isinstance(said, str) and said.strip().lower() not in NO_ERROR:
                self.used.append(name)
                return problem_of(self.span, said)
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
    if isinstance(value, list) and len(value) > 1 and are_spoken(value):
        return {}, value
    if not levels or not isinstance(value, dict | list):
        return None
    if isinstance(value, list):
        return _history(value[0], levels - 1) if len(value) == 1 else None
    for name in sorted(value, key=_rank_of_member):
        if isinstance(value[name], dict | list | str) and (
            found := _history(value[name], levels - 1)
        ):
            holder, listed = found
            return (value if listed is value[name] else holder), listed
    return None


def _rank_of_member(name: str) -> float:
    sign = sign_of(name)
    return sign.rank if sign.field == "given" else float("inf")


def _members(value: Any, field: str, levels: int = MAX_DEPTH) -> Iterator[tuple[str, Any]]:
    """The members that are a field by their name, of the objects in a value, the outer ones
    first.
    """
    layer = [value]
    for _ in range(levels):
        objects = [item for item in layer if isinstance(item, dict)]
        for item in objects:
            yield from (pair for pair in item.items() if sign_of(pair[0]).field == field)
        lists = [item for item in layer if isinstance(item, list)]
        layer = [inner for item in objects for inner in item.values()]
        layer += [inner for item in lists for inner in item[:64]]


def _usages(value: Any) -> Iterator[Usage]:
    for _, found in _members(value, "usage"):
        if isinstance(found := structured(found), dict) and (used := parse(found)).counts:
            yield used


def _models(value: Any, levels: int = MAX_DEPTH) -> Iterator[str]:
    for name, found in _members(value, "model", levels):
        if words_of(name) in TAILS and isinstance(found, str) and 0 < len(found) < 200:
            yield found


def _is_alias_of(name: str, model: str) -> bool:
    return model.startswith(name) and VERSION.match(model, len(name)) is not None


def _tools_in(value: Any) -> list | None:
    if isinstance(value, str) and not any(sign in value for sign in TOOL_SIGNS):
        return None
    members = (found for _, found in _members(_opened(value), "tools"))
    return next((found for found in members if isinstance(found, list) and _defines(found)), None)


def _defines(value: Any) -> bool:
    """Whether a value defines tools: their names alone say nothing."""
    return any(len(tool["function"]) > 1 for tool in tool_definitions(value))


def _is_schema(value: Any) -> bool:
    return isinstance(value, dict) and value.get("type") == "object"


def _sides(used: Usage) -> int:
    return (used.input_tokens is not None) + (used.output_tokens is not None)


def _prints(messages: list[Message]) -> list[bytes]:
    return [print_of(message) for message in messages]


# Of a trace


class _Trace:
    """The spans of a trace, and those of which something is left to be read."""

    def __init__(self, nodes: list[Node], looks: list[tuple[Node, Look]]) -> None:
        self.nodes, self.looks = nodes, looks
        self.by_id = {node.span.span_id: node for node in nodes}

    @property
    def unknown(self) -> list[tuple[Node, Look]]:
        """Those that may be steps, of no known kind so far."""
        return [
            (node, look)
            for node, look in self.looks
            if node.reading.kind == "other" and node.reading.is_open and look.plan.has_signs
        ]

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
    """Finds the steps of one trace whose kind no convention knows, and completes all steps."""
    looks = [(node, look) for node in nodes if (look := _look_of(node.reading, node.span, seen))]
    if not looks:
        return
    trace = _Trace(nodes, looks)
    if trace.unknown:
        _name_steps(trace)
    above = trace.above(node for node in nodes if node.reading.kind in STEPS)
    unsaid = [name for name in CONTEXT if not any(getattr(node.reading, name) for node in nodes)]
    for node, look in looks:
        if node.reading.kind in STEPS:
            _fill(node.reading, look)
        elif node.span.span_id in above:
            look.used.clear()
        else:
            continue
        for name in unsaid:
            setattr(node.reading, name, look.context(CONTEXT[name]))
        node.reading.shape = tuple(dict.fromkeys(look.used))


def holds_call(spans: Iterable[Span]) -> bool:
    """Whether one of these spans is a model call by its shape, or an agent whose calls are not
    recorded."""
    return any(
        _is_call(look) or _is_agent_alone(look)
        for span in spans
        if not says_kind(span) and (plan := _plan(span, "")).has_signs
        for look in [Look(span, plan, {})]
    )


def _look_of(reading: Reading, span: Span, seen: dict[bytes, list[Message]]) -> Look | None:
    kind = "" if reading.is_open else reading.kind
    plan = _plan(span, kind)
    is_silent = reading.kind == "model" and not (reading.input and reading.output)
    return Look(span, plan, seen, kind) if plan.is_of_use or is_silent else None


def _plan(span: Span, kind: str) -> Plan:
    names = tuple(span.attributes)
    in_events = _names_in_events(span.events, kind) if span.events else ()
    is_usual = len(names) + len(in_events) <= USUAL_NAMES
    return (plan_of if is_usual else plan_of.__wrapped__)(names, kind, in_events)


def _names_in_events(events: list[Event], kind: str) -> tuple[str, ...]:
    return tuple(
        f"{event.name}.{name}"
        for event in events
        if event.name != "exception" and not (kind and is_event_read(event.name))
        for name in event.attributes
    )


# Which spans are steps


def _name_steps(trace: _Trace) -> None:
    """Each kind only where no convention knows one."""
    known = {node.reading.kind for node in trace.nodes}
    if "model" not in known:
        _name_calls(trace)
    has_calls = any(node.reading.kind == "model" for node in trace.nodes)
    if not has_calls and not any(_is_agent_alone(look) for _, look in trace.unknown):
        return
    for node, look in trace.unknown:
        if look.kind in ("retriever", "guardrail") and look.is_sure:
            node.reading.kind = look.kind
        elif "tool" not in known and _is_tool(look):
            look.kind = "tool"
            _begin(node, "tool")
    if "agent" not in known:
        _name_agents(trace)


def _begin(node: Node, kind: str) -> None:
    node.reading.kind, node.reading.format = kind, FORMAT


def _name_calls(trace: _Trace) -> None:
    """What only repeats the calls below it is none."""
    calls = [(node, look) for node, look in trace.unknown if _is_call(look)]
    above = trace.above(node for node, _ in calls)
    for node, look in calls:
        if look.kind == "model" or node.span.span_id not in above:
            _begin(node, "model")


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
    values = (_opened(look.single(field)) for field in ("given", "answer"))
    return all(isinstance(value, str) and bool(value) for value in values)


def _has_price(look: Look) -> bool:
    """Whether a model that has a price was asked, and answered or failed."""
    is_priced = any(map(list_price, look.models()))
    return is_priced and (look.span.status_code == 2 or bool(look.answer([])))


def _is_tool(look: Look) -> bool:
    """Whether a span says that it is a tool, or names one with the call's id, or with what it was
    given and answered. A name alone is nothing.
    """
    was_given, has_id = bool(look.names("given")), bool(look.names("call_id"))
    ended = bool(look.names("answer")) or look.span.status_code == 2
    if look.kind == "tool":
        return was_given or ended or has_id
    return not look.kind and bool(look.names("tool_name")) and (has_id or (was_given and ended))


def _is_agent_alone(look: Look) -> bool:
    """Whether a span says of itself that it is an agent, and has messages with roles or counts
    tokens: of an agent whose calls are not recorded.
    """
    is_agent = look.kind == "agent" and look.is_sure
    return is_agent and (bool(look.request()) or _sides(look.usage()) == 2)


def _name_agents(trace: _Trace) -> None:
    """Spans that say they are agents and have calls or tools below; else the root, if it is a
    frame of theirs, or of the same instrumentation with an input or output of its own."""
    steps = [node for node in trace.nodes if node.reading.kind in ("model", "tool")]
    above = trace.above(steps)
    agents = [
        node
        for node, look in trace.unknown
        if look.kind == "agent"
        and (node.span.span_id in above or not node.span.parent_id or _is_agent_alone(look))
    ]
    scopes = {node.span.scope.name for node in steps if node.reading.format == FORMAT}
    roots = (
        node
        for node, look in trace.unknown
        if not node.span.parent_id
        and node.span.span_id in above
        and look.kind in ("frame", "")
        and node.span.scope.name in scopes
        and look.names("given", "answer")
    )
    for node in agents or list(roots):
        _begin(node, "agent")


# What steps say: only what is still empty is filled


def _fill(reading: Reading, look: Look) -> None:
    if reading.kind == "tool":
        _fill_tool(reading, look)
    else:
        _fill_messages(reading, look)
        _fill_usage(reading, look)
        _fill_models(reading, look)
        reading.tools = reading.tools or look.tools()
    if reading.kind == "agent":
        beside = look.sibling() if reading.format == FORMAT and not reading.agent_name else ""
        reading.agent_name = reading.agent_name or look.value("agent_name") or beside
    elif not (reading.tool_result if reading.kind == "tool" else reading.output):
        reading.error = reading.error or look.error()


def _fill_messages(reading: Reading, look: Look) -> None:
    """Of a call that a convention knows, words without roles are not taken for the request, nor
    objects for the answer."""
    is_agent = reading.kind == "agent"
    was_asked, has_answered = bool(reading.input), bool(reading.output)
    is_exact = not is_agent and reading.format != FORMAT
    if not reading.input:
        request = look.request()
        if not request and not is_exact:
            request, reading.raw_input = look.words("given", "user"), True
        if not has_answered and len(request) > 1 and request[-1]["role"] == "assistant":
            answer = look.answer(request[:-1])
            if not answer or _prints(answer) == _prints(request[-1:]):
                request, answer = request[:-1], request[-1:]
            reading.output = answer
        reading.input = request
    has_prompt = any(message["role"] in PROMPT_ROLES for message in reading.input[:1])
    if not has_prompt and not (was_asked and is_agent) and (reading.input or not is_exact):
        reading.input = look.words("instructions", "system") + reading.input
    if not reading.output and not (is_exact and reading.error):
        reading.output = look.answer(reading.input, is_exact)
    reading.raw_output = reading.raw_output or (is_agent and not has_answered)


def _fill_usage(reading: Reading, look: Look) -> None:
    used, read = reading.usage, len(look.used)
    if used.cache_read_tokens is None or used.reasoning_tokens is None or _sides(used) < 2:
        reading.usage = used.corrected_by(look.usage())
    if reading.usage == used:
        del look.used[read:]


def _fill_models(reading: Reading, look: Look) -> None:
    if not is_alias(reading):
        return
    known = reading.request_model or reading.model
    answered, asked = look.models(known)
    if answered.startswith(reading.model):
        reading.model = answered or reading.model
    if asked != known:
        reading.request_model = asked
    if reading.format == FORMAT and reading.kind == "model":
        if not answered and not asked and look.kind == "model":
            reading.request_model = _model_in_name(look)
        reading.provider = reading.provider or look.value("provider")


def _model_in_name(look: Look) -> str:
    name = look.sibling() or (look.span.name if ID.fullmatch(look.span.name) else "")
    return "" if any(map(str.isspace, name)) else name


def _fill_tool(reading: Reading, look: Look) -> None:
    if reading.format == FORMAT:
        named = look.value("tool_name") or look.value("function_name") or look.sibling()
        reading.tool_name = named or _last_name(look.span.name)
    reading.tool_call_id = reading.tool_call_id or look.value("call_id")
    if not reading.tool_arguments:
        arguments = called_with(_opened(out_of_message(look.single("given"), "assistant")))
        reading.tool_arguments = arguments if isinstance(arguments, dict) else text(arguments)
    if reading.tool_result is None and (result := look.single("answer")) is not None:
        if (message := tool_message(result)) is not None:
            reading.tool_call_id = reading.tool_call_id or label(message["tool_call_id"])
            result = message["content"]
        reading.tool_result = reply_text(out_of_message(result, "tool"))
    reading.tools = reading.tools or look.definition(reading.tool_name)
    if any(look.attributes[name] is True for name in look.names("error")):
        reading.error = reading.error or problem_of(look.span, reading.tool_result or "")


def _last_name(name: str) -> str:
    """`get_weather` of `tool.call:get_weather` and `execute_tool get_weather`."""
    return re.split(r"[\s:/]", name.strip())[-1] or name
