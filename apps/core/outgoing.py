"""Requests to addresses that people type in: http and https only, and nothing inside our network unless it is allowed.

What counts is the address a name resolves to at the moment of the connection, so a name that changes its mind between
the check and the call gains nothing. Pure: no Django.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable
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
            raise httpcore.ConnectError(f"{host} cannot be found: {error.strerror or error}") from error
        addresses = list(dict.fromkeys(str(item[4][0]).partition("%")[0] for item in found))
        for address in addresses:
            check_address(ipaddress.ip_address(address), host, self.allow_private)
        for place, address in enumerate(addresses):
            try:
                return super().connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                if place + 1 == len(addresses):
                    raise
        raise httpcore.ConnectError(f"{host} has no address.")


class _Transport(httpx.HTTPTransport):
    def __init__(self, allow_private: bool) -> None:
        super().__init__(trust_env=False)
        # httpx has no argument for the network backend; its pool does.
        self._pool = httpcore.ConnectionPool(
            ssl_context=httpx.create_ssl_context(trust_env=False), network_backend=_Guarded(allow_private)
        )


def client(*, allow_private: bool, **options: Any) -> httpx.Client:
    """An httpx client that follows no redirects, uses no proxy and keeps to allowed addresses (RefusedAddress)."""
    return httpx.Client(transport=_Transport(allow_private), trust_env=False, follow_redirects=False, **options)
