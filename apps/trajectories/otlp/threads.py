"""Which model call continues which: threads of a conversation, found by what was said.

Messages are compared by a rolling digest that leaves out leading system messages (a hand-over
changes them), ids, and how arguments are spaced, so that an answer and its repetition in the next
request are the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import blake2b
from itertools import takewhile

import msgspec

from apps.trajectories.otlp.conventions import Reading
from apps.trajectories.otlp.conventions.base import UNIQUE
from apps.trajectories.otlp.spans import Span
from apps.trajectories.values import structured, text
from workers.lib.messages import PROMPT_ROLES, RESULT_ROLES, Message

RECENT = 8  # threads that are looked through for a call whose history was cut


def print_of(message: Message) -> bytes:
    """What makes a message the same as another."""
    content = message.get("content")
    if isinstance(content, list):
        kept = [block for block in content if block.get("type") != "reasoning"]
        said = "\n".join(
            text(block.get("text", block) if block.get("type") == "text" else block)
            for block in kept
        )
    else:
        said = content or ""
    role = "tool" if message["role"] == "function" else message["role"]
    calls = [
        (call["function"]["name"], structured(call["function"]["arguments"]))
        for call in message.get("tool_calls") or ()
    ]
    return msgspec.json.encode((role, said.strip(), calls), order="sorted")


def chain(start: bytes, prints: list[bytes]) -> list[bytes]:
    """Digests of the first 0, 1, … n messages."""
    digests = [start]
    for said in prints:
        digests.append(blake2b(digests[-1] + said, digest_size=16).digest())
    return digests


class Call:
    """One model call: its messages, where its body begins, and the digests of its history."""

    def __init__(
        self,
        span: Span,
        reading: Reading,
        nested: bool,
        prints: dict[int, bytes],
        agent: str = "",
    ) -> None:
        """`prints` keeps the prints of messages by their id: histories repeat the same objects (see
        `messages_of`). `agent`: the name of the agent that it is a call of.
        """
        self.span, self.reading, self.nested = span, reading, nested
        self.agent = reading.agent_name or agent
        self.lead = 0
        for message in reading.input:
            if message["role"] not in PROMPT_ROLES:
                break
            self.lead += 1
        for message in (*reading.input[self.lead :], *reading.output):
            if id(message) not in prints:
                prints[id(message)] = print_of(message)
        self.prints = [prints[id(message)] for message in reading.input[self.lead :]]
        self.before = chain(b"", self.prints)
        self.output = [prints[id(message)] for message in reading.output]
        self.after = chain(self.before[-1], self.output)[-1]
        self.ids = _call_ids(reading.output)
        self.message_index: int | None = None  # of its answer, in its thread

    @property
    def spoke(self) -> bool:
        """Whether the history up to and with this call holds a turn of the model."""
        return bool(self.output) or any(m["role"] == "assistant" for m in self.reading.input)

    def ids_at(self, known: int) -> tuple[str, ...]:
        """The ids of the tool calls in the last turn of the model among the first `known` messages
        of the body.
        """
        return _call_ids(self.reading.input[self.lead : self.lead + known][-8:])

    @property
    def lacks_answer(self) -> bool:
        """Whether the model answered, and the span does not say what."""
        reading = self.reading
        has_counted = bool(reading.usage.output_tokens) and reading.error is None
        return has_counted and bool(reading.input) and not reading.output

    def is_answered_in(self, later: Call, known: int) -> bool:
        """Whether a later request, of which this one is the first `known` messages, says what the
        model answered.
        """
        said = later.reading.input[later.lead + known :][:1]
        return self.lacks_answer and bool(said) and said[0]["role"] == "assistant"

    @property
    def leaves(self) -> list[str]:
        """What a later call can name to go on with this one, where the server keeps the history."""
        calls = [call.get("id") for m in self.reading.output for call in m.get("tool_calls") or ()]
        answers = dict.fromkeys((self.reading.response_id, self.reading.answer_id))
        return [
            *self._called(calls),
            *(f"response:{identity}" for identity in answers if identity),
            *self._conversation(),
        ]

    @property
    def needs(self) -> list[str]:
        """What this call names of the one that it goes on with."""
        ids = (self.reading.previous_id, self.reading.conversation_id)
        replies = takewhile(lambda m: m["role"] in RESULT_ROLES, self.reading.input[self.lead :])
        return [
            *(f"response:{identity}" for identity in dict.fromkeys(ids) if identity),
            *self._called(message.get("tool_call_id") for message in replies),
            *self._conversation(),
        ]

    @property
    def lacks_history(self) -> bool:
        """Whether the call goes on with something that it does not hold."""
        body = self.reading.input[self.lead :]
        answers_a_call = bool(body) and body[0]["role"] in RESULT_ROLES
        is_whole = any(message["role"] == "assistant" for message in body)
        return answers_a_call or bool(self.reading.previous_id and not is_whole)

    def _called(self, ids: Iterable[str | None]) -> Iterator[str]:
        """Ids of calls. Short ones come again in other runs: they count within a session."""
        talk = self.reading.conversation_id or self.reading.session_id
        for identity in ids:
            if identity and (talk or len(identity) >= UNIQUE):
                is_unique = len(identity) >= UNIQUE
                yield f"call:{identity}" if is_unique else f"call:{identity}:{talk}"

    def _conversation(self) -> list[str]:
        named = self.reading.server_conversation
        return [f"conversation:{named}"] if named else []

    def anchor(self, said: bytes) -> int | None:
        """The number of body messages up to and with the last one that says this."""
        for index in range(len(self.prints) - 1, -1, -1):
            if self.prints[index] == said:
                return index + 1
        return None


class Thread:
    """A conversation as it grew from call to call; `messages` is all of it."""

    def __init__(self, call: Call) -> None:
        self.messages: list[Message] = list(call.reading.input[: call.lead])
        self.calls: list[Call] = []
        self.extend(call, 0)

    @property
    def last(self) -> Call:
        return self.calls[-1]

    def extend(self, call: Call, known: int) -> None:
        """Adds a call of whose body the first `known` messages are already here; of a history that
        was cut before, all.
        """
        if (
            known
            and any(earlier.reading.is_cut for earlier in self.calls)
            and not call.reading.is_cut
        ):
            self.messages = list(call.reading.input[: call.lead + known])
            for earlier in self.calls:
                place = call.anchor(earlier.output[-1]) if earlier.output else None
                earlier.message_index = call.lead + place - 1 if place else None
        if known and self.last.is_answered_in(call, known):
            self.last.message_index = len(self.messages)
        self.messages += call.reading.input[call.lead + known :]
        if call.reading.output:
            call.message_index = len(self.messages)
        self.messages += call.reading.output
        self.calls.append(call)


def threads_of(calls: list[Call]) -> list[Thread]:
    """The threads of one run's calls, given in the order of time."""
    threads: list[Thread] = []
    tails: dict[bytes, Thread] = {}
    for call in calls:
        thread, known = _continued(call, threads, tails)
        if thread is None:
            threads.append(thread := Thread(call))
        else:
            thread.extend(call, known)
        tails[call.after] = thread
    return threads


