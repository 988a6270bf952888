"""A stream's bytes in transit: cut into whole events, ended with an error event, and scanned for usage. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from apps.serving.asked import CHAT
from workers.lib.streamed import END, ChatPieces, Events, ResponsePieces

COUNTED = re.compile(rb'"(?:prompt_tokens|completion_tokens|input_tokens|output_tokens)":\s*(\d{1,9})')
TAIL = 16 * 1024  # bytes at the end of an answer that are searched for its usage
# Quotes inside a JSON string are escaped, so nothing that a model writes can match these patterns.
COMPLETE = re.compile(
    rb'data:\s*\[DONE\]|"finish_reason":\s*"|"type":\s*"(?:response\.(?:completed|incomplete|failed)|error)"|"error":\s*[{"]'
)
ITEM, MESSAGE = "response.output_item.added", "message"


class Pieces:
    """A stream of server-sent events that arrives in arbitrary chunks. Yields whole events, so that anything sent after
    a break is a separate event.

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
        if self.strips and b'"choices":[]' in whole:
            events = re.split(rb"(?<=\n\n)", whole)
            whole = b"".join(one for one in events if not (b'"choices":[]' in one and b'"usage":{' in one))
        return whole


class Beginning:
    """Reads a stream until the model has written something: text, reasoning, a refusal or a tool call. The events before
    that only announce an answer, or are comments that keep the connection open.
    """

    def __init__(self, path: str) -> None:
        self.events, self.has_begun = Events(), False
        self.pieces: ChatPieces | ResponsePieces = ChatPieces() if path == CHAT else ResponsePieces()

    def feed(self, part: bytes) -> bool:
        """Whether to stop reading: the answer has begun, or the stream announced its end or is not JSON."""
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
    said = {"type": "error", "code": error["code"], "message": error["message"], "param": None, "sequence_number": 0}
    return b"event: error\ndata: " + msgspec.json.encode(said) + b"\n\n"


def tokens_counted(parts: Sequence[bytes]) -> int | None:
    """The usage that an answer reports, input and output tokens; None if it reports none."""
    tail = b"".join(parts[-8:])[-TAIL:]
    start = tail.rfind(b'"usage":')
    counts = [int(count) for count in COUNTED.findall(tail, start)] if start >= 0 else []
    return sum(counts) if counts else None
