"""HTTP/1.1 POST requests to one server over persistent connections, used for questions to models.
Light: no torch.

The guards are those of `outgoing`: it connects to the very address that was checked, follows no
redirect, uses no proxy, and cuts off an answer at its limits. Answers are parsed by llhttp, in C:
with an HTTP library in Python, requests took half of a rollout's time (docs/decisions/models.md).
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from dataclasses import dataclass, field
from typing import Protocol, cast

import httpcore2
import httpx2
from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from workers.lib.addresses import PrivateNetworks, address_in, check_address
from workers.lib.outgoing import Bounds, TooMuch, allowed, tls, unknown_host

MAX_HEAD, FRAME = (
    64 * 1024,
    16,
)  # bytes of overhead: before the body, and per byte of it (chunks of one byte have 6)
CONNECT_S = 10.0  # per address of a name
# maximum bytes of a stream per byte of the answer in it, since each token is sent in a separate
# event
STREAMED = 64
KEPT_S = 30.0  # a connection that was idle for longer may have been dropped without notice


class NoAnswer(OSError):
    """No complete answer arrived; the message says why. It is unknown whether the server has
    processed the question.
    """


class TooLate(NoAnswer):
    """No answer began within the time limit."""


@dataclass
class Answer:
    """`headers` have lower-case names; of repeated ones, the last counts."""

    status: int = 0
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


class Reader(Protocol):
    """Receives the body of a stream in pieces. Returns True if it wants no more. May raise
    TooMuch.
    """

    def feed(self, part: bytes) -> bool: ...


class _Connection(asyncio.Protocol):
    """One question at a time. An error ends it together with the connection."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds, self.loop = bounds, asyncio.get_running_loop()
        self.transport: asyncio.Transport | None = None
        self.waiting: asyncio.Future[Answer] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.idle_since = 0.0
        self._begin(None)

    def _begin(self, reader: Reader | None) -> None:
        self.parser, self.answer, self.reader = HttpResponseParser(self), Answer(), reader
        self.parts: list[bytes] = []
        self.size = self.received = 0
        self.has_head = self.keeps = self.streams = False

    def ask(self, data: bytes, reader: Reader | None = None) -> asyncio.Future[Answer]:
        assert self.transport is not None
        self._begin(reader)
        self.waiting = self.loop.create_future()
        self._restart_timer()
        self.transport.write(data)
        return self.waiting

    @property
    def usable(self) -> bool:
        """Whether it can be used for another question."""
        assert self.transport is not None
        fresh = self.loop.time() - self.idle_since < KEPT_S
        return (
            fresh and not self.transport.is_closing() and not self.transport.get_write_buffer_size()
        )

    @property
    def _is_idle(self) -> bool:
        return self.waiting is None or self.waiting.done()

    def close(self) -> None:
        self._stop_timer()
        if self.transport is not None:
            self.transport.abort()

    def _restart_timer(self) -> None:
        self._stop_timer()
        if self.bounds.seconds:
            self.timer = self.loop.call_later(self.bounds.seconds, self._late)

    def _stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def _late(self) -> None:
        seconds = f"{self.bounds.seconds:g} s"
        self._fail(
            TooMuch(f"no end within {seconds}", "time")
            if self.has_head
            else TooLate(f"no answer in {seconds}")
        )

    def _fail(self, error: Exception) -> None:
        self.close()
        if self.waiting is not None and not self._is_idle:
            self.waiting.set_exception(error)

    def _succeed(self) -> None:
        self._stop_timer()
        self.idle_since = self.loop.time()
        if self.waiting is not None and not self._is_idle:
            self.answer.body = b"".join(self.parts)
            self.waiting.set_result(self.answer)
        if not self.keeps:
            self.close()

    # Called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade):
            self._fail(NoAnswer("it sent what is not HTTP"))
        self.received += len(data)
        if self.received > MAX_HEAD + FRAME * self.size:
            self._fail(TooMuch("headers without an end", "size"))

    def connection_lost(self, error: Exception | None) -> None:
        framed = (
            "content-length" in self.answer.headers or "transfer-encoding" in self.answer.headers
        )
        if self.has_head and not framed and error is None:
            self._succeed()  # the end of the connection is the end of the answer
        else:
            where = "within its answer" if self.has_head else "without an answer"
            self._fail(NoAnswer(f"it ended the connection {where}"))

    # Called by the parser

    def on_message_begin(self) -> None:
        if self._is_idle:  # unsolicited data
            self.close()
        self.answer = Answer()

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.has_head:
            self.answer.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.answer.status, self.keeps = (
            self.parser.get_status_code(),
            self.parser.should_keep_alive(),
        )
        if self.answer.status < 200:
            return
        self.has_head = True
        self.streams = (
            self.answer.status == 200 and _is_stream(self.answer) and self.reader is not None
        )
        self._restart_timer()
        if (
            self.bounds.max_bytes
            and self.answer.headers.get("content-encoding", "identity") != "identity"
        ):
            self._fail(
                TooMuch("a packed answer, which was not asked for")
            )  # it might expand to any size

    def on_body(self, part: bytes) -> None:
        self.size += len(part)
        if 0 < self.bounds.max_bytes * (STREAMED if self.streams else 1) < self.size:
            self._fail(TooMuch(f"more than {self.bounds.max_bytes / 2**20:g} MiB", "size"))
        elif self.streams:
            self._read(part)
        else:
            self.parts.append(part)

    def _read(self, part: bytes) -> None:
        """Nothing is read after the end of the answer, so the connection cannot be reused."""
        assert self.reader is not None
        try:
            if not self._is_idle and self.reader.feed(part):
                self.keeps = False
                self._succeed()
        except TooMuch as error:
            self._fail(error)

    def on_message_complete(self) -> None:
        if self.has_head:  # otherwise only an informational response has ended
            self._succeed()


