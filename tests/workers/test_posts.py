"""POSTs against peers that behave in every way a peer can, in the same event loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from workers.lib import outgoing, posts
from workers.lib.outgoing import Bounds, RefusedAddress, TooMuch, check_url
from workers.lib.posts import Answer, NoAnswer, Posts, TooLate

Talk = Callable[["Line"], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


class Line:
    """One connection, as the peer has it."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, requests: list[bytes]
    ) -> None:
        self.reader, self.writer, self.requests = reader, writer, requests

    async def request(self) -> None:
        head = await self.reader.readuntil(b"\r\n\r\n")
        size = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        self.requests.append(head + await self.reader.readexactly(size))

    async def says(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def forever(self, data: bytes, pause_s: float = 0.0) -> None:
        while True:
            await self.says(data)
            await asyncio.sleep(pause_s)


class Peer:
    def __init__(self, talk: Talk) -> None:
        self.talk, self.requests, self.lines, self.ended = talk, list[bytes](), 0, 0
        self.port = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.lines += 1
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                await self.talk(Line(reader, writer, self.requests))
        finally:
            self.ended += 1
            writer.close()

    def client(
        self, url: str = "", *, private: bool = True, bounds: Bounds | None = None, **headers: str
    ) -> Posts:
        address = check_url(url or f"http://127.0.0.1:{self.port}/v1/x?a=b", allow_private=True)
        return Posts(
            address, allow_private=private, bounds=bounds or Bounds(1000, 30.0), headers=headers
        )


@contextlib.asynccontextmanager
async def peer(talk: Talk, **options: Any) -> AsyncIterator[Peer]:
    found = Peer(talk)
    server = await asyncio.start_server(found, "127.0.0.1", 0, **options)
    found.port = server.sockets[0].getsockname()[1]
    try:
        yield found
    finally:
        server.close()


def says(*data: bytes) -> Talk:
    """A request, one answer, the next request, …; then the end of the connection."""

    async def talk(line: Line) -> None:
        for one in data:
            await line.request()
            await line.says(one)

    return talk


def posted(talk: Talk, bounds: Bounds | None = None) -> Answer:
    async def run() -> Answer:
        async with peer(talk) as there:
            client = there.client(bounds=bounds)
            try:
                return await client.post(b"{}")
            finally:
                await client.aclose()

    return asyncio.run(run())


def test_a_request_is_what_http_wants() -> None:
    async def run() -> tuple[Answer, Peer]:
        async with peer(says(OK)) as there:
            client = there.client(Accept="application/json")
            answer = await client.post(b'{"a": 1}')
            await client.aclose()
            return answer, there

    answer, there = asyncio.run(run())
    assert (answer.status, answer.body, answer.headers) == (200, b"ok", {"content-length": "2"})
    assert there.requests == [
        f"POST /v1/x?a=b HTTP/1.1\r\nHost: 127.0.0.1:{there.port}\r\nAccept-Encoding: identity\r\n"
        f'Accept: application/json\r\nContent-Length: 8\r\n\r\n{{"a": 1}}'.encode()
    ]


@pytest.mark.parametrize(
    ("data", "status", "body"),
    [
        (CHUNKED + b"2\r\nab\r\n1;x=y\r\nc\r\n0\r\nX-After: 1\r\n\r\n", 200, b"abc"),
        (b"HTTP/1.1 200 OK\r\n\r\nto the end", 200, b"to the end"),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\na", 200, b"a"),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nLink: x\r\n\r\n" + OK, 200, b"ok"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b""),
        (
            b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:9/\r\nContent-Length: 0\r\n\r\n",
            302,
            b"",
        ),
        (b"HTTP/1.1 500 No\r\nContent-Length: 3\r\n\r\nwhy", 500, b"why"),
        (
            b"HTTP/1.1 200 OK\r\nContent-Encoding: identity\r\nContent-Length: 2\r\n\r\nok",
            200,
            b"ok",
        ),
    ],
    ids=["chunked", "to the end", "HTTP/1.0", "goes on", "empty", "redirect", "error", "identity"],
)
def test_what_answers_are_read(data: bytes, status: int, body: bytes) -> None:
    answer = posted(says(data))
    assert (answer.status, answer.body) == (status, body)


