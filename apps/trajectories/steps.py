"""The steps of a run: model calls, tool calls, retrievals, guardrails and agent turns. Pure.

What reported steps (`metadata.steps`, from spans) say of time, tokens and errors is exact; calls,
arguments and replies are in the messages. A step of which only the messages know has no time.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from msgspec import Struct

from apps.trajectories.tool_errors import says_failed
from workers.lib import token_usage
from workers.lib.messages import (
    RESULT_ROLES,
    Message,
    OpenCalls,
    ToolCall,
    as_json,
    is_example,
    native_calls,
    text_of,
)

KINDS = {
    "model": "Model call",
    "tool": "Tool call",
    "retrieval": "Retrieval",
    "guardrail": "Guardrail",
    "agent": "Agent turn",
}
ALSO_CALLED = {"llm": "model", "generation": "model", "retriever": "retrieval"}
STATUSES = {
    "ok": "OK",
    "error": "Error",
    "interrupted": "Interrupted",
    "unanswered": "No reply",
}
MOST = 10_000  # steps of one run
MAX_ARGUMENTS, MAX_ERROR, MAX_NAME = 2_000, 500, 200  # characters; the run has the whole
MAX_MS, MAX_COUNT, MAX_COST = 1e11, 2_000_000_000, 1e6


class Step(Struct):
    """`key` names it within its run, also after the run was assembled again: its span's id, else
    the places of its message and of the call in that. `start_ms` is from the run's start.
    """

    key: str
    kind: str
    name: str
    status: str = "ok"
    model: str = ""
    arguments: str = ""
    error: str = ""
    start_ms: float | None = None
    duration_ms: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cost_usd: float | None = None
    message_index: int | None = None

    @property
    def total_tokens(self) -> int | None:
        known = [n for n in (self.input_tokens, self.output_tokens) if n is not None]
        return sum(known) if known else None


@dataclass(slots=True)
class Called:
    """A tool call in a message, and what is known of its reply."""

    call: ToolCall
    index: int
    place: int
    reply_index: int | None = None
    error: str | None = None

    @property
    def id(self) -> str:
        return self.call.id

    @property
    def tool(self) -> str:
        return self.call.tool


class Reader:
    """Reads the messages of a run part by part; `run` has the columns of its row by name."""

    def __init__(self, run: Mapping[str, Any], metadata: Any) -> None:
        self.run = run
        self.reported = reported_in(metadata)
        self.derives_models = not any(kind == "model" for kind, _ in self.reported)
        self.calls: list[Called] = []
        self.models: list[Step] = []
        self.waiting: OpenCalls[Called] = OpenCalls()
        self.at = 0

    def read(self, messages: Iterable[Message]) -> None:
        for message in messages:
            self._read(self.at, message)
            self.at += 1

    def _read(self, index: int, message: Message) -> None:
        role = message.get("role")
        if role in RESULT_ROLES:
            if called := self.waiting.take(message):
                called.reply_index, text = index, text_of(message)
                called.error = text if says_failed(message, text) else None
        elif role == "assistant" and not is_example(message):
            if self.derives_models and len(self.models) < MOST:
                self.models.append(_model_call(index, message, self.run["model"]))
            made = [Called(call, index, n) for n, call in enumerate(native_calls(message))]
            self.calls += made[: MOST - len(self.calls)]
            self.waiting.add(made)
        else:
            self.waiting.end_turn()
            if role == "assistant":
                self.waiting.add(())  # replies in an example answer none of the agent's calls

    def steps(self) -> list[Step]:
        """In the order in which they happened, as far as it is known."""
        spare = _Calls(self.calls)
        reported = [
            _reported(kind, step, spare.take(step) if kind == "tool" else None)
            for kind, step in sorted(self.reported, key=lambda item: _place(item[1]))
        ]
        derived = [*self.models, *(_tool_call(called) for called in spare.left())]
        if len(derived) == 1 and not reported and self.models:
            _complete(derived[0], self.run)
        if not reported:
            found = sorted(derived, key=lambda step: step.message_index or 0)
        else:
            found = _merged(reported, derived)
        keys = _distinct(step.key for step in found[:MOST])
        for step, key in zip(found, keys, strict=False):
            step.key = key
        return found[:MOST]


def reported_in(metadata: Any) -> list[tuple[str, dict[str, Any]]]:
    """(kind, step) of `metadata.steps`; any shape is tolerated."""
    given = metadata.get("steps") if isinstance(metadata, dict) else None
    found = []
    for step in given[:MOST] if isinstance(given, list) else ():
        if isinstance(step, dict) and isinstance(kind := step.get("kind"), str):
            kind = ALSO_CALLED.get(kind.lower(), kind.lower())
            if kind in KINDS and not step.get("repeats"):
                found.append((kind, step))
    return found


class _Calls:
    """The calls of the messages, each to be taken once: by the place of the reply, else the first
    of the name.
    """

    def __init__(self, calls: list[Called]) -> None:
        self.calls = calls
        self.by_reply: dict[int | None, Called] = {
            called.reply_index: called for called in calls if called.reply_index is not None
        }
        self.by_name: defaultdict[str, deque[Called]] = defaultdict(deque)
        for called in calls:
            self.by_name[called.tool].append(called)
        self.taken: set[int] = set()

    def take(self, step: Mapping[str, Any]) -> Called | None:
        called = self.by_reply.get(_count(step.get("message_index")))
        if called is None:
            same = self.by_name.get(_tool_of(step), deque())
            while same and id(same[0]) in self.taken:
                same.popleft()
            called = same[0] if same else None
        if called is None or id(called) in self.taken:
            return None
        self.taken.add(id(called))
        return called

    def left(self) -> Iterator[Called]:
        return (called for called in self.calls if id(called) not in self.taken)


def _reported(kind: str, step: Mapping[str, Any], called: Called | None) -> Step:
    error = step.get("error")
    said = "failed" if error is True else str(error) if error else ""
    if not said and called is not None:
        said = called.error or ""
    given = called.call.arguments if called else _text(step.get("arguments", step.get("input")))
    index = _count(step.get("message_index"))
    if index is None and called is not None:
        index = called.index if called.reply_index is None else called.reply_index
    name = called.tool if called else _tool_of(step) if kind == "tool" else ""
    return Step(
        key=str(step.get("span_id") or "")[:40],
        kind=kind,
        name=(name or str(step.get("agent") or step.get("name") or kind))[:MAX_NAME],
        status="error" if said else "interrupted" if step.get("interrupted") else "ok",
        model=str(step.get("model") or "")[:200] if kind == "model" else "",
        arguments=given[:MAX_ARGUMENTS] if kind in ("tool", "retrieval", "guardrail") else "",
        error=said[:MAX_ERROR],
        start_ms=_number(step.get("start_ms"), MAX_MS),
        duration_ms=_number(step.get("duration_ms"), MAX_MS),
        input_tokens=_count(step.get("input_tokens")),
        output_tokens=_count(step.get("output_tokens")),
        cost_usd=_number(step.get("cost_usd"), MAX_COST),
        message_index=index,
    )


def _tool_call(called: Called) -> Step:
    return Step(
        key=f"{called.index}.{called.place}",
        kind="tool",
        name=called.tool[:MAX_NAME] or "(no name)",
        status="unanswered"
        if called.reply_index is None
        else "error"
        if called.error is not None
        else "ok",
        arguments=called.call.arguments[:MAX_ARGUMENTS],
        error=(called.error or "")[:MAX_ERROR],
        message_index=called.index,
    )


def _model_call(index: int, message: Message, model: str) -> Step:
    named = message.get("model")
    model = named if isinstance(named, str) and named else model
    step = Step(key=str(index), kind="model", name=model or "model", model=model[:200])
    step.message_index, step.name = index, step.name[:MAX_NAME]
    if isinstance(usage := message.get("usage"), dict):
        counted = token_usage.parse(usage)
        step.input_tokens, step.output_tokens = counted.input_tokens, counted.output_tokens
        step.cost_usd = counted.cost_usd
    return step


def _complete(step: Step, run: Mapping[str, Any]) -> None:
    """What a run of nothing but one model call says of itself, it says of that call."""
    step.start_ms = 0.0
    step.duration_ms = run["latency_ms"]
    for name in ("input_tokens", "output_tokens", "cost_usd"):
        if getattr(step, name) is None:
            setattr(step, name, run[name])


def _merged(reported: list[Step], derived: list[Step]) -> list[Step]:
    """Calls of which no span tells come after the model call that made them."""
    after: defaultdict[int, list[Step]] = defaultdict(list)
    places = sorted(
        (step.message_index, place)
        for place, step in enumerate(reported)
        if step.kind == "model" and step.message_index is not None
    )
    for step in derived:
        before = bisect_right(places, (step.message_index or 0, len(reported)))
        after[places[before - 1][1] if before else len(reported) - 1].append(step)
    return [one for place, step in enumerate(reported) for one in (step, *after[place])]


def _distinct(keys: Iterable[str]) -> Iterator[str]:
    seen: set[str] = set()
    for place, key in enumerate(keys):
        name = key if key and key not in seen else f"#{place}"
        seen.add(name)
        yield name


def _tool_of(step: Mapping[str, Any]) -> str:
    return str(step.get("tool") or step.get("name") or "").removeprefix("execute_tool ").strip()


def _place(step: Mapping[str, Any]) -> float:
    start = _number(step.get("start_ms"), MAX_MS)
    return math.inf if start is None else start


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else as_json(value)


def _number(value: Any, most: float) -> float | None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if 0 <= value <= most else None


def _count(value: Any) -> int | None:
    number = _number(value, MAX_COUNT)
    return None if number is None else int(number)
