"""Requests to addresses that users enter: only http and https, and nothing inside our network
unless it is allowed.

The address is checked that a name resolves to at the moment of the connection, so a name that
changes between the check and the request gains nothing. Light: no Django, no torch.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
import ssl
import string
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import httpcore2
import httpx2

from workers.lib.addresses import (
    PrivateNetworks,
    RefusedAddress,
    address_in,
    check_address,
    check_host,
)

DEFAULT_PORTS = {"http": 80, "https": 443}
HOST = re.compile(r"[\w-]{1,63}(?:\.[\w-]{1,63})*\.?", re.ASCII)
ESCAPED = re.compile(r"%([0-9A-Fa-f]{2})")
UNRESERVED = frozenset("-._~" + string.ascii_letters + string.digits)


def check_url(url: str, *, allow_private: PrivateNetworks) -> httpx2.URL:
    """The parsed URL in its normal form. A name is resolved when it is called, not here. Raises
    RefusedAddress.
    """
    try:
        parts = httpx2.URL(url.strip())
    except (httpx2.InvalidURL, ValueError) as error:
        raise RefusedAddress(f"This is not a URL: {error}.") from error
    if parts.scheme not in ("http", "https") or not parts.host:
        raise RefusedAddress("The address must begin with http:// or https:// and name a server.")
    if parts.userinfo or parts.fragment:
        raise RefusedAddress(
            "The address must not hold a user, a password or a #. Keys go into environment"
            " variables."
        )
    if parts.port is not None and not 1 <= parts.port <= 65535:
        raise RefusedAddress("The address must have a port from 1 to 65535, or none.")
    if not address_in(parts.host) and not HOST.fullmatch(parts.raw_host.decode()):
        raise RefusedAddress(
            "The name of the server in the address may hold letters, digits, hyphens and dots"
            " between them. Check its spelling."
        )
    check_host(parts.host, allow_private)
    return _normal(parts)


def check_base_url(url: str, *, allow_private: PrivateNetworks) -> httpx2.URL:
    """Of a server to whose address paths are appended: without a query and a slash at its end.
    Raises RefusedAddress.
    """
    parts = check_url(url, allow_private=allow_private)
    if b"?" in parts.raw_path:
        raise RefusedAddress(
            "The address must not hold a query (?…), since paths such as /models are appended to"
            " it. Give the address without it."
        )
    return httpx2.URL(str(parts).rstrip("/"))


def _normal(url: httpx2.URL) -> httpx2.URL:
    """One spelling of all that lead to the same (RFC 3986, 6.2): scheme and host in small letters,
    no default port, no dot behind the host, IP addresses as they are usually written, nothing
    escaped without need.
    """
    literal = address_in(url.host)
    host = str(literal) if literal else url.raw_host.decode().rstrip(".").lower()
    host = f"[{host}]" if ":" in host else host
    port = "" if url.port in (None, DEFAULT_PORTS[url.scheme]) else f":{url.port}"
    path, mark, query = url.raw_path.decode().partition("?")
    return httpx2.URL(f"{url.scheme}://{host}{port}{ESCAPED.sub(_unescaped, path)}{mark}{query}")


def _unescaped(escaped: re.Match[str]) -> str:
    char = chr(int(escaped[1], 16))
    return char if char in UNRESERVED else escaped[0].upper()


def allowed(found: list[tuple], host: str, allow_private: PrivateNetworks) -> list[str]:
    """The addresses found by socket.getaddrinfo, each checked. Raises RefusedAddress,
    httpcore2.ConnectError.
    """
    addresses = list(dict.fromkeys(str(item[4][0]).partition("%")[0] for item in found))
    for address in addresses:
        check_address(ipaddress.ip_address(address), host, allow_private)
    if not addresses:
        raise httpcore2.ConnectError(f"{host} has no address.")
    return addresses


def unknown_host(host: str, error: OSError | UnicodeError) -> httpcore2.ConnectError:
    return httpcore2.ConnectError(
        f"{host} cannot be found: {getattr(error, 'strerror', '') or error}"
    )


class _Guarded(httpcore2.SyncBackend):
    """Resolves a name, checks every address it has, and connects to the first that answers."""

    def __init__(self, allow_private: PrivateNetworks) -> None:
        self.allow_private = allow_private

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.NetworkStream:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise unknown_host(host, error) from error
        *others, last = allowed(found, host, self.allow_private)
        for address in others:
            try:
                return super().connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout):
                continue
        return super().connect_tcp(last, port, timeout, local_address, socket_options)


class _AsyncGuarded(httpcore2.AnyIOBackend):
    """The same for asyncio."""

    def __init__(self, allow_private: PrivateNetworks) -> None:
        self.allow_private = allow_private

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        try:
            found = await asyncio.get_running_loop().getaddrinfo(
                host, port, type=socket.SOCK_STREAM
            )
        except OSError as error:
            raise unknown_host(host, error) from error
        *others, last = allowed(found, host, self.allow_private)
        for address in others:
            try:
                return await super().connect_tcp(
                    address, port, timeout, local_address, socket_options
                )
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout):
                continue
        return await super().connect_tcp(last, port, timeout, local_address, socket_options)


@lru_cache
def tls() -> ssl.SSLContext:
    return httpx2.create_ssl_context()  # shared, since creating it takes long


# Limits on an answer


class TooMuch(httpx2.TransportError):
    """An answer beyond its limits; the message says which. `limit` is size, time, or "" if neither
    was exceeded.
    """

    def __init__(self, message: str, limit: str = "") -> None:
        super().__init__(message)
        self.limit = limit


@dataclass(frozen=True)
class Bounds:
    """Limits of one answer: its size in bytes, and the seconds in which it has to arrive. A read
    timeout only limits pauses, so a server that sends a byte now and then could go on forever. 0:
    no limit.
    """

    max_bytes: int = 0
    seconds: float = 0


class _Bounded:
    """The body of an answer, cut off with TooMuch at its limits; `release` is called once, when it
    is closed.
    """

    def __init__(
        self, stream: Any, bounds: Bounds, release: Callable[[], None] = lambda: None
    ) -> None:
        self.stream, self.bounds, self.release = stream, bounds, release
        self.size, self.ends = 0, time.monotonic() + bounds.seconds

    def check(self, part: bytes) -> bytes:
        self.size += len(part)
        if 0 < self.bounds.max_bytes < self.size:
            raise TooMuch(f"more than {self.bounds.max_bytes / 2**20:g} MiB", "size")
        if self.bounds.seconds and time.monotonic() > self.ends:
            raise TooMuch(f"no end within {self.bounds.seconds:g} s", "time")
        return part

    def closed(self) -> None:
        release, self.release = self.release, lambda: None
        release()


class _BoundedBody(_Bounded, httpx2.SyncByteStream):
    def __iter__(self) -> Iterator[bytes]:
        return map(self.check, self.stream)

    def close(self) -> None:
        self.stream.close()
        self.closed()


class _AsyncBoundedBody(_Bounded, httpx2.AsyncByteStream):
    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self.stream:
            yield self.check(part)

    async def aclose(self) -> None:
        try:
            await self.stream.aclose()
        finally:
            self.closed()


def _plainly(response: httpx2.Response, bounds: Bounds) -> None:
    """Raises TooMuch for a compressed answer, which was not requested: it might expand to any
    size.
    """
    if bounds.max_bytes and response.headers.get("Content-Encoding", "identity") != "identity":
        raise TooMuch("a packed answer, which was not asked for")


class _Transport(httpx2.HTTPTransport):
    def __init__(self, allow_private: PrivateNetworks, bounds: Bounds) -> None:
        super().__init__(verify=tls(), trust_env=False)
        self.bounds = bounds
        # httpx2 has no argument for the network backend; its pool does.
        self._pool = httpcore2.ConnectionPool(
            ssl_context=tls(), network_backend=_Guarded(allow_private)
        )

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        response = super().handle_request(request)
        response.stream = _BoundedBody(response.stream, self.bounds)
        try:
            _plainly(response, self.bounds)
        except TooMuch:
            response.close()
            raise
        return response


class _AsyncLine(httpx2.AsyncHTTPTransport):
    """One connection."""

    def __init__(self, allow_private: PrivateNetworks) -> None:
        super().__init__(verify=tls(), trust_env=False)
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=tls(), network_backend=_AsyncGuarded(allow_private), max_connections=1
        )


class _AsyncTransport(httpx2.AsyncBaseTransport):
    """A separate pool for each of the concurrent connections; the one used last is tried first. A
    single pool with 200 connections would check all of them for each request, which took 50 ms
    (40,000 checks).
    """

    def __init__(self, allow_private: PrivateNetworks, bounds: Bounds) -> None:
        self.allow_private, self.bounds = allow_private, bounds
        self.lines: list[_AsyncLine] = []
        self.free: list[_AsyncLine] = []

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if not self.free:
            self.lines.append(_AsyncLine(self.allow_private))
            self.free.append(self.lines[-1])
        line = self.free.pop()
        try:
            response = await line.handle_async_request(request)
        except BaseException:
            self.free.append(line)
            raise
        response.stream = _AsyncBoundedBody(
            response.stream, self.bounds, lambda: self.free.append(line)
        )
        try:
            _plainly(response, self.bounds)
        except TooMuch:
            await response.aclose()
            raise
        return response

    async def aclose(self) -> None:
        await asyncio.gather(*(line.aclose() for line in self.lines))


OPTIONS: dict[str, Any] = {"trust_env": False, "follow_redirects": False}


def client(
    *, allow_private: PrivateNetworks, bounds: Bounds | None = None, **options: Any
) -> httpx2.Client:
    """An HTTP client that follows no redirects, uses no proxy, only calls allowed addresses
    (RefusedAddress) and cuts off answers beyond their limits (TooMuch).
    """
    bounds = bounds or Bounds()
    return httpx2.Client(
        transport=_Transport(allow_private, bounds), **OPTIONS, **_headers(bounds, options)
    )


def async_client(
    *, allow_private: PrivateNetworks, bounds: Bounds | None = None, **options: Any
) -> httpx2.AsyncClient:
    """The same for asyncio."""
    bounds = bounds or Bounds()
    return httpx2.AsyncClient(
        transport=_AsyncTransport(allow_private, bounds), **OPTIONS, **_headers(bounds, options)
    )


def _headers(bounds: Bounds, options: dict[str, Any]) -> dict[str, Any]:
    plain = {"Accept-Encoding": "identity"} if bounds.max_bytes else {}
    return options | {"headers": plain | dict(options.get("headers") or {})}