def test_an_answer_may_come_byte_by_byte() -> None:
    async def talk(line: Line) -> None:
        await line.request()
        for byte in CHUNKED + b"3\r\nabc\r\n0\r\n\r\n":
            await line.says(bytes([byte]))
            await asyncio.sleep(0)

    assert posted(talk).body == b"abc"


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "ended the connection without an answer"),
        (b"HTTP/1.1 200 OK\r\nContent-Le", "ended the connection without an answer"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", "within its answer"),
        (CHUNKED + b"9\r\nhalf", "within its answer"),
        (CHUNKED + b"zz\r\n", "not HTTP"),
        (b"220 mail.example.com ESMTP\r\n", "not HTTP"),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\nok",
            "not HTTP",
        ),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nokk", "not HTTP"),
        (b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nzz", "not HTTP"),
    ],
)
def test_what_is_no_answer_is_said(data: bytes, why: str) -> None:
    with pytest.raises(NoAnswer, match=why) as caught:
        posted(says(data))
    assert not isinstance(caught.value, TooLate)


def endless(start: bytes, part: bytes) -> Talk:
    async def talk(line: Line) -> None:
        await line.request()
        await line.says(start)
        await line.forever(part)

    return talk


BIG = b"x" * 5000


@pytest.mark.parametrize(
    "talk",
    [
        says(b"HTTP/1.1 200 OK\r\nContent-Length: 1001\r\n\r\n" + b"x" * 1001),
        endless(CHUNKED, b"5\r\nabcde\r\n"),
        endless(b"HTTP/1.1 200 OK\r\n\r\n", BIG),
        endless(b"HTTP/1.1 200 OK\r\n", b"X-More: " + BIG + b"\r\n"),
        endless(b"HTTP/1.1 200 OK\r\nX-Long: ", BIG),
        endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        endless(CHUNKED + b"1\r\na\r\n0\r\n", b"X-After: " + BIG + b"\r\n"),
        endless(CHUNKED + b"1;x=", BIG),
    ],
    ids=[
        "length",
        "chunks",
        "to the end",
        "headers",
        "one header",
        "goes on",
        "trailers",
        "a chunk's extension",
    ],
)
def test_what_has_no_end_is_cut_off(talk: Talk) -> None:
    with pytest.raises(TooMuch) as caught:
        posted(talk)
    assert caught.value.limit == "size"


def test_a_packed_answer_is_not_read() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\nok"
    with pytest.raises(TooMuch, match="packed"):
        posted(says(head))


def drips(start: bytes, part: bytes) -> Talk:
    async def talk(line: Line) -> None:
        await line.request()
        await line.says(start)
        await line.forever(part, 0.01)

    return talk


async def hangs(line: Line) -> None:
    await line.request()
    await asyncio.sleep(3600)


@pytest.mark.parametrize(
    "talk",
    [hangs, drips(b"HTTP/1.1 200 OK\r\nX: ", b"x"), drips(b"", b"HTTP/1.1 100 Go on\r\n\r\n")],
)
def test_no_answer_in_time_is_told_apart(talk: Talk) -> None:
    with pytest.raises(TooLate):
        posted(talk, Bounds(10**6, 0.2))


def test_an_answer_that_drips_is_cut_off() -> None:
    """A pause never lasts as long as the limit; the whole does."""
    with pytest.raises(TooMuch, match=r"no end within 0\.2 s") as caught:
        posted(drips(CHUNKED, b"1\r\nx\r\n"), Bounds(10**6, 0.2))
    assert caught.value.limit == "time"


# Connections


async def echoes(line: Line) -> None:
    while True:
        await line.request()
        body = line.requests[-1].partition(b"\r\n\r\n")[2]
        await line.says(f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)


