"""HTTP/1.1 requests whose answers are passed on while they arrive, over persistent connections;
used by the endpoint to call servers.

The guards are those of `outgoing`, and addresses are resolved as in `posts`: it connects to the
very address that was checked, follows no redirect, and uses no proxy. A server is read no faster
than its answer is consumed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import cast

import httpx2
from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from workers.lib.addresses import PrivateNetworks
from workers.lib.outgoing import Bounds
from workers.lib.posts import KEPT_S, MAX_HEAD, NoAnswer, Posts, TooLate

HIGH_WATER = 256 * 1024  # buffered bytes of an answer, above which reading pauses


class Stale(NoAnswer):
    """A kept connection that the server had closed: the request was not read, so it may be sent
    again.
    """


class Relayed(asyncio.Protocol):
    """One connection, and the answer that arrives on it. After `Relay.begin` it has `status` and
    `headers` (lower-case names; repeated ones are repeated); `part` then returns the body piece by
    piece. Close it at the end.
    """

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.transport: asyncio.Transport | None = None
        self.pool: list[Relayed] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.waker: asyncio.Future[None] | None = None
        self.idle_since, self.used = 0.0, 0
        self._begin(0.0)

    def _begin(self, idle_s: float) -> None:
        self.parser = HttpResponseParser(self)
        self.status, self.headers = 0, list[tuple[bytes, bytes]]()
        self.parts, self.waiting = deque[bytes](), 0
        self.received, self.idle_s, self.allowed_s, self.last = 0, idle_s, 0.0, 0.0
        self.error: NoAnswer | None = None
        self.has_head = self.ended = self.keeps = self.paused = False

    # Called by the endpoint

    async def ask(self, data: bytes, first_s: float, idle_s: float) -> None:
        """Send the request; return once the head has arrived, within `first_s`. Raises NoAnswer."""
        assert self.transport is not None
        self._begin(idle_s)
        self.used += 1
        self.allowed_s, self.last = first_s, self.loop.time()
        self._check_time()
        self.transport.write(data)
        while not self.has_head:
            await self._wait()

    async def part(self) -> bytes:
        """The next piece; b"" at the end. Raises NoAnswer if the answer breaks off, or nothing
        arrives for `idle_s`.
        """
        while not self.parts:
            if self.ended:
                return b""
            await self._wait()
        found = self.parts.popleft() if len(self.parts) == 1 else b"".join(self.parts)
        self.parts.clear()
        self.waiting = 0
        if self.paused and self.transport is not None:
            self.paused, self.last = False, self.loop.time()
            self.transport.resume_reading()
        return found

    def close(self) -> None:
        """Return the connection to its pool after a complete answer; otherwise close it, so that
        the server notices.
        """
        self._stop_timer()
        if self.ended and self.keeps and self.pool is not None and self.usable:
            self.pool.append(self)
        elif self.transport is not None:
            self.transport.abort()

    @property
    def usable(self) -> bool:
        assert self.transport is not None
        return self.loop.time() - self.idle_since < KEPT_S and not self.transport.is_closing()

    async def _wait(self) -> None:
        if self.error is not None:
            raise self.error
        self.waker = self.loop.create_future()
        try:
            await self.waker
        finally:
            self.waker = None
        if self.error is not None and not self.parts:
            raise self.error

    def _wake(self) -> None:
        if self.waker is not None and not self.waker.done():
            self.waker.set_result(None)

    def _fail(self, error: NoAnswer) -> None:
        self._stop_timer()
        if not self.ended and self.error is None:
            self.error = error
            self._wake()
        if self.transport is not None:
            self.transport.abort()

    def _check_time(self) -> None:
        """One timer per answer instead of one per piece."""
        left = self.last + self.allowed_s - self.loop.time()
        if left <= 0 and not self.paused:
            what = "nothing more came" if self.has_head else "no answer began"
            self._fail(TooLate(f"{what} within {self.allowed_s:g} s"))
        elif self.allowed_s:
            self.timer = self.loop.call_later(max(left, 0.05), self._check_time)

    def _stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    # Called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.last = self.loop.time()
        if not self.has_head:
            self.received += len(data)
        try:
            self.parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade):
            self._fail(NoAnswer("it sent what is not HTTP"))
        if self.received > MAX_HEAD and not self.has_head:
            self._fail(NoAnswer("it sent headers without an end"))

    def connection_lost(self, error: Exception | None) -> None:
        self._stop_timer()
        if self.ended:
            return
        framed = any(name in (b"content-length", b"transfer-encoding") for name, _ in self.headers)
        if self.has_head and not framed and error is None:
            self._end()  # the end of the connection is the end of the answer
        elif self.used > 1 and not self.received:
            self._fail(Stale("it had closed the connection"))
        else:
            self._fail(
                NoAnswer(
                    f"it ended the connection {'within its' if self.has_head else 'without an'}"
                    " answer"
                )
            )

    # Called by the parser

    def on_message_begin(self) -> None:
        if self.ended or not self.used:  # unsolicited data
            self.keeps = False
            self._fail(NoAnswer("it answered what nobody asked"))
        elif not self.has_head:
            self.headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self.status, self.keeps = self.parser.get_status_code(), self.parser.should_keep_alive()
        if self.status >= 200:
            self.has_head, self.allowed_s = True, self.idle_s
            self._stop_timer()
            self._check_time()
            self._wake()

    def on_body(self, part: bytes) -> None:
        self.parts.append(part)
        self.waiting += len(part)
        if self.waiting > HIGH_WATER and not self.paused and self.transport is not None:
            self.paused = True
            self.transport.pause_reading()
        self._wake()

    def on_message_complete(self) -> None:
        if self.has_head:  # otherwise only an informational response has ended
            self._end()

    def _end(self) -> None:
        self.ended, self.idle_since = True, self.loop.time()
        self._stop_timer()
        self._wake()


class Relay(Posts):
    """Requests to one server, from one event loop. `url` comes from `check_url` and is the server's
    /v1; `headers` are sent with each request.
    """

    def __init__(
        self,
        url: httpx2.URL,
        *,
        allow_private: PrivateNetworks,
        connect_s: float,
        headers: dict[str, str],
    ) -> None:
        super().__init__(
            url, allow_private=allow_private, bounds=Bounds(0, connect_s), headers=headers
        )
        self.url, self.lines = url, self.head.partition("\r\n")[2]
        self.idle: list[Relayed] = []
        self.targets: dict[str, str] = {}

    def _target(self, path: str) -> str:
        """The server's path with ours appended; its query (`?api-version=…`) stays at the end."""
        if path not in self.targets:
            own, mark, query = self.url.raw_path.partition(b"?")
            self.targets[path] = (own.rstrip(b"/") + path.encode() + mark + query).decode()
        return self.targets[path]

    async def begin(
        self,
        path: str,
        body: bytes,
        headers: list[tuple[str, str]],
        *,
        first_s: float,
        idle_s: float,
    ) -> Relayed:
        """The answer, once its head has arrived. Raises RefusedAddress, NoAnswer."""
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers)
        head = (
            f"POST {self._target(path)} HTTP/1.1\r\n{self.lines}{lines}Content-Length:"
            f" {len(body)}\r\n\r\n"
        )
        while True:
            answer = self._idle() or cast(Relayed, await self._connect())
            answer.pool = self.idle
            try:
                await answer.ask(head.encode() + body, first_s, idle_s)
            except Stale:
                continue
            except BaseException:
                answer.close()
                raise
            return answer

    def protocol(self) -> asyncio.Protocol:
        return Relayed()

    def _idle(self) -> Relayed | None:
        """The most recently used connection that is still open."""
        while self.idle:
            if (found := self.idle.pop()).usable:
                return found
            found.close()
        return None

    async def aclose(self) -> None:
        for connection in self.idle:
            connection.keeps = False
            connection.close()
        self.idle.clear()
        await super().aclose()