class Posts:
    """Requests to one address, from one event loop, with one connection per concurrent question.
    Close it at the end.

    `url` comes from `check_url`. `headers` are sent with each request, after those that HTTP needs.
    """

    def __init__(
        self,
        url: httpx2.URL,
        *,
        allow_private: PrivateNetworks,
        bounds: Bounds,
        headers: dict[str, str],
    ) -> None:
        self.host, self.port = (
            url.raw_host.decode(),
            url.port or {"http": 80, "https": 443}[url.scheme],
        )
        self.allow_private, self.bounds = allow_private, bounds
        self.tls: ssl.SSLContext | None = tls() if url.scheme == "https" else None
        lines = {"Host": url.netloc.decode(), "Accept-Encoding": "identity"} | headers
        self.head = f"POST {url.raw_path.decode()} HTTP/1.1\r\n" + "".join(
            f"{name}: {value}\r\n" for name, value in lines.items()
        )
        self.free: list[_Connection] = []
        self.open: set[_Connection] = set()

    async def post(self, body: bytes, reader: Reader | None = None) -> Answer:
        """Send a request. A stream of server-sent events is passed to `reader`, if there is one,
        and not included in the answer. Raises RefusedAddress, NoAnswer, TooMuch.
        """
        connection = self._idle_connection() or await self._connect()
        self.open.add(connection)
        try:
            answer = await connection.ask(
                f"{self.head}Content-Length: {len(body)}\r\n\r\n".encode() + body, reader
            )
        except BaseException:
            connection.close()
            raise
        finally:
            self.open.discard(connection)
        self.free.append(connection)
        return answer

    async def aclose(self) -> None:
        for connection in (*self.free, *self.open):
            connection.close()
        self.free.clear()
        await asyncio.sleep(0)  # lets the loop close their sockets

    def _idle_connection(self) -> _Connection | None:
        """The most recently used connection that is still open."""
        while self.free:
            if (connection := self.free.pop()).usable:
                return connection
            connection.close()
        return None

    async def _connect(self) -> _Connection:
        """Connect to the first address that answers; all are checked before."""
        loop, problem = asyncio.get_running_loop(), ""
        for address in await self._addresses():
            name = self.host if self.tls else None
            try:
                async with asyncio.timeout(self._connect_s):
                    _, connection = await loop.create_connection(
                        self.protocol, address, self.port, ssl=self.tls, server_hostname=name
                    )
                return cast(_Connection, connection)
            except TimeoutError:
                problem = f"no connection within {self._connect_s:g} s"
            except (OSError, ssl.SSLError) as error:
                problem = f"no connection: {_in_words(error)}"
        raise NoAnswer(problem)

    def protocol(self) -> asyncio.Protocol:
        """The protocol object for a new connection."""
        return _Connection(self.bounds)

    async def _addresses(self) -> list[str]:
        """The checked addresses. Raises RefusedAddress, NoAnswer."""
        if literal := address_in(self.host):
            check_address(literal, self.host, self.allow_private)
            return [self.host]
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_s):
                found = await loop.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
            return allowed(found, self.host, self.allow_private)
        except TimeoutError as error:
            raise NoAnswer(f"the address of {self.host} is not found in time") from error
        except (OSError, UnicodeError) as error:
            raise NoAnswer(str(unknown_host(self.host, error))) from error
        except httpcore2.ConnectError as error:
            raise NoAnswer(str(error)) from error

    @property
    def _connect_s(self) -> float:
        return min(CONNECT_S, self.bounds.seconds or CONNECT_S)


def _is_stream(answer: Answer) -> bool:
    return (
        answer.headers.get("content-type", "").partition(";")[0].strip().lower()
        == "text/event-stream"
    )


def _in_words(error: OSError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is refused ({error.verify_message})"
    return error.strerror or str(error) or type(error).__name__