def lines_for(talk: Talk, questions: int = 2) -> tuple[list[Answer], int]:
    """The answers to questions one after the other, and the number of connections they took."""

    async def run() -> tuple[list[Answer], int]:
        async with peer(talk) as there:
            client, found = there.client(), []
            for number in range(questions):
                found.append(await client.post(str(number).encode()))
                await asyncio.sleep(0.01)  # an end of the connection arrives
            await client.aclose()
            return found, there.lines

    return asyncio.run(run())


def test_a_connection_is_used_again() -> None:
    answers, lines = lines_for(echoes, 5)
    assert [answer.body for answer in answers] == [b"0", b"1", b"2", b"3", b"4"] and lines == 1


@pytest.mark.parametrize(
    "data",
    [
        OK,
        OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"),
        OK + OK,
        OK + b"garbage",
        b"HTTP/1.1 200 OK\r\n\r\nok",
    ],
    ids=["ended", "asked to close", "two answers", "garbage behind", "to the end"],
)
def test_a_connection_that_may_say_something_else_is_not_used_again(data: bytes) -> None:
    answers, lines = lines_for(says(data))
    assert [answer.body for answer in answers] == [b"ok", b"ok"] and lines == 2


def test_a_peer_that_ends_a_connection_in_words_only_is_taken_by_its_word() -> None:
    async def talk(line: Line) -> None:
        while True:
            await line.request()
            await line.says(OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))

    assert lines_for(talk)[1] == 2


def test_what_comes_before_it_was_asked_for_is_no_answer() -> None:
    """A peer that pushes the answer to the next question, which may be somebody else's."""

    async def talk(line: Line) -> None:
        await line.request()
        await line.says(OK)
        await line.says(OK.replace(b"ok", b"no"))
        await asyncio.sleep(3600)

    answers, lines = lines_for(talk)
    assert [answer.body for answer in answers] == [b"ok", b"ok"] and lines == 2


def test_an_idle_connection_is_not_kept_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(posts, "KEPT_S", 0.0)
    assert lines_for(echoes)[1] == 2


def test_as_many_connections_as_questions_at_a_time() -> None:
    async def run() -> tuple[list[Answer], int]:
        async with peer(echoes) as there:
            client = there.client()
            answers = await asyncio.gather(*(client.post(b"%d" % number) for number in range(50)))
            answers += await asyncio.gather(
                *(client.post(b"%d" % number) for number in range(50, 100))
            )
            await client.aclose()
            return answers, there.lines

    answers, lines = asyncio.run(run())
    assert [int(answer.body) for answer in answers] == list(range(100)) and lines == 50


async def waits(line: Line) -> None:
    await line.request()
    await line.reader.read()  # until the other side ends the connection


@pytest.mark.parametrize("how", ["cancelled", "closed"])
def test_who_stops_asking_leaves_no_connection(how: str) -> None:
    async def run() -> object:
        async with peer(waits) as there:
            client = there.client()
            asked = asyncio.create_task(client.post(b"{}"))
            while not there.requests:
                await asyncio.sleep(0.001)
            if how == "cancelled":
                asked.cancel()
            else:
                await client.aclose()
            [end] = await asyncio.gather(asked, return_exceptions=True)
            while not there.ended:
                await asyncio.sleep(0.001)
            assert not client.free and not client.open
            return end

    assert isinstance(
        asyncio.run(run()), asyncio.CancelledError if how == "cancelled" else NoAnswer
    )


# Addresses


def named(monkeypatch: pytest.MonkeyPatch, *lookups: list[str]) -> list[str]:
    """Each lookup of a name gives the next list of addresses; returns the names as they are asked
    for.
    """
    asked, left = list[str](), iter(lookups)

    def getaddrinfo(host: str, port: int, *args: Any, **more: Any) -> list:
        if host == "127.0.0.1":
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port))]
        asked.append(host)
        return [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in next(left)
        ]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return asked


def ask_named(
    monkeypatch: pytest.MonkeyPatch, *lookups: list[str], private: bool
) -> tuple[Answer, list[str], Peer]:
    async def run() -> tuple[Answer, list[str], Peer]:
        async with peer(echoes) as there:
            asked = named(monkeypatch, *lookups)
            client = there.client(f"http://model.example.com:{there.port}/v1", private=private)
            try:
                return await client.post(b"x"), asked, there
            except BaseException:
                assert not there.lines
                raise
            finally:
                await client.aclose()

    return asyncio.run(run())


