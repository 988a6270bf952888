"""A trajectory as the rules see it: read once, in one pass over the messages. Pure."""

from __future__ import annotations

import hashlib
import re
import threading
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import msgspec

from apps.failures.rules.fits import Fits, fits_of
from apps.failures.rules.protocols import AGENT, PERSON, PROGRAM, Speech, speech_of
from apps.failures.rules.reply_forms import NO_FORMS, Forms, Heard
from apps.trajectories.arguments import Checker
from apps.trajectories.tool_errors import says_failed
from workers.lib.messages import (
    OpenCalls,
    ToolCall,
    functions_of,
    is_example,
    is_prompt,
    native_calls,
    text_of,
)


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


CACHED_TOOL_SETS = 512
MAX_REPLY = 20_000  # characters of a tool's reply that are parsed as JSON
MAX_VALUES = 60  # scalars per call or record
READ_VERBS = _set(
    "get list search find lookup look query read retrieve fetch check view show describe count"
    " browse inspect think calculate calculator compute validate verify preview estimate download"
    " scroll is has"
)
WRITE_VERBS = _set(
    "create add insert book make update edit modify change set write put patch upsert delete remove"
    " cancel drop purge send post publish reply forward submit pay charge refund transfer move"
    " rename archive close assign share invite approve reject grant revoke order buy purchase"
    " schedule reschedule reserve upload deploy restart exchange return replace swap"
)
PEOPLE = _set("human humans person agent agents operator representative support supervisor")
_PARTS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")


@dataclass(slots=True)
class Call:
    """One tool call; `args` is None if they are not a JSON object; `index` is its message,
    `reply_index` the reply's.
    """

    index: int
    id: str | None
    tool: str
    args: dict | None
    raw: str
    reply: str | None = None
    reply_index: int | None = None
    error: bool = False

    @property
    def worked(self) -> bool:
        """Whether a reply arrived that is not an error."""
        return self.reply is not None and not self.error


@dataclass(slots=True)
class Offer:
    """The tools an agent was given, ready to check calls against."""

    checker: Checker
    fits: dict[str, Fits | None]
    names: frozenset[str]
    dangerous: frozenset[str]

    def problems(self, call: Call) -> list[str]:
        """What is wrong with the arguments of a call, according to its tool's schema."""
        fits = self.fits.get(call.tool)
        return (
            []
            if fits is not None and fits(call.args)
            else self.checker.problems(call.tool, call.args)
        )


@dataclass
class Run:
    """A trajectory as the rules see it. `users` and `answers` are (index, text); prompt examples
    are in neither.
    """

    messages: list[dict]
    offer: Offer
    status: str
    reason: str
    label: str
    interventions: list[dict]
    metadata: dict
    rules: Sequence[Any] = ()  # the confirmed `policy.Rule`s that apply to it
    forms: Forms = NO_FORMS  # of the replies of its project's tools
    calls: list[Call] = field(default_factory=list)
    users: list[tuple[int, str]] = field(default_factory=list)
    answers: list[tuple[int, str]] = field(default_factory=list)
    assistants: list[int] = field(default_factory=list)
    speech: Speech = field(default_factory=lambda: Speech([]))
    _records: dict[int | None, Any] = field(default_factory=dict)

    @property
    def failed(self) -> bool:
        return self.status == "failure"

    @property
    def last_assistant(self) -> int | None:
        return self.assistants[-1] if self.assistants else None

    def assistant_at_or_before(self, index: int | None) -> int | None:
        """The agent's last step up to a message (of the whole run if that is None)."""
        place = len(self.assistants) if index is None else bisect_right(self.assistants, index)
        return self.assistants[place - 1] if place else None

    def assistant_after(self, index: int) -> int | None:
        """The agent's next step after a message."""
        place = bisect_right(self.assistants, index)
        return self.assistants[place] if place < len(self.assistants) else None

    def user_before(self, index: int) -> int | None:
        """The user's last message before another."""
        place = bisect_left(self.users, (index, ""))
        return self.users[place - 1][0] if place else None

    def author(self, index: int) -> str:
        """The name that a message carries; empty if it has none."""
        name = self.messages[index].get("name")
        return name if isinstance(name, str) else ""

    def words(self, index: int) -> str:
        return text_of(self.messages[index])

    def tool_of(self, call: Call) -> str:
        """The tool as forms of replies know it: all that were not offered are one."""
        return call.tool if call.tool in self.offer.names or not self.offer.names else ""

    def breaks_its_contract(self, call: Call) -> bool:
        """Whether a call does not parse, names a tool that was not offered, or does not match the
        tool's schema.
        """
        if call.args is None or not self.offer.names:
            return call.args is None
        return call.tool not in self.offer.names or bool(self.offer.problems(call))

    def accepted(self, call: Call) -> bool:
        """Whether a tool took a call that breaks its contract: it answered as it answers others."""
        return call.worked and not self.forms.refused(call, self.tool_of(call))

    def heard(self, run: Any = None) -> list[Heard]:
        """Its calls for `reply_forms.forms_in`, without those whose reply is known to say that
        they failed.
        """
        return [
            Heard(call, self.tool_of(call), not self.breaks_its_contract(call), run)
            for call in self.calls
            if not call.error
        ]

    @cached_property
    def answer_texts(self) -> dict[int, str]:
        return dict(self.answers)

    @cached_property
    def system(self) -> str:
        return system_of(self.messages)

    def record(self, call: Call) -> Any:
        """A call's reply as JSON; None if it is not JSON."""
        if call.reply_index not in self._records:
            self._records[call.reply_index] = _json(call.reply or "")
        return self._records[call.reply_index]


