"""Counts and limits the requests to a model's server at the HTTP level. Light: no torch, no
library.

The library's own counts leave out its first question and all retries, so every HTTP request of this
process is counted instead.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Any

BYTES_PER_TOKEN = 3  # fewer than real text has, so that estimates are rather too high
MOST_COUNTED = 2**31
UNSENT = (
    "ConnectError",
    "ConnectTimeout",
    "PoolTimeout",
)  # errors of httpx before a request is sent


class LimitReached(Exception):
    """A request was not sent because it could have exceeded the limit."""


@dataclass
class Answer:
    """The response to one request; without a status if there was none."""

    status: int = 0
    content: bytes = b""


class Meter:
    """Tokens and calls of one job. A request only begins if its longest answer still fits, together
    with those in flight.
    """

    def __init__(
        self, most_tokens: int, answer_tokens: int, tell: Callable[[dict[str, int]], None]
    ) -> None:
        self.most_tokens, self.answer_tokens, self.tell = most_tokens, answer_tokens, tell
        self.used = {"calls": 0, "input_tokens": 0, "output_tokens": 0, "estimated": 0}
        self.held = 0  # maximum cost of the requests in flight
        self.lock = Lock()

    @property
    def left(self) -> int:
        return self.most_tokens - self.used["input_tokens"] - self.used["output_tokens"] - self.held

    def worst(self, size: int) -> int:
        """The maximum cost of a request with this many bytes."""
        return tokens_of(size) + self.answer_tokens

    @contextmanager
    def call(self, body: bytes) -> Iterator[Answer]:
        """Wraps one request; the caller fills in the answer. Raises LimitReached."""
        worst, answer = self.worst(len(body)), Answer()
        with self.lock:
            if worst > self.left:
                raise LimitReached
            self.held += worst
        # Used if the response is lost, since the request may have been answered.
        cost = (tokens_of(len(body)), self.answer_tokens, True)
        try:
            yield answer
            cost = cost_of(body, answer)
        except Exception as error:
            if type(error).__name__ in UNSENT:
                cost = (0, 0, False)
            raise
        finally:
            self._settle(worst, *cost)

    def _settle(self, worst: int, given: int, made: int, estimated: bool) -> None:
        with self.lock:
            self.held -= worst
            self.used["calls"] += 1
            self.used["input_tokens"] += given
            self.used["output_tokens"] += made
            self.used["estimated"] += estimated
            self.tell(dict(self.used))


def tokens_of(size: int) -> int:
    """An estimate of the tokens in so many bytes of text, rather too high."""
    return size // BYTES_PER_TOKEN + 1


def cost_of(body: bytes, answer: Answer) -> tuple[int, int, bool]:
    """(input tokens, output tokens, whether estimated) as the server reports them. A refusal costs
    nothing.
    """
    if answer.status >= 400:
        return 0, 0, False
    counts = _usage(answer.content)
    given, made = counts.get("prompt_tokens"), counts.get("completion_tokens")
    if _is_count(given) and _is_count(made) and given and made:  # who does not count reports 0
        return given, made, False
    return tokens_of(len(body)), tokens_of(len(answer.content)), True


def _usage(content: bytes) -> dict:
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    usage = body.get("usage") if isinstance(body, dict) else None
    return usage if isinstance(usage, dict) else {}


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MOST_COUNTED


def install(meter: Meter) -> None:
    """From now on every HTTP request of the library is counted by the meter."""
    import httpx  # the library's HTTP client; only installed in its virtual environment

    send, send_async = (
        httpx.HTTPTransport.handle_request,
        httpx.AsyncHTTPTransport.handle_async_request,
    )

    def handle_request(self: httpx.HTTPTransport, request: httpx.Request) -> httpx.Response:
        with meter.call(request.read()) as answer:
            response = send(self, request)
            answer.content, answer.status = response.read(), response.status_code
        return response

    async def handle_async_request(
        self: httpx.AsyncHTTPTransport, request: httpx.Request
    ) -> httpx.Response:
        with meter.call(await request.aread()) as answer:
            response = await send_async(self, request)
            answer.content, answer.status = await response.aread(), response.status_code
        return response

    httpx.HTTPTransport.handle_request = handle_request  # type: ignore[method-assign]
    httpx.AsyncHTTPTransport.handle_async_request = handle_async_request  # type: ignore[method-assign]
