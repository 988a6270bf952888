"""Where a URL that a person gives may lead: never to a cloud's metadata service, inside only where
that is allowed.
"""

from __future__ import annotations

import ipaddress
import socket
from typing import Any

import msgspec
import pytest
from django.core.exceptions import ImproperlyConfigured

from flywheel.settings import env_networks
from workers.lib.addresses import Kind, RefusedAddress, address_in, check_address, kind_of
from workers.lib.outgoing import allowed, check_base_url, check_url
from workers.lib.specs.engines import ModelServer

NO_URL = [
    "https://gpu server.example/v1",
    "https://gp%75.example/v1",
    "https://.gpu.example/v1",
    "https://gpu..example/v1",
    "http://./v1",
    "http://gpu,cpu:8000/v1",
    "file:///etc/passwd",
    "ftp://x/v1",
    "x/v1",
    "//x/v1",
    "http://",
    "http://user:pw@x/v1",
    "http://x/v1#a",
    "http://[::1",
    "http://x:99999/v1",
    "http://x:0/v1",
    "http://0177.0.0.1/v1",
]
METADATA = [
    "169.254.169.254",
    "169.254.170.2",
    "169.254.0.23",
    "168.63.129.16",
    "100.100.100.200",
    "192.0.0.192",
    "2852039166",
    "0xa9fea9fe",
    "0xa9.0xfe.0xa9.0xfe",
    "169.254.43518",
    "169.254.169.254.",
    "[fd00:ec2::254]",
    "[fd00:ec2::23]",
    "[fd20:ce::254]",
    "[fd00:c1::a9fe:a9fe]",
    "[fd00:42::42]",
    "[fd00:a9fe:a9fe::1]",
    "[::ffff:169.254.169.254]",
    "[::ffff:168.63.129.16]",
    "[::ffff:0:100.100.100.200]",
    "[64:ff9b::a9fe:a9fe]",
    "[64:ff9b::c000:c0]",
    "[2002:a9fe:a9fe::]",
    "[2002:a83f:8110::1]",
    "[64:ff9b:1::a9fe:a9fe]",
    "[64:ff9b:1:a9fe:a9:fe00::]",
    "[2a01:1:2:3:a9:fea9:fe00::]",
    "[2a01:1:2::a83f:8110]",
    "[fd12::5efe:169.254.169.254]",
    "metadata.google.internal",
    "METADATA.goog.",
    "instance-data.ec2.internal",
]
NOBODYS = [
    "0.0.0.0",
    "0.1.2.3",
    "0",
    "192.0.0.8",
    "224.0.0.1",
    "239.255.255.250",
    "240.0.0.1",
    "255.255.255.255",
    "[::]",
    "[fe80::1]",
    "[fe80::1%25eth0]",
    "[ff02::1]",
    "[100::1]",
    "[2001::1]",
    "[2001:10::1]",
    "[5f00::1]",
    "[4000::1]",
    "[::ffff:0.0.0.0]",
    "[64:ff9b::e000:1]",
    "[::10.0.0.1]",
]
INSIDE = [
    "localhost",
    "localhost.",
    "api.localhost",
    "127.0.0.1",
    "127.1",
    "2130706433",
    "0x7f000001",
    "10.1.2.3",
    "172.31.0.1",
    "192.168.0.9",
    "100.64.0.1",
    "100.100.100.100",
    "100.127.255.254",
    "198.18.0.1",
    "203.0.113.7",
    "[::1]",
    "[fd00::1]",
    "[fd7a:115c:a1e0::1]",
    "[fec0::1]",
    "[2001:db8::1]",
    "[3fff::1]",
    "[::ffff:127.0.0.1]",
    "[::ffff:10.0.0.1]",
    "[64:ff9b::a00:1]",
    "[64:ff9b:1::808:808]",
    "[2002:7f00:1::]",
    "[2002:a00:1::]",
    "[2a01::5efe:10.0.0.1]",
]
OUTSIDE = [
    "gpu_1.example.com.",
    "grün.example",
    "api.openai.com",
    "metadata.example.com",
    "8.8.8.8",
    "100.63.255.255",
    "100.128.0.1",
    "172.32.0.1",
    "168.63.129.17",
    "192.0.1.1",
    "[2606:4700::1111]",
    "[64:ff9b::808:808]",
    "[2002:808:808::1]",
    "[2a01:1:2:3::5efe:808:808]",
]


