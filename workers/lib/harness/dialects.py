"""The APIs in which an agent asks its model: each reads a request as a chat request, and writes the
answer, whole or as a stream. Light and pure.
"""

from __future__ import annotations

import time
import uuid
from typing import Any, Protocol

from workers.lib.harness.open_rollout import Answered
from workers.lib.openai_requests import ApiError, ChatRequest, read_chat
from workers.lib.responses_over_chat import ResponseWriter, read_responses


class Dialect(Protocol):
    """One request. `last` is what ends a stream."""

    asked: ChatRequest
    last: bytes

    def whole(self, answered: Answered) -> dict[str, Any]: ...

    def events(self, answered: Answered) -> list[dict[str, Any]]: ...

    def failed(self, error: ApiError) -> list[dict[str, Any]]:
        """The events with which a stream says that it failed."""


class Chat:
    """OpenAI's chat completions."""

    last = b"data: [DONE]\n\n"

    def __init__(self, data: bytes, model: str) -> None:
        self.asked = read_chat(data)
        self.about = {"id": _id("chatcmpl-"), "created": int(time.time()), "model": model}

    def whole(self, answered: Answered) -> dict[str, Any]:
        choice = {
            "index": 0,
            "message": answered.message,
            "logprobs": None,
            "finish_reason": answered.finish_reason,
        }
        return self.about | {
            "object": "chat.completion",
            "choices": [choice],
            "usage": answered.usage,
        }

    def events(self, answered: Answered) -> list[dict[str, Any]]:
        deltas = [{"role": "assistant", "content": ""}, *deltas_of(answered.message)]
        rows = [self._chunk([_piece(delta, None)]) for delta in deltas]
        rows.append(self._chunk([_piece({}, answered.finish_reason)]))
        if self.asked.with_usage:
            rows.append(self._chunk([]) | {"usage": answered.usage})
        return rows

    def _chunk(self, choices: list[dict]) -> dict[str, Any]:
        return self.about | {"object": "chat.completion.chunk", "choices": choices}

    def failed(self, error: ApiError) -> list[dict[str, Any]]:
        return [error.body()]


class Responses:
    """OpenAI's Responses."""

    last = b""

    def __init__(self, data: bytes, model: str) -> None:
        given = read_responses(data)
        self.asked = given.chat()
        self.writer = ResponseWriter(given, id=_id("resp_"), model=model, created=int(time.time()))

    def whole(self, answered: Answered) -> dict[str, Any]:
        return self.writer.whole(
            {"message": answered.message, "finish_reason": answered.finish_reason}, answered.usage
        )

    def events(self, answered: Answered) -> list[dict[str, Any]]:
        pieces = [_piece(delta, None) for delta in deltas_of(answered.message)]
        pieces.append(_piece({}, answered.finish_reason))
        rows = [row for piece in pieces for row in self.writer.add(piece)]
        return rows + self.writer.end(answered.usage)

    def failed(self, error: ApiError) -> list[dict[str, Any]]:
        return self.writer.fail(str(error))


DIALECTS: dict[str, type[Chat] | type[Responses]] = {
    "chat/completions": Chat,
    "responses": Responses,
}


def deltas_of(message: dict) -> list[dict[str, Any]]:
    """A whole message as the pieces of a stream."""
    words = [{"content": message["content"]}] if message.get("content") else []
    calls = [
        {"tool_calls": [{"index": place} | call]}
        for place, call in enumerate(message.get("tool_calls", ()))
    ]
    return words + calls


def _piece(delta: dict, finish: str | None) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}


def _id(prefix: str) -> str:
    return f"{prefix}{uuid.uuid4().hex[:16]}"
