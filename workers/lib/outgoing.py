"""Requests to addresses that people type in: http and https only, and nothing inside our network unless it is allowed.

What counts is the address a name resolves to at the moment of the connection, so a name that changes its mind between
the check and the call gains nothing. Light: no Django, no torch.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import httpcore
import httpx

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


class RefusedAddress(ValueError):
    """An address that may not be called; says why."""


def check_url(url: str, *, allow_private: bool) -> httpx.URL:
    """The URL, taken apart. A name is looked up when it is called, not here. Raises RefusedAddress."""
    try:
        parts = httpx.URL(url.strip())
    except (httpx.InvalidURL, ValueError) as error:
        raise RefusedAddress(f"This is no URL: {error}.") from error
    if parts.scheme not in ("http", "https") or not parts.host:
        raise RefusedAddress("The address must begin with http:// or https:// and name a server.")
    if parts.userinfo or parts.fragment:
        raise RefusedAddress("The address must not hold a user, a password or a #. Keys go into environment variables.")
    if parts.host == "localhost" or parts.host.endswith(".localhost"):
        check_address(ipaddress.IPv4Address("127.0.0.1"), parts.host, allow_private)
    if literal := _literal(parts.host):
        check_address(literal, parts.host, allow_private)
    return parts


def _literal(host: str) -> Address | None:
    try:
        return ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None


def check_address(address: Address, host: str, allow_private: bool) -> None:
    """Raises RefusedAddress. Link-local ones (a cloud's metadata service) and those of nobody are never called."""
    address = embedded(address)
    nobodys = address.is_reserved and not address.is_loopback
    if address.is_link_local or address.is_multicast or address.is_unspecified or nobodys:
        raise RefusedAddress(f"{host} is at {address}, which no service of this kind is.")
    if not address.is_global and not allow_private:
        raise RefusedAddress(
            f"{host} is at {address}, inside this machine or network. "
            "Whoever runs this Flywheel can allow that with FLYWHEEL_ALLOW_PRIVATE_URLS=1."
        )


def embedded(address: Address) -> Address:
    """The IPv4 address inside an IPv6 one (mapped, 6to4, NAT64), else the address itself."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or address


def allowed(found: list[tuple], host: str, allow_private: bool) -> list[str]:
    """The addresses of a lookup (socket.getaddrinfo), each checked. Raises RefusedAddress, httpcore.ConnectError."""
    addresses = list(dict.fromkeys(str(item[4][0]).partition("%")[0] for item in found))
    for address in addresses:
        check_address(ipaddress.ip_address(address), host, allow_private)
    if not addresses:
        raise httpcore.ConnectError(f"{host} has no address.")
    return addresses


def _unknown(host: str, error: OSError) -> httpcore.ConnectError:
    return httpcore.ConnectError(f"{host} cannot be found: {error.strerror or error}")


class _Guarded(httpcore.SyncBackend):
    """Looks a name up, checks every address it has, and connects to the first that answers."""

    def __init__(self, allow_private: bool) -> None:
        self.allow_private = allow_private

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise _unknown(host, error) from error
        *others, last = allowed(found, host, self.allow_private)
        for address in others:
            try:
                return super().connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                continue
        return super().connect_tcp(last, port, timeout, local_address, socket_options)


class _AsyncGuarded(httpcore.AnyIOBackend):
    """The same for asyncio."""

    def __init__(self, allow_private: bool) -> None:
        self.allow_private = allow_private

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise _unknown(host, error) from error
        *others, last = allowed(found, host, self.allow_private)
        for address in others:
            try:
                return await super().connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                continue
        return await super().connect_tcp(last, port, timeout, local_address, socket_options)


@lru_cache
def _tls() -> ssl.SSLContext:
    return httpx.create_ssl_context(trust_env=False)  # takes long to make, so that it is shared


class _Transport(httpx.HTTPTransport):
    def __init__(self, allow_private: bool) -> None:
        super().__init__(verify=_tls(), trust_env=False)
        # httpx has no argument for the network backend; its pool does.
        self._pool = httpcore.ConnectionPool(ssl_context=_tls(), network_backend=_Guarded(allow_private))


class _AsyncTransport(httpx.AsyncHTTPTransport):
    def __init__(self, allow_private: bool) -> None:
        super().__init__(verify=_tls(), trust_env=False)
        self._pool = httpcore.AsyncConnectionPool(ssl_context=_tls(), network_backend=_AsyncGuarded(allow_private))


OPTIONS: dict[str, Any] = {"trust_env": False, "follow_redirects": False}


def client(*, allow_private: bool, **options: Any) -> httpx.Client:
    """An httpx client that follows no redirects, uses no proxy and keeps to allowed addresses (RefusedAddress)."""
    return httpx.Client(transport=_Transport(allow_private), **OPTIONS, **options)


def async_client(*, allow_private: bool, **options: Any) -> httpx.AsyncClient:
    """The same for asyncio."""
    return httpx.AsyncClient(transport=_AsyncTransport(allow_private), **OPTIONS, **options)
