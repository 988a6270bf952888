"""The endpoint's own responses: errors in OpenAI's format, and the list of models. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from apps.serving.routes import Route

Headers = list[tuple[bytes, bytes]]
JSON: tuple[bytes, bytes] = (b"content-type", b"application/json")
MOST_NAMED = 20
# Headers of a single connection (RFC 9110 7.6.1), and those that this server sets itself.
HOP_BY_HOP = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"content-length",
        b"date",
        b"server",
        b"set-cookie",
        b"alt-svc",
        b"strict-transport-security",
    )
)
# The only request headers that are forwarded to a server: no cookies, and never the endpoint's API
# key.
SENT_ON = (
    "accept",
    "user-agent",
    "x-request-id",
    "traceparent",
    "tracestate",
    "idempotency-key",
    "openai-beta",
    "x-client-request-id",
)


class Refusal(Exception):
    """A response of the endpoint itself instead of a server's."""

    def __init__(
        self,
        status: int,
        sentence: str,
        *,
        code: str | None = None,
        param: str | None = None,
        kind: str = "",
        headers: Headers | None = None,
    ) -> None:
        super().__init__(sentence)
        self.status, self.headers = status, headers or []
        self.kind = kind or ("invalid_request_error" if status < 500 else "server_error")
        self.code, self.param = code, param

    @property
    def body(self) -> bytes:
        return msgspec.json.encode({"error": self.error})

    @property
    def error(self) -> dict[str, Any]:
        return {"message": str(self), "type": self.kind, "param": self.param, "code": self.code}


def not_served(why: str) -> Refusal:
    return Refusal(404, why, code="model_not_found", param="model")


def unknown_model(model: str, there: dict[str, Route], closed: dict[str, str]) -> Refusal:
    """`closed`: {channel: why it is not served}."""
    if why := closed.get(model):
        return not_served(why)
    names = sorted(there)
    said = ", ".join(names[:MOST_NAMED]) + (
        f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    )
    have = (
        f"The channels of this project are: {said}."
        if names
        else "No channel of this project has a version yet."
    )
    return Refusal(
        404,
        f"The model `{model[:200]}` does not exist. {have}",
        code="model_not_found",
        param="model",
    )


def as_model(route: Route, project: str) -> dict[str, Any]:
    return {
        "id": route.channel,
        "object": "model",
        "created": route.created,
        "owned_by": project,
        "version": route.lanes[0].version,
        "served": bool(route.lanes[0].backends),
    }


def passed_on(headers: Headers) -> Headers:
    """A server's headers as they are passed on to the client."""
    named = {
        part.strip().lower()
        for name, value in headers
        if name == b"connection"
        for part in value.split(b",")
    }
    return [
        (name, value) for name, value in headers if name not in HOP_BY_HOP and name not in named
    ]
