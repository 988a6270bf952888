"""Reads answers streamed as server-sent events: assembles the answer that the server would have
sent as a whole, and shows it while it is generated. Pure; input is untrusted. Light: no torch.

The events are OpenAI's “Chat completion chunk” and the Responses API's streaming events.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from workers.lib.messages import (
    Message,
    as_json,
    content_text,
    json_of,
    reasoning_of,
    without_reasoning,
)
from workers.lib.outgoing import TooMuch

END = "[DONE]"
CALLS = ("tool_calls", "function_call")
CALL_SIZE = 64  # characters that a call counts for, in addition to its own


@dataclass
class Written:
    """An answer's content so far, with reasoning separate. A call is {"name", "arguments"}, both as
    far as they have arrived.
    """

    text: str = ""
    thought: str = ""
    calls: list[dict[str, str]] = field(default_factory=list)

    def apart(self) -> Written:
        """The same, with reasoning that the model wrote into its text between <think> and </think>
        separated.
        """
        text = without_reasoning(self.text)
        if self.thought or text == self.text:
            return self
        thought = "".join(
            was if was != now else " "
            for was, now in zip(self.text, text, strict=True)
            if now == " "
        )
        return Written(text.strip(), thought.strip(), self.calls)

    def changed(self, change: Callable[[str], str]) -> Written:
        """The same, with each of its texts changed."""
        calls = [{name: change(value) for name, value in call.items()} for call in self.calls]
        return Written(change(self.text), change(self.thought), calls)


Show = Callable[[Callable[[], Written]], None]


class Events:
    """The data of server-sent events, from bytes in arbitrary chunks. Names, ids and comments of
    events are dropped. As in the HTML standard, lines end with CRLF, LF or CR, and a byte order
    mark may come first.
    """

    def __init__(self) -> None:
        self.rest, self.lines, self.waiting = b"", list[bytes](), 0
        self.begun = self.after_cr = False

    @property
    def size(self) -> int:
        """Bytes of the unfinished event."""
        return len(self.rest) + self.waiting

    def feed(self, part: bytes) -> Iterator[str]:
        if not part:
            return
        whole = part.removeprefix(b"\n") if self.after_cr else part  # the second half of a CRLF
        self.after_cr = part.endswith(b"\r")
        *lines, self.rest = (self.rest + whole.replace(b"\r\n", b"\n").replace(b"\r", b"\n")).split(
            b"\n"
        )
        for line in lines:
            if not self.begun:
                self.begun, line = True, line.removeprefix(codecs.BOM_UTF8)
            if line.startswith(b"data:"):
                self.lines.append(line[5:].removeprefix(b" "))
                self.waiting += len(line)
            elif not line and self.lines:
                data, self.lines, self.waiting = b"\n".join(self.lines), [], 0
                yield data.decode(errors="replace")


class _Pieces:
    """The common part of both protocols: texts in pieces, which are only joined when somebody
    looks. `size` is in characters.
    """

    def __init__(self) -> None:
        self.text, self.thought, self.calls = list[str](), list[str](), dict[Any, _Call]()
        self.size = 0

    def put(self, pieces: list[str], text: str) -> None:
        """Raises TypeError if it is not text."""
        if not isinstance(text, str):
            raise TypeError("a piece must be text")
        self.size += len(text)
        if text:
            pieces.append(text)

    def new_call(self, place: Any) -> _Call:
        self.size += CALL_SIZE
        self.calls[place] = call = _Call()
        return call

    @property
    def written(self) -> Written:
        calls = [
            {"name": "".join(call.name), "arguments": "".join(call.arguments)}
            for call in self.calls.values()
        ]
        return Written("".join(self.text), "".join(self.thought), calls)


@dataclass
class _Call:
    id: str = ""
    name: list[str] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)

    def goes_on(self, name: str) -> bool:
        """Whether a piece with this name is a part of the call: its own arguments have begun and
        are not complete.
        """
        return (
            [name] == self.name
            and bool(self.arguments)
            and json_of("".join(self.arguments)) is None
        )


class ChatPieces(_Pieces):
    """Assembles a chat completion from its chunks."""

    def __init__(self) -> None:
        super().__init__()
        self.refusal = list[str]()
        self.latest: dict[Any, _Call] = {}  # the last call at each index
        self.named_calls: dict[tuple[Any, Any], _Call] = {}  # by index and id
        self.finish_reason: str | None = None
        self.named: dict[str, Any] = {}
        self.error: Any = None
        self.usage: Any = None
        self.begun = False

    def add(self, chunk: dict[str, Any]) -> bool:
        """Add a chunk; return whether the answer is complete. Raises any error of accessing JSON
        with another structure.
        """
        self.error = chunk.get("error")
        self.named |= {name: chunk[name] for name in ("id", "model") if name in chunk}
        self.usage = chunk.get("usage") or self.usage
        for choice in chunk.get("choices") or ():
            if choice.get("index") in (None, 0):
                self.begun = True
                self._add(choice.get("delta") or {})
                if whole := choice.get("message"):
                    self._replace(whole)
                self.finish_reason = choice.get("finish_reason") or self.finish_reason
        return bool(self.error)

    def _add(self, delta: Message) -> None:
        self.put(self.text, content_text(delta.get("content"), ""))
        self.put(self.thought, reasoning_of(delta))
        self.put(self.refusal, delta.get("refusal") or "")
        for piece in delta.get("tool_calls") or ():
            self._add_call(piece)
        if older := delta.get("function_call"):
            self._add_call({"index": 0, "function": older})

    def _replace(self, message: Message) -> None:
        """Take a whole message, which some servers send at the end or with each chunk: what it says
        is all of that part of the answer.
        """
        wholes = (
            (self.text, content_text(message.get("content"), "")),
            (self.thought, reasoning_of(message)),
            (self.refusal, message.get("refusal") or ""),
        )
        for pieces, whole in wholes:
            if whole:
                self.size -= sum(map(len, pieces))
                pieces.clear()
                self.put(pieces, whole)
        if calls := {name: message.get(name) for name in CALLS if message.get(name)}:
            written = (
                text for call in self.calls.values() for text in (*call.name, *call.arguments)
            )
            self.size -= sum(map(len, written)) + CALL_SIZE * len(self.calls)
            for known in (self.calls, self.latest, self.named_calls):
                known.clear()
            self._add(calls)

    def _add_call(self, piece: dict[str, Any]) -> None:
        """Add to the call at the index that the piece names. Some servers name none, or the same
        for all, and mark a new call by an id and a name of its own; others send another id with
        each piece of one call.
        """
        given, of, place = piece.get("function") or {}, piece.get("id"), piece.get("index")
        name = given.get("name") or ""
        latest = (
            next(reversed(self.calls.values()), None) if place is None else self.latest.get(place)
        )
        call = self.named_calls.get((place, of), latest) if of else latest
        if call is None or (name and of and call.id and of != call.id and not call.goes_on(name)):
            call = self.new_call((place, len(self.calls)))
        call.id = call.id or of or ""
        self.latest[place] = call
        if of:
            self.named_calls[place, of] = call
        if [name] != call.name:  # some repeat the whole name each time
            self.put(call.name, name)
        arguments = given.get("arguments")
        self.put(
            call.arguments,
            arguments if isinstance(arguments, str) else as_json(arguments) if arguments else "",
        )

    def whole(self, ended: bool) -> dict[str, Any] | None:
        """The answer; None if the stream was cut off. `ended`: the server has marked its end."""
        if self.error:
            return {"error": self.error}
        if not (self.begun and (ended or self.finish_reason)):
            return None
        made, refusal = self.written, "".join(self.refusal)
        message: Message = {"role": "assistant", "content": made.text or None}
        message |= {"reasoning_content": made.thought} if made.thought else {}
        message |= {"refusal": refusal} if refusal else {}
        calls = [
            {"id": call.id, "type": "function", "function": shown}
            for call, shown in zip(self.calls.values(), made.calls, strict=True)
        ]
        message |= {"tool_calls": calls} if calls else {}
        choice = {"index": 0, "message": message, "finish_reason": self.finish_reason}
        return self.named | {"choices": [choice], "usage": self.usage}


class ResponsePieces(_Pieces):
    """Collects an answer of the Responses API, whose last event contains all of it; where it leaves
    out the output, the items that came whole before it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.response: dict[str, Any] | None = None
        self.items: dict[int, dict[str, Any]] = {}  # that are whole, by their place

    def add(self, event: dict[str, Any]) -> bool:
        """Add an event; return whether the answer is complete. Raises any error of accessing JSON
        with another structure.
        """
        kind, delta = event.get("type"), event.get("delta") or ""
        if kind in ("response.output_text.delta", "response.refusal.delta"):
            self.put(self.text, delta)
        elif kind in ("response.reasoning_summary_text.delta", "response.reasoning_text.delta"):
            self.put(self.thought, delta)
        elif kind == "response.output_item.added" and event["item"].get("type") == "function_call":
            self.put(self._call(event).name, event["item"].get("name") or "")
        elif kind == "response.function_call_arguments.delta":
            self.put(self._call(event).arguments, delta)
        elif kind == "response.output_item.done":
            self.size += len(as_json(event["item"]))
            self.items[event["output_index"]] = event["item"]
        elif kind in ("response.completed", "response.incomplete", "response.failed"):
            self.response = dict(event["response"])
            if self.items and not self.response.get("output"):
                self.response["output"] = [item for _, item in sorted(self.items.items())]
        elif kind == "error" or event.get("error"):
            self.response = {"status": "failed", "error": event.get("error") or event}
        return self.response is not None

    def _call(self, event: dict[str, Any]) -> _Call:
        place = event.get("output_index")
        return self.calls.get(place) or self.new_call(place)

    def whole(self, ended: bool) -> dict[str, Any] | None:
        """The answer; None if the stream was cut off."""
        return self.response


class StreamReader:
    """Reads the body of one answer while it arrives. After each part, `show` is called with a
    function that returns the content so far.
    """

    def __init__(self, protocol: str, max_size: int, show: Show) -> None:
        self.pieces: ChatPieces | ResponsePieces = (
            ResponsePieces() if protocol == "responses" else ChatPieces()
        )
        self.events, self.max_size, self.show = Events(), max_size, show
        self.begun = self.ended = self.is_odd = False

    def feed(self, part: bytes) -> bool:
        """Add bytes; return whether the answer is complete. Raises TooMuch."""
        self.begun = True
        try:
            for data in self.events.feed(part):
                self.ended = data == END or self.pieces.add(json.loads(data))
                if self.ended:
                    break
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            self.is_odd = True
        if self.pieces.size + self.events.size > self.max_size:
            raise TooMuch(f"more than {self.max_size / 2**20:g} MiB", "size")
        self.show(lambda: self.pieces.written)
        return self.ended or self.is_odd

    def whole(self) -> dict[str, Any] | None:
        """The answer as it would have come without streaming; {} if it is not an answer, None if it
        was cut off.
        """
        return {} if self.is_odd else self.pieces.whole(self.ended)