def _continued(
    call: Call, threads: list[Thread], tails: dict[bytes, Thread]
) -> tuple[Thread | None, int]:
    for known in range(len(call.before) - 1, 0, -1):
        thread = tails.get(call.before[known])
        if thread is None or thread.last.after != call.before[known]:
            continue
        if thread.last.ids in ((), call.ids_at(known)):
            return thread, known
    for orphan in reversed(_orphans(call.reading.input[call.lead :])):
        if (thread := _answered_by(call, orphan, threads)) is not None:
            return thread, orphan
    needs = {state for state in call.needs if not state.startswith("call:")}
    for thread in reversed(threads[-RECENT:]):
        if needs.intersection(thread.last.leaves):
            return thread, 0
    for thread in reversed(threads[-RECENT:]):
        if thread.last.output and (known := call.anchor(thread.last.output[-1])):
            return thread, known
    if call.reading.is_compacted:
        for thread in reversed(threads[-RECENT:]):
            if thread.last.reading.agent_name == call.reading.agent_name:
                return thread, 0
    return None, 0


def _answered_by(call: Call, orphan: int, threads: list[Thread]) -> Thread | None:
    """The thread whose open calls are answered by a reply that has no call before it in its own
    history.

    The history leaves out the model's turn: the server keeps it, or the framework has dropped it.
    So what comes before the reply is either nothing or all of what the thread's last call was asked
    with.
    """
    reply = call.reading.input[call.lead + orphan]
    for thread in reversed(threads[-RECENT:]):
        last = thread.last
        known_ids = {
            called.get("id")
            for message in last.reading.output
            for called in message.get("tool_calls") or ()
        }
        if not known_ids or (orphan and last.before[-1] != call.before[orphan]):
            continue
        if reply.get("tool_call_id") in known_ids or (orphan and "tool_call_id" not in reply):
            return thread
    return None


def _orphans(body: list[Message]) -> list[int]:
    """The places of replies to calls that the body does not hold."""
    if not any(message["role"] in RESULT_ROLES for message in body):
        return []
    open_ids: list[str | None] = []
    places = []
    for place, message in enumerate(body):
        open_ids += [called.get("id") for called in message.get("tool_calls") or ()]
        if message["role"] not in RESULT_ROLES:
            continue
        identity = message.get("tool_call_id")
        answered = (
            identity
            if identity in open_ids
            else None
            if None in open_ids or identity
            else next(iter(open_ids), "")
        )
        if answered in open_ids:
            open_ids.remove(answered)
        else:
            places.append(place)
    return places


def _call_ids(messages: list[Message]) -> tuple[str, ...]:
    """The ids of the tool calls in the last turn of the model."""
    for message in reversed(messages):
        if message["role"] == "assistant":
            return tuple(call["id"] for call in message.get("tool_calls") or () if "id" in call)
    return ()
