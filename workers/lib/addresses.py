"""Which IP addresses a URL that a person gives may lead to: public ones, and those inside that the
operator allows. Whatever is of no allowed kind is refused. Pure.

The networks are those of the IANA special-purpose address registries (RFC 6890 and its updates),
and the addresses at which clouds answer with a machine's credentials, some of which lie in public
or private networks. What a newer Python no longer calls global is refused, too.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable, Iterator
from enum import Enum, auto
from functools import lru_cache

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
# FLYWHEEL_ALLOW_PRIVATE_URLS: all networks inside, none, or these ("10.1.0.0/16").
PrivateNetworks = bool | tuple[str, ...]


class RefusedAddress(ValueError):
    """An address that may not be called; the message says why."""


def _networks(*texts: str) -> tuple[Network, ...]:
    return tuple(ipaddress.ip_network(text) for text in texts)


METADATA = _networks(
    "169.254.0.0/16",  # nearly every cloud, ECS and EKS
    "168.63.129.16",  # Azure's wire server
    "100.100.100.200",  # Alibaba
    "192.0.0.192",  # Oracle
    "192.80.8.124",  # Equinix Metal
    "fd00:ec2::/32",  # AWS
    "fd20:ce::254",  # Google
    "fd00:c1::a9fe:a9fe",  # Oracle
    "fd00:42::42",  # Scaleway
    "fd00:a9fe:a9fe::1",  # Akamai
)
METADATA_NAMES = (
    "metadata.google.internal",
    "metadata.goog",
    "metadata.azure.internal",
    "metadata.tencentyun.com",
    "metadata.packet.net",
    "metadata.platformequinix.com",
    "instance-data.ec2.internal",
)
NOBODYS = _networks(
    "0.0.0.0/8",  # this network
    "192.0.0.0/24",  # IETF protocol assignments
    "224.0.0.0/4",  # multicast
    "240.0.0.0/4",  # reserved, and broadcast
    "2001::/23",  # IETF protocol assignments, Teredo
    "fe80::/10",  # link-local
    "ff00::/8",  # multicast
)
INSIDE = _networks(
    "10.0.0.0/8",
    "100.64.0.0/10",  # shared by a provider's customers (CGNAT), and by VPNs
    "127.0.0.0/8",
    "172.16.0.0/12",
    "192.0.2.0/24",  # documentation, as the two below
    "192.31.196.0/24",  # AS112
    "192.52.193.0/24",  # AMT
    "192.88.99.0/24",  # relays of 6to4
    "192.168.0.0/16",
    "192.175.48.0/24",  # AS112
    "198.18.0.0/15",  # benchmarks
    "198.51.100.0/24",
    "203.0.113.0/24",
    "::1",
    "64:ff9b:1::/48",  # a network's own NAT64
    "2001:db8::/32",  # documentation
    "2620:4f:8000::/48",  # AS112
    "3fff::/20",  # documentation
    "fc00::/7",
    "fec0::/10",  # site-local
)
GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
# IPv6 addresses of IPv4 hosts, and how many bits follow the IPv4 address.
TRANSLATED = {
    ipaddress.IPv6Network("::ffff:0:0/96"): 0,  # mapped
    ipaddress.IPv6Network("::ffff:0:0:0/96"): 0,  # SIIT
    ipaddress.IPv6Network("64:ff9b::/96"): 0,  # NAT64
    ipaddress.IPv6Network("2002::/16"): 80,  # 6to4
}
# A network's own NAT64 may have any prefix. Where the IPv4 address then lies (RFC 6052 2.2), as
# octets.
EMBEDDED = {
    32: (4, 5, 6, 7),
    40: (5, 6, 7, 9),
    48: (6, 7, 9, 10),
    56: (7, 9, 10, 11),
    64: (9, 10, 11, 12),
    96: (12, 13, 14, 15),
}
METADATA_HOSTS = _networks(
    "169.254.169.254",
    "169.254.170.2",
    "169.254.170.23",
    "169.254.0.23",
    "169.254.42.42",
    "168.63.129.16",
    "100.100.100.200",
    "192.0.0.192",
)
ISATAP = (0x00005EFE, 0x02005EFE)
# As inet_aton reads them: 2130706433, 0x7f.1, 0177.0.0.1
OLD_FORMS = re.compile(r"(?:0x[0-9a-f]*|\d+)(?:\.(?:0x[0-9a-f]*|\d+)){0,3}", re.IGNORECASE)


def address_in(host: str) -> Address | None:
    """The IP address that a host is, in any notation that systems accept; None if it is a name."""
    host = host.strip("[]").rstrip(".")
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        pass
    try:
        return ipaddress.IPv4Address(socket.inet_aton(host)) if OLD_FORMS.fullmatch(host) else None
    except OSError:
        return None


def check_host(host: str, allow_private: PrivateNetworks) -> None:
    """Whatever can be known of a host without looking it up. Raises RefusedAddress."""
    name = host.lower().rstrip(".")
    if name in METADATA_NAMES:
        raise RefusedAddress(
            f"{host} is a cloud's metadata service, which is never called by name."
        )
    if name == "localhost" or name.endswith(".localhost"):
        check_address(ipaddress.IPv4Address("127.0.0.1"), host, allow_private)
    if literal := address_in(host):
        check_address(literal, host, allow_private)


class Kind(Enum):
    PUBLIC = auto()
    INSIDE = auto()
    METADATA = auto()
    NOBODYS = auto()


REASONS = {
    Kind.METADATA: (
        "where clouds have their metadata service, which is never called unless"
        " FLYWHEEL_ALLOW_PRIVATE_URLS names this very address."
    ),
    Kind.NOBODYS: "which no service of this kind is.",
    Kind.INSIDE: (
        "inside this machine or network. Whoever runs this Flywheel can allow that with"
        " FLYWHEEL_ALLOW_PRIVATE_URLS: 1, or the networks that may be called."
    ),
}


def check_address(address: Address, host: str, allow_private: PrivateNetworks) -> None:
    """Public addresses may be called, and those inside where that is allowed. Raises
    RefusedAddress.
    """
    kinds = {kind for form in _forms(address) for kind in [_refused(form, allow_private)] if kind}
    for kind, reason in REASONS.items():
        if kind in kinds:
            raise RefusedAddress(f"{host} is at {address}, {reason}")


def kind_of(address: Address) -> Kind:
    if _is_in(address, METADATA):
        return Kind.METADATA
    if _is_in(address, NOBODYS):
        return Kind.NOBODYS
    if _is_in(address, INSIDE):
        return Kind.INSIDE
    is_unicast = address.version == 4 or address in GLOBAL_UNICAST
    return Kind.PUBLIC if address.is_global and is_unicast else Kind.NOBODYS


def _refused(address: Address, allow_private: PrivateNetworks) -> Kind | None:
    """The kind of an address that may not be called; None if it may be."""
    kind = kind_of(address)
    if kind == Kind.PUBLIC or (kind == Kind.INSIDE and allow_private is True):
        return None
    named = [] if isinstance(allow_private, bool) else _named(tuple(allow_private))
    allowed = {
        Kind.INSIDE: named,
        Kind.METADATA: [network for network in named if _names_metadata(network)],
    }
    return None if _is_in(address, allowed.get(kind, [])) else kind


@lru_cache
def _named(texts: tuple[str, ...]) -> tuple[Network, ...]:
    return _networks(*texts)


def _names_metadata(network: Network) -> bool:
    """Whether it names metadata services and nothing else: a network around them does not."""
    return any(
        network.version == other.version and network.subnet_of(other)  # type: ignore[arg-type]
        for other in METADATA
    )


def _forms(address: Address) -> Iterator[Address]:
    """The hosts that may answer at an address: the IPv4 one inside an IPv6 one, or both."""
    if isinstance(address, ipaddress.IPv4Address):
        yield address
        return
    address = ipaddress.IPv6Address(int(address))  # without a zone
    for network, after in TRANSLATED.items():
        if address in network:
            yield _ipv4(address, after)
            return
    yield address
    if (int(address) >> 32 & 0xFFFFFFFF) in ISATAP:
        yield _ipv4(address, 0)
    for octets in EMBEDDED.values():
        host = ipaddress.IPv4Address(bytes(address.packed[at] for at in octets))
        if _is_in(host, METADATA_HOSTS):
            yield host


def _ipv4(address: ipaddress.IPv6Address, after: int) -> ipaddress.IPv4Address:
    return ipaddress.IPv4Address(int(address) >> after & 0xFFFFFFFF)


def _is_in(address: Address, networks: Iterable[Network]) -> bool:
    return any(address in network for network in networks)
