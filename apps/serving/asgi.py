"""The parts of ASGI that the endpoint needs: reading a body, sending a whole response, noticing
that the client disconnected.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from apps.core.attempts import address_behind
from apps.serving.answers import Headers, Refusal

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


def headers_of(scope: dict[str, Any]) -> dict[str, str]:
    return {name.decode("latin-1"): _text(value) for name, value in scope["headers"]}


def address_in(scope: dict[str, Any]) -> str:
    """Where a request comes from."""
    lines = [_text(value) for name, value in scope["headers"] if name == b"x-forwarded-for"]
    remote, *_ = scope.get("client") or ("",)
    return address_behind(",".join(lines), remote)


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def require_method(method: str, wanted: str) -> None:
    """Raises Refusal."""
    if method != wanted:
        raise Refusal(
            405, f"This takes {wanted}, not {method}.", headers=[(b"allow", wanted.encode())]
        )


async def read_body(headers: dict[str, str], receive: Receive, most: int) -> bytes | None:
    """None if the client disconnected. Raises Refusal."""
    too_large = Refusal(413, f"The body is larger than {most >> 20} MiB.", code="request_too_large")
    given = headers.get("content-length", "")
    if given.isdigit() and int(given) > most:
        raise too_large
    if headers.get("content-encoding", "identity") != "identity":
        raise Refusal(415, "Send the body without a Content-Encoding.")
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > most:
            raise too_large
        if not message.get("more_body"):
            return b"".join(parts)


async def disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def send_whole(send: Send, status: int, headers: Headers, body: bytes) -> None:
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": body, "more_body": False})
