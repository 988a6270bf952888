"""What the endpoint counts of a request (`flywheel.counters`), after its answer was sent."""

from __future__ import annotations

import time
from typing import Any

from apps.serving.asgi import Send
from apps.serving.usage import reported_usage
from flywheel.counters import (
    ENDPOINT_FIRST_SECONDS,
    ENDPOINT_OPEN,
    ENDPOINT_REQUESTS,
    ENDPOINT_SECONDS,
    ENDPOINT_TOKENS,
)

LEFT = "499"  # the client, before there was an answer


class Counted:
    """One request. `send` passes on what is sent. `channel` is "" until it is known to exist."""

    def __init__(self, send: Send) -> None:
        self._send, self._began = send, time.perf_counter()
        self._first_s = 0.0
        self.code, self.channel, self.is_open = LEFT, "", False

    @property
    def has_begun(self) -> bool:
        return self.code != LEFT

    async def send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.code = str(message["status"])
            self._first_s = time.perf_counter() - self._began
        await self._send(message)

    def open(self, channel: str) -> None:
        self.channel, self.is_open = channel, True
        ENDPOINT_OPEN.labels(channel).inc()

    def close(self, parts: list[bytes]) -> None:
        """`parts`: of the answer."""
        if self.is_open:
            ENDPOINT_OPEN.labels(self.channel).dec()
        if used := reported_usage(parts):
            ENDPOINT_TOKENS.labels(self.channel, "input").inc(used.input_tokens or 0)
            ENDPOINT_TOKENS.labels(self.channel, "output").inc(used.output_tokens or 0)

    def end(self) -> None:
        ENDPOINT_REQUESTS.labels(self.channel, self.code).inc()
        ENDPOINT_SECONDS.labels(self.channel).observe(time.perf_counter() - self._began)
        if self.has_begun:
            ENDPOINT_FIRST_SECONDS.labels(self.channel).observe(self._first_s)