@pytest.mark.parametrize(
    "found", [["127.0.0.1"], ["93.184.216.34", "127.0.0.1"], ["::ffff:127.0.0.1"], ["10.0.0.1"]]
)
def test_a_name_that_leads_inside_is_not_called(
    monkeypatch: pytest.MonkeyPatch, found: list[str]
) -> None:
    with pytest.raises(
        RefusedAddress, match=r"model.example.com is at .*FLYWHEEL_ALLOW_PRIVATE_URLS"
    ):
        ask_named(monkeypatch, found, private=False)


def test_a_cloud_s_own_address_is_never_called(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RefusedAddress, match="metadata service"):
        ask_named(monkeypatch, ["169.254.169.254"], private=True)


def test_the_address_that_was_checked_is_connected_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """One lookup for one connection: a name that changes its mind gains nothing."""
    answer, asked, there = ask_named(monkeypatch, ["127.0.0.1"], ["169.254.169.254"], private=True)
    assert answer.body == b"x" and asked == ["model.example.com"]
    assert f"Host: model.example.com:{there.port}".encode() in there.requests[0]


def test_the_next_address_of_a_name_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    answer, _, there = ask_named(
        monkeypatch, ["::1", "127.0.0.1"], private=True
    )  # the peer is at the second only
    assert answer.body == b"x" and there.lines == 1


def test_a_name_that_there_is_not_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def getaddrinfo(*args: Any, **more: Any) -> list:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    client = Peer(echoes).client("http://nowhere.example.com/v1")
    with pytest.raises(
        NoAnswer, match=r"nowhere.example.com cannot be found: Name or service not known"
    ):
        asyncio.run(client.post(b""))


def test_no_server_is_said() -> None:
    with pytest.raises(NoAnswer, match="no connection: "):
        asyncio.run(Peer(echoes).client("http://127.0.0.1:9/v1").post(b""))


# TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A key and a certificate for model.example.com that nobody has signed but itself."""
    folder = tmp_path_factory.mktemp("tls")
    both = folder / "both.pem"
    made = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj"
        " /CN=model.example.com"
    )
    try:
        subprocess.run(
            [
                *made.split(),
                "-addext",
                "subjectAltName=DNS:model.example.com",
                "-keyout",
                folder / "key",
                "-out",
                folder / "cert",
            ],
            check=True,
            capture_output=True,
        )
    except FileNotFoundError:
        pytest.skip("no openssl here")
    both.write_text((folder / "key").read_text() + (folder / "cert").read_text())
    return both


def over_tls(
    monkeypatch: pytest.MonkeyPatch, certificate: Path, host: str, trusted: ssl.SSLContext | None
) -> Answer:
    async def run() -> Answer:
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.load_cert_chain(certificate)
        if trusted is not None:
            monkeypatch.setattr(posts, "tls", lambda: trusted)
        async with peer(echoes, ssl=server) as there:
            named(monkeypatch, ["127.0.0.1"], ["127.0.0.1"])
            client = there.client(f"https://{host}:{there.port}/v1")
            try:
                await client.post(b"one")
                return await client.post(b"two")
            finally:
                await client.aclose()

    return asyncio.run(run())


def test_tls_is_spoken_where_the_url_says_so(
    monkeypatch: pytest.MonkeyPatch, certificate: Path
) -> None:
    trusted = ssl.create_default_context(cafile=str(certificate))
    assert over_tls(monkeypatch, certificate, "model.example.com", trusted).body == b"two"
    with pytest.raises(NoAnswer, match="its certificate is refused"):
        over_tls(monkeypatch, certificate, "other.example.com", trusted)


def test_a_certificate_of_nobody_is_refused(
    monkeypatch: pytest.MonkeyPatch, certificate: Path
) -> None:
    assert posts.tls is outgoing.tls
    with pytest.raises(NoAnswer, match="its certificate is refused"):
        over_tls(monkeypatch, certificate, "model.example.com", None)