@pytest.mark.parametrize("url", [*NO_URL, ""])
def test_what_is_no_address_of_a_server(url: str) -> None:
    for allow in (False, True):
        with pytest.raises(RefusedAddress):
            check_url(url, allow_private=allow)


@pytest.mark.parametrize("host", [*METADATA, *NOBODYS])
def test_what_is_never_called(host: str) -> None:
    reason = "metadata service" if host in METADATA else "no service"
    for allow in (False, True):
        with pytest.raises(RefusedAddress, match=reason):
            check_url(f"http://{host}/v1", allow_private=allow)


@pytest.mark.parametrize("host", INSIDE)
def test_what_is_inside_is_called_where_that_is_allowed(host: str) -> None:
    check_url(f"http://{host}:8000/v1", allow_private=True)
    with pytest.raises(RefusedAddress, match="FLYWHEEL_ALLOW_PRIVATE_URLS"):
        check_url(f"http://{host}:8000/v1", allow_private=False)


@pytest.mark.parametrize(
    ("networks", "called", "refused"),
    [
        ("127.0.0.1/32", ["127.0.0.1", "localhost", "2130706433"], ["127.0.0.2", "[::1]"]),
        ("10.1.0.0/16", ["10.1.2.3", "[::ffff:10.1.2.3]", "[64:ff9b::a01:203]"], ["10.2.0.1"]),
        ("fd12::/16", ["[fd12::1]"], ["10.1.2.3", "[fd13::1]"]),
        ("10.0.0.0/8,192.168.0.0/24", ["10.9.9.9", "192.168.0.9"], ["192.168.1.9", "127.0.0.1"]),
        ("100.64.0.0/10", ["100.64.0.1"], ["100.100.100.200", "[::ffff:100.100.100.200]"]),
        ("0.0.0.0/0", ["10.1.2.3"], ["169.254.169.254", "0.0.0.0", "224.0.0.1", "[::1]"]),
        ("::/0", ["[::1]"], ["[fd00:ec2::254]", "[fe80::1]", "10.1.2.3"]),
        ("169.254.169.254/32", ["169.254.169.254", "2852039166"], ["169.254.170.2"]),
        ("169.254.10.0/24", ["169.254.10.9"], ["169.254.169.254", "metadata.google.internal"]),
        ("fd00:ec2::254/128", ["[fd00:ec2::254]"], ["[fd00:ec2::23]"]),
        ("8.8.0.0/16", ["8.8.8.8", "1.1.1.1"], ["10.1.2.3"]),
    ],
)
def test_networks_that_an_operator_names(
    networks: str, called: list[str], refused: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLYWHEEL_ALLOW_PRIVATE_URLS", networks)
    named = env_networks("FLYWHEEL_ALLOW_PRIVATE_URLS", False)
    for host in called:
        check_url(f"http://{host}/v1", allow_private=named)
    for host in refused:
        with pytest.raises(RefusedAddress):
            check_url(f"http://{host}/v1", allow_private=named)


@pytest.mark.parametrize(
    ("value", "means"),
    [("", True), ("1", True), ("false", False), (" 10.0.0.0/8 , ::1", ("10.0.0.0/8", "::1/128"))],
)
def test_the_setting(value: str, means: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLYWHEEL_ALLOW_PRIVATE_URLS", value)
    assert env_networks("FLYWHEEL_ALLOW_PRIVATE_URLS", True) == means


@pytest.mark.parametrize("value", ["2", "10.0.0.1/8", "gpu.internal", "yes"])
def test_a_setting_that_names_no_network_stops_the_start(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLYWHEEL_ALLOW_PRIVATE_URLS", value)
    with pytest.raises(ImproperlyConfigured, match=r"networks such as 10\.1\.0\.0/16"):
        env_networks("FLYWHEEL_ALLOW_PRIVATE_URLS", False)


def test_networks_travel_in_the_spec_of_a_job() -> None:
    named = ("10.1.0.0/16",)
    sent = msgspec.json.encode(ModelServer(base_url="http://x", model="m", allow_private=named))
    assert msgspec.json.decode(sent, type=ModelServer).allow_private == named


def test_what_python_calls_not_global_is_not_called() -> None:
    """Also what a registry takes away later: our lists need not know it."""

    class Taken(ipaddress.IPv4Address):
        is_global = False

    assert kind_of(ipaddress.IPv4Address("8.8.8.8")) == Kind.PUBLIC
    assert kind_of(Taken("8.8.8.8")) == Kind.NOBODYS


@pytest.mark.parametrize("host", OUTSIDE)
def test_what_is_outside_is_called(host: str) -> None:
    check_url(f"https://{host}/v1", allow_private=False)


@pytest.mark.parametrize(
    "host", [host for host in METADATA + NOBODYS if address_in(host.replace("%25", "%"))]
)
def test_a_name_that_resolves_to_it_is_refused_when_it_is_called(host: str) -> None:
    """`allowed` checks what DNS says at the moment of the connection, for every client."""
    address = str(address_in(host.replace("%25", "%")))
    found: list[Any] = [(socket.AF_INET6, socket.SOCK_STREAM, 6, "", (address, 80))]
    with pytest.raises(RefusedAddress):
        allowed(found, "name.example.com", True)


def test_the_outside_is_what_python_says_too() -> None:
    """Of IPv4: what we call outside is global by Python's tables, and the other way round but for
    what clouds use.
    """
    ours = {
        "168.63.129.16",
        "192.0.0.9",
        "192.0.0.10",
        "192.31.196.1",
        "192.52.193.1",
        "192.175.48.1",
        "192.80.8.124",
        "192.88.99.1",
    }
    for first in range(256):
        for second in (0, 16, 63, 64, 88, 127, 128, 168, 254):
            address = ipaddress.IPv4Address(f"{first}.{second}.7.9")
            try:
                check_address(address, "x", False)
                is_outside = True
            except RefusedAddress:
                is_outside = False
            assert (
                is_outside == (address.is_global and not address.is_multicast)
                or str(address) in ours
            ), address


@pytest.mark.parametrize(
    ("spellings", "normal"),
    [
        (
            [
                "http://gpu.example.com/v1",
                "http://GPU.Example.com/v1",
                "HTTP://gpu.example.com/v1",
                "HtTp://gpu.example.com:80/v1",
                "http://gpu.example.com:080/v1",
                "http://gpu.example.com:/v1",
                "http://gpu.example.com./v1",
                "http://gpu.example.com/v1/",
                "http://gpu.example.com/v1//",
                " http://gpu.example.com/v1 ",
                "http://gpu.example.com/a/../v1",
                "http://gpu.example.com/%761",
            ],
            "http://gpu.example.com/v1",
        ),
        (["https://x.example:443", "https://X.example/"], "https://x.example"),
        (["https://x.example:80/v1"], "https://x.example:80/v1"),
        (["https://x.example/V1"], "https://x.example/V1"),
        (["https://x.example/a%2fb", "https://x.example/a%2Fb"], "https://x.example/a%2Fb"),
        (["https://x.example/~a", "https://x.example/%7ea"], "https://x.example/~a"),
        (
            ["https://bücher.example", "https://XN--bcher-kva.example."],
            "https://xn--bcher-kva.example",
        ),
        (["http://[0:0::1]:8000/v1", "http://[::1]:08000/v1"], "http://[::1]:8000/v1"),
        (["http://127.1/v1", "http://0x7f.1/v1", "http://2130706433/v1"], "http://127.0.0.1/v1"),
    ],
)
def test_one_address_has_one_spelling(spellings: list[str], normal: str) -> None:
    assert {str(check_base_url(url, allow_private=True)) for url in spellings} == {normal}


@pytest.mark.parametrize("end", ["?x=1", "/?x=1", "?", "?api-version=2024-06-01&y"])
def test_paths_are_not_appended_to_a_query(end: str) -> None:
    with pytest.raises(RefusedAddress, match="must not hold a query"):
        check_base_url(f"http://x.example/v1{end}", allow_private=True)
    assert str(check_url(f"HTTP://X.example/v1{end}", allow_private=True)).startswith(
        f"http://x.example/v1{end}"
    )


def test_a_fragment_is_refused() -> None:
    with pytest.raises(RefusedAddress, match="a #"):
        check_url("http://x.example/v1#a", allow_private=True)
