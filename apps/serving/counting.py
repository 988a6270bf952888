"""What the endpoint counts of a request (`flywheel.counters`), after its answer was sent."""

from __future__ import annotations

import time
from functools import lru_cache
from typing import Any

from apps.serving.asgi import Send
from apps.serving.usage import reported_usage
from flywheel.counters import (
    ENDPOINT_FIRST_SECONDS,
    ENDPOINT_OPEN,
    ENDPOINT_RECORDED,
    ENDPOINT_REQUESTS,
    ENDPOINT_SECONDS,
    ENDPOINT_TOKENS,
)

LEFT = "499"  # the client, before there was an answer
# Looking a label up takes as long as counting.
open_of = lru_cache(ENDPOINT_OPEN.labels)
requests_of = lru_cache(ENDPOINT_REQUESTS.labels)
recorded_of = lru_cache(ENDPOINT_RECORDED.labels)
seconds_of = lru_cache(ENDPOINT_SECONDS.labels)
first_seconds_of = lru_cache(ENDPOINT_FIRST_SECONDS.labels)
tokens_of = lru_cache(ENDPOINT_TOKENS.labels)


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
        open_of(channel).inc()

    def close(self, parts: list[bytes]) -> None:
        """`parts`: of the answer."""
        if self.is_open:
            open_of(self.channel).dec()
        if used := reported_usage(parts):
            tokens_of(self.channel, "input").inc(used.input_tokens or 0)
            tokens_of(self.channel, "output").inc(used.output_tokens or 0)

    def end(self) -> None:
        requests_of(self.channel, self.code).inc()
        seconds_of(self.channel).observe(time.perf_counter() - self._began)
        if self.has_begun:
            first_seconds_of(self.channel).observe(self._first_s)
