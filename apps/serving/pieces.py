"""A stream's bytes in transit: cut into whole events, and ended with an error event. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from apps.serving.asked import CHAT
from workers.lib.streamed import END, ChatPieces, Events, ResponsePieces

# Quotes inside a JSON string are escaped, so nothing that a model writes can match these patterns.
COMPLETE = re.compile(
    rb'data:\s*\[DONE\]|"finish_reason":\s*"|"type":\s*"(?:response\.(?:completed|incomplete|failed)|error)"|"error":\s*[{"]'
)
NO_CHOICE = re.compile(rb'"choices"\s*:\s*\[\s*\]')
EVENT_END = re.compile(rb"(?<=\n\n)|(?<=\r\n\r\n)")
ITEM, MESSAGE = "response.output_item.added", "message"


class Pieces:
    """A stream of server-sent events that arrives in arbitrary chunks. Yields whole events, so that
    anything sent after a break is a separate event.

    `strips`: leave out the event that only reports usage.
    """

    def __init__(self, strips: bool) -> None:
        self.strips, self.rest, self.ended = strips, b"", False

    def feed(self, part: bytes) -> bytes:
        data = self.rest + part if self.rest else part
        end = max(data.rfind(b"\n\n") + 2, data.rfind(b"\r\n\r\n") + 4) if b"\n" in data else 0
        end = end if end > 3 or data.startswith(b"\n\n") else 0
        whole, self.rest = data[:end], data[end:]
        if whole and not self.ended:
            self.ended = b"data: [DONE]" in whole[-64:] or b'"type":"response.completed"' in whole
        if self.strips and NO_CHOICE.search(whole):
            events = EVENT_END.split(whole)
            whole = b"".join(event for event in events if not _only_counts(event))
        return whole


class Beginning:
    """Reads a stream until the model has written something: text, reasoning, a refusal or a tool
    call. The events before that only announce an answer, or are comments that keep the connection
    open.
    """

    def __init__(self, path: str) -> None:
        self.events, self.has_begun = Events(), False
        self.pieces: ChatPieces | ResponsePieces = (
            ChatPieces() if path == CHAT else ResponsePieces()
        )

    def feed(self, part: bytes) -> bool:
        """Whether to stop reading: the answer has begun, or the stream announced its end or is not
        JSON.
        """
        for data in self.events.feed(part):
            try:
                if data == END or self._add(json.loads(data)):
                    return True
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                return True
        return False

    def _add(self, event: dict[str, Any]) -> bool:
        over = self.pieces.add(event)
        # such as a search, or reasoning that is not shown
        other_item = event.get("type") == ITEM and event["item"].get("type") != MESSAGE
        self.has_begun = not over and (self.pieces.size > 0 or other_item)
        return over or self.has_begun


def is_complete(parts: Sequence[bytes]) -> bool:
    """Whether a stream has announced its end, successfully or with an error."""
    return bool(COMPLETE.search(b"".join(parts)))


def error_event(path: str, error: dict[str, Any]) -> bytes:
    """An error in the middle of a stream, as clients of either API read it."""
    if path == CHAT:
        return b"data: " + msgspec.json.encode({"error": error}) + b"\n\n"
    said = {
        "type": "error",
        "code": error["code"],
        "message": error["message"],
        "param": None,
        "sequence_number": 0,
    }
    return b"event: error\ndata: " + msgspec.json.encode(said) + b"\n\n"


def _only_counts(event: bytes) -> bool:
    """Whether a chunk has no choice, only the usage."""
    if not NO_CHOICE.search(event):
        return False
    for data in Events().feed(event):
        try:
            chunk = json.loads(data)
        except (ValueError, RecursionError):
            return False
        return chunk.get("choices") == [] and isinstance(chunk.get("usage"), dict)
    return False
