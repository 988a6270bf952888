"""Requests and answers of an ASGI application: JSON and server-sent events. Light: no torch."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from workers.lib.openai_requests import ApiError

MOST_BYTES = 16 * 1024 * 1024
MOST_READ = 1024 * 1024 * 1024  # of a body that is too large, so that its client reads the answer
JSON = [(b"content-type", b"application/json")]
EVENTS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


class Gone(Exception):
    """The client has disconnected."""


async def events(send: Send, rows: list[dict[str, Any]]) -> None:
    if rows:
        await send(
            {"type": "http.response.body", "body": b"".join(map(event, rows)), "more_body": True}
        )


def event(row: dict[str, Any]) -> bytes:
    """Without spaces, as vLLM writes it. Events of the Responses and Messages APIs have
    a name."""
    name = f"event: {row['type']}\n" if "type" in row else ""
    return f"{name}data: {json.dumps(row, separators=(',', ':'))}\n\n".encode()


async def answer(send: Send, status: int, value: Any, retry_after_s: int = 0) -> None:
    headers = [*JSON, *([(b"retry-after", str(retry_after_s).encode())] if retry_after_s else [])]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(value).encode()})


async def body_of(receive: Receive) -> bytes:
    """Raises ApiError for a body that is too large, once it has been sent: clients that are still
    sending do not read an answer.
    """
    parts, size = list[bytes](), 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Gone
        part, is_last = message.get("body", b""), not message.get("more_body")
        size += len(part)
        if size > MOST_BYTES:
            parts = []
            if is_last or size > MOST_READ:
                raise ApiError(413, f"The body is larger than {MOST_BYTES // 2**20} MiB.")
        elif is_last:
            return b"".join([*parts, part])
        else:
            parts.append(part)


async def left(receive: Receive) -> None:
    """Returns when the client disconnects."""
    while (await receive())["type"] != "http.disconnect":
        pass
