"""The messages of a run: those of the agent's own model calls, with what its tools answered in
their places. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from msgspec import Struct

from apps.trajectories.otlp.conventions import given_to, read_as_tool, values_of
from apps.trajectories.otlp.replies import call_of, reply, says_error, words_at_end
from apps.trajectories.otlp.runs import Group, Node
from apps.trajectories.otlp.threads import Call, Thread, print_of
from apps.trajectories.values import label, letters, text
from workers.lib.messages import (
    PROMPT_ROLES,
    RESULT_ROLES,
    Message,
    arguments_of,
    exchanges,
    normalise,
    text_of,
)

MAX_ALIKE = 64  # spans of one tool whose arguments are compared with a call's


class Conversation:
    """The messages of the run, and where in them each span has its say."""

    def __init__(self, group: Group, main: Thread | None) -> None:
        self.index: dict[str, int] = {}
        self.messages: list[Message] = main.messages if main else []
        calls = main.calls if main else []
        answers = {
            call.message_index: call.span.span_id
            for call in calls
            if call.message_index is not None
        }
        if self._add_outer(group):
            answers = {}
        self.captured = any(map(_has_content, self.messages))
        if not self.messages:
            self.messages = [{"role": "user", "content": None}]
        self.messages = _with_ids(_paired(self.messages))
        self._add_unnamed(group, answers)
        self._add_replies(group, answers)
        self._add_final(group, calls)

    def _add_outer(self, group: Group) -> bool:
        """Takes the agent's account where there is none, where it begins with ours and knows more,
        or where it alone has the calls (a framework that writes them into its prompts). Returns
        whether the places of model calls are no longer known.
        """
        body = _body(self.messages)
        for node in _outermost(group, bool(body)):
            reading = node.reading
            has_failed = reading.raw_output and reading.error is not None
            found = _together(reading.input, [] if has_failed else reading.output)
            if not found and not body and reading.kind != "tool":
                given, answer = values_of(node.span)
                found = _together(given, [] if _says_an_error(answer, group) else answer)
            theirs = _body(found)
            if reading.complete and _has_calls(theirs) and not _has_calls(body):
                self.messages = [*self.messages[: len(self.messages) - len(body)], *theirs]
                return True
            if found and (
                not body
                or (len(theirs) > len(body) and _prints(theirs[: len(body)]) == _prints(body))
            ):
                lead = self.messages[: len(self.messages) - len(body)]
                self.messages = [*lead, *theirs] if lead else found
                return False
        return False

    def _add_final(self, group: Group, calls: list[Call]) -> None:
        """The run's answer stands at the end: what the outer agent answered, else the last model
        call, where the thread that is shown ends without saying it (another agent took over, or the
        framework made the answer).
        """
        agents = [
            node
            for node in group.nodes
            if node.top is node and not node.in_tool and node.reading.error is None
        ]
        readings = [node.reading for node in sorted(agents, key=lambda node: -node.span.end_ns)]
        last = max(
            (call for call in group.calls if not call.nested),
            key=lambda call: call.span.end_ns,
            default=None,
        )
        if (
            last is not None
            and calls
            and last.span.end_ns > calls[-1].span.end_ns
            and last.reading.error is None
        ):
            readings.append(last.reading)
        reading = next((reading for reading in readings if words_at_end(reading.output)), None)
        answer = words_at_end(reading.output) if reading is not None else ""
        if reading is None or _says(self.messages, answer):
            if words_at_end(self.messages) and _ends_with_piece(answer, self.messages[-1]):
                self.messages[-1] = self.messages[-1] | {"content": answer}
            return
        name = {"name": reading.agent_name[:80]} if reading.agent_name else {}
        self.messages.append({"role": "assistant", "content": answer} | name)

    def _add_unnamed(self, group: Group, answers: dict[int, str]) -> None:
        """Tool spans where no message names a call: all, if content is not captured or the agent
        calls tools itself; those of this turn, if only the turns before it have their calls.
        """
        tools = [node for node in group.nodes if node.reading.kind == "tool"]
        if not _has_calls(self.messages):
            found = tools
        elif not _has_calls(self.messages[_turn_start(self.messages) :]):
            known = {called for message in self.messages for called in _ids_of_calls(message)}
            for call in group.calls:
                said = (*call.reading.input, *call.reading.output)
                known |= {called for message in said for called in _ids_of_calls(message)}
            found = [
                node
                for node in tools
                if not node.in_tool and node.reading.tool_call_id not in ("", *known)
            ]
        else:
            return
        self._add_calls(
            found, answers, {call.span.span_id: call.span.end_ns for call in group.calls}
        )

    def _add_replies(self, group: Group, answers: dict[int, str]) -> None:
        """Puts what tools answered after the calls that nothing answered, and notes where every
        span speaks.
        """
        spare = _Tools(group.nodes)
        spans: dict[int, Node] = {}  # by the place of the reply that they gave
        missing: dict[
            int, list[tuple[dict, Node | None]]
        ] = {}  # calls that nothing answers, by the place of their message
        for exchange in exchanges(self.messages, _calls):
            node = spare.take(exchange.call.raw)
            if exchange.result_index is None:
                node = node or spare.take_function(exchange.call.raw)
                missing.setdefault(exchange.index, []).append((exchange.call.raw, node))
            elif node is not None:
                spans[exchange.result_index] = node
        built: list[Message] = []
        waiting: list[tuple[dict, Node | None]] = []
        for position, message in enumerate(self.messages):
            if message["role"] not in RESULT_ROLES:
                self._add_missing(waiting, built)
                waiting = missing.get(position, [])
            if position in answers:
                self.index[answers[position]] = len(built)
            if position in spans:
                self.index[spans[position].span.span_id] = len(built)
            built.append(message)
        self._add_missing(waiting, built)
        self.messages = built

    def _add_missing(self, calls: list[tuple[dict, Node | None]], built: list[Message]) -> None:
        for call, node in calls:
            if node is not None and node.reading.has_answered:
                if node.reading.tool_call_id:
                    call.setdefault("id", node.reading.tool_call_id)
                self.index[node.span.span_id] = len(built)
                built.append(reply(call, node.reading))

    def _add_calls(self, tools: list[Node], answers: dict[int, str], ends: dict[str, int]) -> None:
        """Calls before the answer that ends the messages; after it those that began once it was
        given, as far as the model call that gave it is known by its place.
        """
        last = len(self.messages) - 1
        if not self.messages or self.messages[last]["role"] != "assistant":
            last += 1
        end = ends.get(answers.get(last, ""))
        is_later = [end is not None and node.span.start_ns >= end for node in tools]
        before = [node for node, later in zip(tools, is_later, strict=True) if not later]
        after = [node for node, later in zip(tools, is_later, strict=True) if later]
        found = [message for node in before for message in _call_and_reply(node)]
        if found and last in answers:
            answers[last + len(found)] = answers.pop(last)
        self.messages[last:last] = found
        self.messages += [message for node in after for message in _call_and_reply(node)]


class _Called(Struct):
    """A call as it is in a message."""

    raw: dict

    @property
    def id(self) -> str:
        return self.raw.get("id") or ""

    @property
    def tool(self) -> str:
        return self.raw["function"]["name"]


def _calls(message: Message) -> list[_Called]:
    return [_Called(call) for call in message.get("tool_calls") or ()]


class _Tools:
    """Tool spans, each to be taken once: by the call's id, else of its name and with its arguments,
    else the first of its name that has no id. `functions`: spans of no known kind, which may be
    tools that their instrumentation does not call so.
    """

    def __init__(self, nodes: list[Node]) -> None:
        self.by_id: dict[str, deque[Node]] = {}
        self.nameless: dict[str, list[Node]] = {}  # without an id, by the tool's name
        self.named: dict[str, list[Node]] = {}
        self.functions: dict[str, list[Node]] = {}
        self.taken: set[int] = set()
        for node in nodes:
            identity, name = node.reading.tool_call_id, node.reading.tool_name
            if node.reading.kind == "other":
                for known in {node.span.name, label(node.span.attributes.get("name"))}:
                    self.functions.setdefault(known, []).append(node)
            elif node.reading.kind == "tool" and identity:
                self.by_id.setdefault(identity, deque()).append(node)
                self.named.setdefault(name, []).append(node)
            elif node.reading.kind == "tool":
                self.nameless.setdefault(name, []).append(node)

    def take(self, call: dict) -> Node | None:
        node = self._by_id(call.get("id") or "") or self._by_name(call)
        self.taken.add(id(node))
        return node

    def _by_id(self, identity: str) -> Node | None:
        same = self.by_id.get(identity, ())
        while same:
            if id(node := same.popleft()) not in self.taken:
                return node
        return None

    def _by_name(self, call: dict) -> Node | None:
        name = call["function"]["name"]
        nameless, named = self.nameless.get(name, []), self.named.get(name, [])
        while named and id(named[0]) in self.taken:
            named.pop(0)
        for same in (nameless if len(nameless) > 1 else [], named if not nameless else []):
            for place, node in enumerate(same[:MAX_ALIKE]):
                is_free = id(node) not in self.taken
                if is_free and _are_given(call, node.reading.tool_arguments):
                    return same.pop(place)
        return nameless.pop(0) if nameless else None

    def take_function(self, call: dict) -> Node | None:
        """The span of a function of the call's name that was given the call's arguments."""
        name = call["function"]["name"]
        same = self.functions.get(name, [])
        for place, node in enumerate(same[:MAX_ALIKE]):
            if _are_given(call, given_to(node.span)):
                read_as_tool(node.span, node.reading, name)
                return same.pop(place)
        return None


def _are_given(call: dict, arguments: object) -> bool:
    wanted, given = arguments_of(call["function"].get("arguments")), arguments_of(arguments)
    return wanted is not None and given is not None and normalise(given) == normalise(wanted)


def _turn_start(messages: list[Message]) -> int:
    """The place after the last request of a user."""
    users = (at for at in range(len(messages) - 1, -1, -1) if messages[at]["role"] == "user")
    return next(users, -1) + 1


def _ids_of_calls(message: Message) -> Iterator[str]:
    yield from (call.get("id") or "" for call in message.get("tool_calls") or ())


def _says(messages: list[Message], answer: str) -> bool:
    """Whether what the agent said since the last request has the answer in it, or the answer has
    what it said last.
    """
    turn = messages[_turn_start(messages) :]
    said = [letters(text_of(message)) for message in turn if message["role"] == "assistant"]
    calls = [
        letters(text(call["function"].get("arguments")))
        for message in turn
        for call in message.get("tool_calls") or ()
    ]
    wanted = letters(answer)
    return (
        not wanted
        or any(wanted in words for words in [*said, *calls])
        or (bool(said) and bool(said[-1]) and said[-1] in wanted)
    )


def _ends_with_piece(answer: str, said: Message) -> bool:
    """Whether a message is only the last piece of an answer, as it was streamed: it begins within
    or right after one of its words.
    """
    words = said.get("content")
    if not isinstance(words, str) or not answer.endswith(words) or not words.strip():
        return False
    before = answer[: -len(words)]
    return before[-1:].isalnum() and (words[0].isalnum() or words[0].isspace())


def _outermost(group: Group, known: bool) -> list[Node]:
    """The spans that may tell the whole run: agents from the outside in, then the roots if nothing
    is known.
    """
    agents = [node for node in group.nodes if node.reading.kind == "agent" and not node.in_tool]
    roots = [
        node
        for node in group.nodes
        if node.parent is None and node.reading.kind not in ("agent", "model")
    ]
    return agents if known else agents + roots


def _says_an_error(answer: list[Message], group: Group) -> bool:
    """Whether a raw output is the error that a span of the run ended with."""
    errors = (node.reading.error for node in group.nodes)
    return any(says_error(answer, error) for error in errors if error is not None)


def _paired(messages: list[Message]) -> list[Message]:
    """Calls and the replies after them whose ids nobody else names are pairs, in order: some name a
    call by its item and a reply by its call (OpenAI's responses have both). The reply's id is kept:
    it is what the provider takes.
    """
    called = {call.get("id") for message in messages for call in message.get("tool_calls") or ()}
    replied = {message.get("tool_call_id") for message in messages if message["role"] == "tool"}
    if not replied - called or not called - replied:
        return messages
    names: dict[tuple[int, int], str] = {}
    open_calls: list[tuple[int, int]] = []
    open_replies: list[str] = []
    for place, message in enumerate([*messages, {"role": "assistant"}]):
        if message["role"] == "tool":
            if (identity := message.get("tool_call_id")) and identity not in called:
                open_replies.append(identity)
            continue
        if open_replies and len(open_replies) == len(open_calls):
            names |= dict(zip(open_calls, open_replies, strict=True))
        if open_replies or message["role"] != "assistant":
            open_calls, open_replies = [], []
        open_calls += [
            (place, number)
            for number, call in enumerate(message.get("tool_calls") or ())
            if call.get("id") and call["id"] not in replied
        ]
    return [_renamed(message, place, names) for place, message in enumerate(messages)]


def _renamed(message: Message, place: int, names: dict[tuple[int, int], str]) -> Message:
    calls = message.get("tool_calls") or ()
    if not any((place, number) in names for number in range(len(calls))):
        return message
    renamed = [
        call | {"id": names[place, number]} if (place, number) in names else call
        for number, call in enumerate(calls)
    ]
    return message | {"tool_calls": renamed}


def _with_ids(messages: list[Message]) -> list[Message]:
    """Calls and replies without an id, as some leave it out (LiteLLM, Gemini, smolagents), get that
    of their counterpart, or one of their own. Messages are not changed.
    """
    if all(_is_named(message) for message in messages):
        return list(messages)
    named = list(messages)
    calls: dict[int, list[dict]] = {}
    for number, exchange in enumerate(exchanges(messages, _calls), 1):
        reply = exchange.result or {}
        identity = exchange.id or reply.get("tool_call_id") or (f"call_{number}" if reply else "")
        calls.setdefault(exchange.index, []).append(
            exchange.call.raw | ({"id": identity} if identity else {})
        )
        if exchange.result_index is not None and not reply.get("tool_call_id"):
            named[exchange.result_index] = reply | {"tool_call_id": identity}
    for place, made in calls.items():
        named[place] = messages[place] | {"tool_calls": made}
    return named


def _is_named(message: Message) -> bool:
    if message["role"] in RESULT_ROLES:
        return bool(message.get("tool_call_id"))
    return all(call.get("id") for call in message.get("tool_calls") or ())


def _has_content(message: Message) -> bool:
    """Whether a message has words or arguments: names and ids of calls may be all that is sent."""
    given = (call["function"].get("arguments") for call in message.get("tool_calls") or ())
    return bool(message.get("content")) or any(value not in ("", "{}", {}, None) for value in given)


def _has_calls(messages: list[Message]) -> bool:
    return any(message.get("tool_calls") for message in messages)


def _body(messages: list[Message]) -> list[Message]:
    lead = next(
        (i for i, message in enumerate(messages) if message["role"] not in PROMPT_ROLES),
        len(messages),
    )
    return messages[lead:]


def _together(given: list[Message], answer: list[Message]) -> list[Message]:
    """Input and output, where the output may repeat the input."""
    if not given or not answer:
        return given or answer
    return answer if _prints(answer[: len(given)]) == _prints(given) else given + answer


def _prints(messages: list[Message]) -> list[bytes]:
    return [print_of(message) for message in messages]


def _call_and_reply(node: Node) -> list[Message]:
    reading = node.reading
    call = call_of(reading, node.span.span_id)
    called: Message = {"role": "assistant", "content": None, "tool_calls": [call]}
    return [called, reply(call, reading)] if reading.has_answered else [called]
