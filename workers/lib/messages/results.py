"""Matches results to calls. Only the standard library."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from workers.lib.messages.calls import ToolCall, native_calls
from workers.lib.messages.content import RESULT_ROLES, Message


class HasId(Protocol):
    @property
    def id(self) -> str | None: ...

    @property
    def tool(self) -> str: ...


C = TypeVar("C", bound=HasId)


class OpenCalls(Generic[C]):
    """The calls of one assistant turn that have no result yet. Consecutive assistant messages are
    one turn; a result or a message of another role ends it, and the next assistant message begins a
    new one.

    Models may repeat ids across turns, and even within a turn, so a result belongs to the first
    open call with its id. If one of the two has no id: a result with an id belongs to the first
    call without one; a result without an id to the first open call, of its `name` if it has one.
    The time per call does not grow with the number of calls in a turn.
    """

    def __init__(self, calls: Iterable[C] = ()) -> None:
        self._calls = list(calls)
        self._closed: set[int] = set()
        self._queues: dict[
            tuple[str, str], deque[int]
        ] = {}  # {(field, value): positions of calls in order}
        self._has_ended = False

    def add(self, calls: Iterable[C]) -> None:
        """The calls of the next assistant message."""
        if self._has_ended:
            self._calls, self._closed, self._queues, self._has_ended = [], set(), {}, False
        self._calls += calls

    def end_turn(self) -> None:
        """A message of another role: results may still come, but further calls begin a new turn."""
        self._has_ended = True

    def take(self, result: Message) -> C | None:
        """The call that a message answers, which is closed by it; None if it answers none."""
        self._has_ended = True
        wanted, name = result.get("tool_call_id"), result.get("name")
        if not self._calls:
            return None
        if len(self._calls) == 1:  # as in most turns: there is nothing to choose from
            only = self._calls[0]
            return (
                None
                if isinstance(wanted, str) and wanted and only.id not in (wanted, "", None)
                else self._calls.pop()
            )
        if isinstance(wanted, str) and wanted:
            if ("ids", "") not in self._queues:
                self._index_ids()
            return self._first("id", wanted) or self._first("id", "")
        if ("any", "") not in self._queues:
            self._index_tools()
        found = self._first("tool", name) if isinstance(name, str) and name else None
        return found or self._first("any", "")

    def _index_ids(self) -> None:
        self._queues["ids", ""] = deque()
        for place, call in enumerate(self._calls):
            self._queues.setdefault(("id", call.id or ""), deque()).append(place)

    def _index_tools(self) -> None:
        self._queues["any", ""] = deque(range(len(self._calls)))
        for place, call in enumerate(self._calls):
            self._queues.setdefault(("tool", call.tool), deque()).append(place)

    def _first(self, what: str, value: str) -> C | None:
        queue = self._queues.get((what, value))
        while queue:
            place = queue.popleft()
            if place not in self._closed:
                self._closed.add(place)
                return self._calls[place]
        return None


@dataclass(slots=True)
class Exchange:
    """A call and the tool's answer; `index` and `result_index` are the positions of the two
    messages.
    """

    call: ToolCall
    index: int
    result: Message | None = None
    result_index: int | None = None

    @property
    def id(self) -> str:
        return self.call.id

    @property
    def tool(self) -> str:
        return self.call.tool


def exchanges(
    messages: Iterable[Message], read: Callable[[Message], list[Any]] = native_calls
) -> list[Exchange]:
    """The assistant's native calls with their results. A result belongs to the assistant's turn
    right before it.

    `read` returns the calls of a message: anything with an `id` and a `tool`.
    """
    made: list[Exchange] = []
    waiting: OpenCalls[Exchange] = OpenCalls()
    for index, message in enumerate(messages):
        role = message.get("role")
        if role == "assistant":
            turn = [Exchange(call, index) for call in read(message)]
            made += turn
            waiting.add(turn)
        elif role not in RESULT_ROLES:
            waiting.end_turn()
        elif (found := waiting.take(message)) is not None:
            found.result, found.result_index = message, index
    return made
