"""The text of an answer while its tokens arrive: cut at stop strings, and parsed as tool calls if
tools were given. Light: no torch.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import Any

from workers.lib.messages import calls_in_text, to_native, without_reasoning

HALF = "\ufffd"  # stands for a character whose other bytes have not arrived yet
TAG = "<tool_call>"
MAY_BE_CALLS = ("{", "[", "`", "<")  # beginnings of an answer that may turn out to be calls


class TokenText:
    """The text of tokens, piece by piece; all pieces joined are the text of all tokens."""

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        self.decode, self.ids = decode, list[int]()
        self.begin = self.read = (
            # tokens from `begin` are decoded again, since a token's text depends on the one before
            0
        )

    def add(self, token: int) -> str:
        self.ids.append(token)
        return self._new(last=False)

    def rest(self) -> str:
        return self._new(last=True)

    def _new(self, last: bool) -> str:
        whole, before = (
            self.decode(self.ids[self.begin :]),
            self.decode(self.ids[self.begin : self.read]),
        )
        if not last and whole.endswith(HALF):
            return ""
        self.begin, self.read = self.read, len(self.ids)
        return whole[len(before) :]


class StopText:
    """Holds back what may be the beginning of a stop string. `stopped`: the one that was found, or
    None.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self.stops, self.held = stops, ""
        self.stopped: str | None = None

    def add(self, text: str) -> str:
        self.held += text
        found = [(at, stop) for stop in self.stops if (at := self.held.find(stop)) >= 0]
        if found:
            at, self.stopped = min(found)
            text, self.held = self.held[:at], ""
            return text
        keep = max((begun_at_end(self.held, stop) for stop in self.stops), default=0)
        text, self.held = self.held[: len(self.held) - keep], self.held[len(self.held) - keep :]
        return text

    def rest(self) -> str:
        text, self.held = self.held, ""
        return text


def begun_at_end(text: str, word: str) -> int:
    """How many characters at the end of the text are a prefix of the word."""
    return next(
        (n for n in range(min(len(word) - 1, len(text)), 0, -1) if text.endswith(word[:n])), 0
    )


class CallText:
    """Holds back what may be tool calls while an answer is streamed."""

    def __init__(self) -> None:
        self.text, self.sent = "", 0

    def add(self, text: str) -> str:
        """Add text; return what is certainly not part of a call."""
        self.text += text
        begun = self.text.lstrip()
        if not begun or begun.startswith(MAY_BE_CALLS):
            return ""
        tag = self.text.find(TAG)
        upto = tag if tag >= 0 else len(self.text) - begun_at_end(self.text, TAG)
        new, self.sent = self.text[self.sent : upto], max(self.sent, upto)
        return new

    def rest(self, parallel: bool = True) -> tuple[str, list[dict]]:
        """The text that was held back, as (text, calls)."""
        content, calls = read_calls(self.text, parallel)
        return content[self.sent :], calls


def read_calls(text: str, parallel: bool = True) -> tuple[str, list[dict]]:
    """(words, calls in OpenAI's form) of an answer to which tools were given. An answer with a call
    that cannot be parsed stays text, as in process, so that it is scored as it was written.
    """
    calls = calls_in_text(text)
    if not calls or any(call.problem or call.args is None for call in calls):
        return text, []
    native = [
        to_native(call.tool, call.args or {}, f"call_{uuid.uuid4().hex[:24]}") for call in calls
    ]
    return _words_before(text), native if parallel else native[:1]


def _words_before(text: str) -> str:
    if TAG in text:
        return text[: text.find(TAG)]
    shown = without_reasoning(text)  # has the same length, with spaces in place of the reasoning
    return text[: len(shown) - len(shown.lstrip())].strip()


def message_of(text: str, with_calls: bool, parallel: bool = True) -> dict[str, Any]:
    """An assistant message."""
    words, calls = read_calls(text, parallel) if with_calls else (text, [])
    message: dict[str, Any] = {
        "role": "assistant",
        "content": words if words.strip() or not calls else None,
    }
    return message | ({"tool_calls": calls} if calls else {})
