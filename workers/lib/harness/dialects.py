"""The APIs in which an agent asks its model: each reads a request as a chat request, and writes the
answer, whole or as a stream. Light and pure.
"""

from __future__ import annotations

import time
import uuid
from typing import Any, Protocol

from workers.lib.harness.open_rollout import Answered
from workers.lib.messages_over_chat import MessagesWriter, error_body, read_messages
from workers.lib.openai_requests import ApiError, ChatRequest, read_chat
from workers.lib.responses_over_chat import ResponseWriter, read_responses


class Dialect(Protocol):
    """One request. `ignored`: what it asks for that only alters sampling, which is the run's.
    `last` is what ends a stream.
    """

    asked: ChatRequest
    ignored: list[str]
    last: bytes

    def whole(self, answered: Answered) -> dict[str, Any]: ...

    def events(self, answered: Answered) -> list[dict[str, Any]]: ...

    def failed(self, error: ApiError) -> list[dict[str, Any]]:
        """The events with which a stream says that it failed."""

    @staticmethod
    def error(error: ApiError) -> dict[str, Any]:
        """The body of an answer that is an error."""


class Chat:
    """OpenAI's chat completions."""

    last = b"data: [DONE]\n\n"

    def __init__(self, data: bytes, model: str) -> None:
        self.ignored: list[str] = []
        self.asked = read_chat(data, self.ignored)
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

    @staticmethod
    def error(error: ApiError) -> dict[str, Any]:
        return error.body()


class _Written:
    """An API whose answers are written from the pieces of a chat completion."""

    asked: ChatRequest
    writer: ResponseWriter | MessagesWriter
    last = b""

    def __init__(self) -> None:
        self.ignored: list[str] = []

    def whole(self, answered: Answered) -> dict[str, Any]:
        choice = {"message": answered.message, "finish_reason": answered.finish_reason}
        return self.writer.whole(choice, answered.usage)

    def events(self, answered: Answered) -> list[dict[str, Any]]:
        pieces = [_piece(delta, None) for delta in deltas_of(answered.message)]
        pieces.append(_piece({}, answered.finish_reason))
        rows = [row for piece in pieces for row in self.writer.add(piece)]
        return rows + self.writer.end(answered.usage)


class Responses(_Written):
    """OpenAI's Responses."""

    writer: ResponseWriter

    def __init__(self, data: bytes, model: str) -> None:
        super().__init__()
        given = read_responses(data, self.ignored)
        self.asked = given.chat()
        self.writer = ResponseWriter(given, id=_id("resp_"), model=model, created=int(time.time()))

    def failed(self, error: ApiError) -> list[dict[str, Any]]:
        return self.writer.fail(str(error))

    @staticmethod
    def error(error: ApiError) -> dict[str, Any]:
        return error.body()


class Messages(_Written):
    """Anthropic's Messages."""

    writer: MessagesWriter

    def __init__(self, data: bytes, model: str) -> None:
        super().__init__()
        given = read_messages(data, ignored=self.ignored)
        self.asked = given.chat()
        self.writer = MessagesWriter(given, id=_id("msg_"), model=given.model or model)

    def failed(self, error: ApiError) -> list[dict[str, Any]]:
        return [error_body(error)]

    @staticmethod
    def error(error: ApiError) -> dict[str, Any]:
        return error_body(error)


DIALECTS: dict[str, type[Chat | Responses | Messages]] = {
    "chat/completions": Chat,
    "responses": Responses,
    "messages": Messages,
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