def system_messages(messages: list[dict]) -> list[int]:
    """Indices of the messages that are the system prompt."""
    return [at for at, item in enumerate(messages[:3]) if is_prompt(item)]


def system_of(messages: list[dict]) -> str:
    """The system prompt of a run; empty if there is none."""
    return "\n".join(text_of(messages[at]) for at in system_messages(messages))


def read(trajectory: dict) -> Run:
    """From {messages, tools, outcome_status, outcome_reason, outcome_label?, interventions,
    metadata, rules?, forms?}.
    """
    run = Run(
        messages=trajectory["messages"],
        offer=offer_of(trajectory.get("tools")),
        status=trajectory.get("outcome_status") or "unknown",
        reason=trajectory.get("outcome_reason") or "",
        label=trajectory.get("outcome_label") or "",
        interventions=[
            item for item in trajectory.get("interventions") or [] if isinstance(item, dict)
        ],
        metadata=trajectory.get("metadata") or {},
        rules=trajectory.get("rules") or (),
        forms=trajectory.get("forms") or NO_FORMS,
    )
    run.speech = speech_of(run.messages)
    waiting: OpenCalls[Call] = OpenCalls()
    for index, message in enumerate(run.messages):
        _read_message(run, index, message, waiting)
    return run


def _read_message(run: Run, index: int, message: dict, waiting: OpenCalls[Call]) -> None:
    """Reads one message; `waiting` are the calls that wait for their reply."""
    speaker = run.speech.speakers[index]
    if speaker == PROGRAM:
        if call := waiting.take(message):
            call.reply, call.reply_index = run.speech.reply(text_of(message)), index
            refused = call.index in run.speech.refused
            call.error = (
                refused
                or says_failed(message, call.reply)
                or run.forms.say_failed(call, run.tool_of(call))
            )
    elif speaker == AGENT and not is_example(message):
        waiting.add(_step(run, index, message))
    else:
        waiting.end_turn()
        if speaker == AGENT:
            waiting.add(())  # replies in an example answer none of the agent's calls
        elif speaker == PERSON and not is_example(message):
            run.users.append((index, text_of(message)))


def _step(run: Run, index: int, message: dict) -> list[Call]:
    """Reads a message of the agent; returns its calls."""
    words, in_text = text_of(message), run.speech.calls.get(index)
    found = native_calls(message) or ([in_text] if in_text else [])
    made = [_call(call, index) for call in found]
    if index in run.speech.refused:
        made = [Call(index, None, "", None, words)]
    run.assistants.append(index)
    run.calls += made
    if words and not in_text and index not in run.speech.refused:
        run.answers.append((index, words))
    return made


def _call(call: ToolCall, index: int) -> Call:
    return Call(index, call.id or None, call.tool, call.args, call.arguments)


def _json(text: str) -> Any:
    if len(text) > MAX_REPLY or text[:1] not in ("{", "["):
        return None
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return None


def scalars(value: Any) -> list[tuple[str, Any]]:
    """(name of the field, value) of the scalars in JSON, at most `MAX_VALUES`; items of a list have
    the list's name.
    """
    left, found = [("", value)], []
    while left and len(found) < MAX_VALUES:
        at, item = left.pop()
        if type(item) is dict:
            left += reversed(item.items())
        elif type(item) is list:
            left += [(at, inner) for inner in reversed(item)]
        else:
            found.append((at, item))
    return found


_offers = threading.local()


def offer_of(tools: Any) -> Offer:
    """The tools, prepared for checking. Cached by content, per thread: building it costs more than
    30 checks.
    """
    tools = tools if isinstance(tools, list) else []
    try:
        key = hashlib.blake2b(msgspec.json.encode(tools), digest_size=16).digest()
    except (TypeError, ValueError, RecursionError, OverflowError):
        return _offer(tools)
    kept: OrderedDict[bytes, Offer] = _offers.__dict__.setdefault("kept", OrderedDict())
    if (found := kept.get(key)) is None:
        found = kept[key] = _offer(tools)
        if len(kept) > CACHED_TOOL_SETS:
            kept.popitem(last=False)
    return found


def _offer(tools: list) -> Offer:
    functions = dict(functions_of(tools))
    checker = Checker(tools)
    fits = {name: fits_of(function.get("parameters")) for name, function in functions.items()}
    return Offer(checker, fits, frozenset(functions), frozenset(checker.dangerous))


@lru_cache(maxsize=4096)
def name_parts(tool: str) -> tuple[str, ...]:
    """The words of a tool's name: of `crm.getUser_details`, crm, get, user, details."""
    return tuple(part.lower() for part in _PARTS.findall(tool[:200]))


@lru_cache(maxsize=4096)
def kind_of(tool: str) -> str:
    """What a tool does, from the first verb in its name: "write", "read" or "other"; who hands over
    to people changes nothing.
    """
    parts = name_parts(tool)
    if not PEOPLE.isdisjoint(parts):
        return "other"
    first = next((word for word in parts if word in WRITE_VERBS or word in READ_VERBS), "")
    return "write" if first in WRITE_VERBS else "read" if first else "other"
