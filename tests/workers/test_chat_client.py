"""The one chat client against a real HTTP server on this machine: what it sends, what it asks
again, what it says of errors.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from workers.lib.chat_client import MAX_BYTES, AsyncChatClient, ChatClient, ChatError, ChatServer
from workers.lib.clients import chat_server
from workers.lib.clocks import Clock
from workers.lib.errors import SpecError
from workers.lib.posts import Answer, TooLate
from workers.lib.specs.engines import ModelServer


class Server(ThreadingHTTPServer):
    """Echoes the last message; `failures` are the statuses of its first answers."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.failures: list[int] = []
        self.raw: bytes | None = None
        self.packed = False
        self.refuses = "such thing"
        self.headers: list[dict[str, str]] = []
        self.seen: list[tuple[dict, str | None, str]] = []
        self.lock = threading.Lock()
        self.busy = self.busiest = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *_: object) -> None:
        pass

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.seen.append((body, self.headers.get("Authorization"), self.path))
            self.server.headers.append(dict(self.headers.items()))
            status = self.server.failures.pop(0) if self.server.failures else 200
            self.server.busy += 1
            self.server.busiest = max(self.server.busiest, self.server.busy)
        time.sleep(0.02)
        with self.server.lock:
            self.server.busy -= 1
        answer = {
            "choices": [
                {
                    "message": {
                        "role": "assistant",
                        "content": f"{body['messages'][-1]['content']} {body.get('seed')}",
                    },
                    "finish_reason": "length" if body.get("max_tokens", 9) < 5 else "stop",
                }
            ],
            "usage": {"prompt_tokens": 11, "completion_tokens": 3},
        }
        data = (
            self.server.raw
            or json.dumps(
                answer if status == 200 else {"error": f"no {self.server.refuses}"}
            ).encode()
        )
        self.send_response(status)
        if status in (429, 503):
            self.send_header("Retry-After", "0")
        if self.server.packed:
            data = gzip.compress(data)
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
    )
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


CHAT = [{"role": "user", "content": "a"}]


def at(server: Server, **changes: Any) -> ChatServer:
    return ChatServer(server.url, "m", **{"allow_private": True, "tries": 6} | changes)


def ask(server: ChatServer, **body: Any) -> dict:
    with ChatClient(server, sleep=lambda seconds: None) as client:
        return client.ask({"messages": CHAT} | body)


def text(answer: dict) -> str:
    return answer["choices"][0]["message"]["content"]


def failed(server: ChatServer, **body: Any) -> ChatError:
    with pytest.raises(ChatError) as caught:
        ask(server, **body)
    return caught.value


def test_a_question_is_sent_as_it_is(server: Server) -> None:
    answer = ask(at(server), temperature=0.5, seed=4, max_tokens=2)
    assert text(answer) == "a 4" and answer["choices"][0]["finish_reason"] == "length"
    assert server.seen == [
        (
            {"model": "m", "messages": CHAT, "temperature": 0.5, "seed": 4, "max_tokens": 2},
            None,
            "/v1/chat/completions",
        )
    ]


def test_nothing_of_this_process_goes_along(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenAI's package would send what the environment says of an account, and what it knows of
    this machine.
    """
    for name in ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID"):
        monkeypatch.setenv(name, "sk-of-the-operator")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "X-Inside: sk-of-the-operator")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    assert text(ask(at(server), seed=1)) == "a 1"
    names = {name.lower() for name in server.headers[0]}
    assert names <= {
        "host",
        "accept",
        "accept-encoding",
        "connection",
        "content-length",
        "content-type",
        "user-agent",
    }
    assert "sk-of" not in json.dumps(server.headers)


def test_questions_run_side_by_side_up_to_the_limit(server: Server) -> None:
    async def run() -> list[dict]:
        client = AsyncChatClient(at(server), concurrency=3)
        try:
            asked = [client.ask({"messages": CHAT, "seed": seed}) for seed in range(12)]
            return [answer for answer, latency_ms in await asyncio.gather(*asked) if latency_ms > 0]
        finally:
            await client.aclose()

    assert [text(answer) for answer in asyncio.run(run())] == [f"a {seed}" for seed in range(12)]
    assert 2 <= server.busiest <= 3


def test_a_busy_server_is_asked_again(server: Server) -> None:
    server.failures = [429, 503, 500]
    assert text(ask(at(server), seed=1)) == "a 1" and len(server.seen) == 4


def test_a_server_that_stays_broken_is_said(server: Server) -> None:
    server.failures = [503] * 100
    error = failed(at(server))
    assert (
        f"127.0.0.1:{server.server_port} gave no answer in 6 tries (HTTP 503)" in str(error)
        and not error.final
    )
    assert len(server.seen) == 6


@pytest.mark.parametrize(
    ("status", "says", "final"),
    [
        (401, "wants a key", True),
        (404, "no model “m”, or the address is not its /v1 (HTTP 404): ", True),
        (400, "no such thing", False),
        (302, "redirects", True),
    ],
)
def test_a_refusal_is_not_tried_again(status: int, says: str, final: bool, server: Server) -> None:
    server.failures = [status]
    error = failed(at(server), seed=1)
    assert (
        says in str(error)
        and f"HTTP {status}" in str(error)
        and error.final is final
        and len(server.seen) == 1
    )


def test_what_a_server_does_not_know_is_left_out_from_then_on(server: Server) -> None:
    server.failures, server.refuses = [400], "seed"
    with ChatClient(at(server)) as client:
        assert [text(client.ask({"messages": CHAT, "seed": seed})) for seed in (1, 2)] == [
            "a None",
            "a None",
        ]
    assert ["seed" in body for body, _, _ in server.seen] == [True, False, False]


@pytest.mark.parametrize(
    "error", [{"message": "overloaded.", "code": 503}, {"code": "overloaded"}, "overloaded"]
)
@pytest.mark.parametrize("answer", [{}, {"choices": [{"message": {"content": "half of it"}}]}])
def test_an_error_that_came_as_200_is_an_error_in_its_own_words(
    server: Server, error: Any, answer: dict
) -> None:
    server.raw = json.dumps(answer | {"error": error}).encode()
    assert (
        "answered with an error: " in str(found := failed(at(server)))
        and "overloaded" in str(found)
        and found.paid
    )
    server.raw = json.dumps(
        {"error": None, "choices": [{"message": {"content": "all of it"}}]}
    ).encode()
    assert text(ask(at(server))) == "all of it"


@pytest.mark.parametrize(
    "raw", [b"<html>", b"[]", b'{"choices": []}', b'{"choices": [{"message": null}]}', b"\xff"]
)
def test_an_answer_of_another_shape_is_said(raw: bytes, server: Server) -> None:
    server.raw = raw
    assert "not a chat completion" in str(error := failed(at(server))) and error.paid


def test_an_answer_is_bounded_packed_or_not(server: Server) -> None:
    server.raw = b" " * (MAX_BYTES + 1)
    assert "more than 2 MiB" in str(failed(at(server)))
    server.packed = True
    assert "packed" in str(failed(at(server)))


def test_no_server_at_all_is_said() -> None:
    assert "127.0.0.1:9 gave no answer" in str(
        failed(ChatServer("http://127.0.0.1:9/v1", "m", allow_private=True))
    )


def test_an_address_inside_is_not_called_where_that_is_not_allowed(server: Server) -> None:
    for url in (server.url, server.url.replace("127.0.0.1", "localhost")):
        error = failed(ChatServer(url, "m"))
        assert "FLYWHEEL_ALLOW_PRIVATE_URLS" in str(error) and error.final
    assert not server.seen


def test_the_key_comes_from_the_environment_and_is_never_said(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_KEY", 'sk-"secret')
    with_key = at(server, key_variable="SOME_KEY")
    server.raw = json.dumps({"choices": [{"message": {"content": 'I got sk-"secret'}}]}).encode()
    assert text(ask(with_key)) == "I got [key]" and server.seen[0][1] == 'Bearer sk-"secret'
    server.failures, server.raw = [400], b'bad sk-"secret'
    assert "secret" not in str(failed(with_key))
    assert "may not be read" in str(
        failed(at(server, key_variable="SOME_KEY", key_hosts={"OTHER": ""}))
    )
    monkeypatch.delenv("SOME_KEY")
    assert "SOME_KEY" in str(failed(with_key))


@pytest.mark.parametrize(
    ("engine", "says"),
    [
        ({"base_url": "file:///etc/passwd", "model": "m"}, "http:// or https://"),
        ({"base_url": "/v1", "model": "m"}, "http:// or https://"),
    ],
)
def test_a_spec_that_names_no_server_is_refused(engine: dict, says: str) -> None:
    with pytest.raises(SpecError, match=says):
        chat_server(ModelServer(**engine), "engine")


@pytest.mark.parametrize("patient", [True, False])
def test_a_server_that_is_too_slow_for_so_many_questions_is_asked_fewer_at_a_time(
    patient: bool,
) -> None:
    """It answers three at a time in time; a question beside more than two others is too late."""
    running = asked = 0

    async def post(body: bytes, reader: Any) -> Answer:
        nonlocal running, asked
        running, asked = running + 1, asked + 1
        try:
            for _ in range(3):
                await asyncio.sleep(0)
            if running > 3:
                raise TooLate
            return Answer(200, json.dumps({"choices": [{"message": {"content": "yes"}}]}).encode())
        finally:
            running -= 1

    async def ask_many() -> list[Any]:
        client = AsyncChatClient(
            ChatServer("http://127.0.0.1:9/v1", "m", allow_private=True),
            concurrency=16,
            patient=patient,
        )
        client.posts.post = post  # type: ignore[method-assign]
        questions = [
            client.ask({"messages": [{"role": "user", "content": str(n)}]}) for n in range(40)
        ]
        return await asyncio.gather(*questions, return_exceptions=True)

    answers = asyncio.run(ask_many())
    late = [found for found in answers if isinstance(found, ChatError)]
    assert len(late) + sum(isinstance(found, tuple) for found in answers) == 40
    if patient:
        assert not late and 40 < asked <= 40 + 16 + 8 + 4
    else:
        assert late and asked == 40, "a question that may be billed is asked once"


LATE = ChatServer("http://127.0.0.1:9/v1", "m", allow_private=True)


@pytest.mark.parametrize("patient", [True, False])
def test_a_server_that_answers_nothing_in_time_ends_the_job(patient: bool) -> None:
    async def post(body: bytes, reader: Any) -> Answer:
        await asyncio.sleep(0)
        raise TooLate

    async def no_wait(_: float) -> None:
        await asyncio.sleep(0)

    async def ask_many() -> list[Any]:
        client = AsyncChatClient(LATE, concurrency=8, patient=patient)
        client.posts.post, client.sleep = post, no_wait  # type: ignore[method-assign]
        return await asyncio.gather(
            *(client.ask({"messages": []}) for _ in range(20)), return_exceptions=True
        )

    errors = asyncio.run(ask_many())
    assert any(error.final and "nothing can be measured there" in str(error) for error in errors)


def test_waiting_for_a_turn_and_repeated_tries_are_not_the_agents_time() -> None:
    """Where a server that answers one question at a time is asked two."""
    seen: list[Any] = []

    async def ask_both() -> None:
        client, first = AsyncChatClient(LATE, concurrency=1, patient=True), asyncio.Event()

        async def post(body: bytes, reader: Any) -> Answer:
            seen.append(clock._limit.when())
            await first.wait()
            return Answer(200, b'{"choices": [{"message": {"content": "yes"}}]}')

        client.posts.post = post  # type: ignore[method-assign]
        other = asyncio.create_task(client.ask({"messages": []}))
        clock = Clock(600)
        async with clock.running():
            second = asyncio.create_task(client.ask({"messages": []}))
            while not client.turns.running or len(client.turns.free._waiters) < 1:
                await asyncio.sleep(0)
            seen.append(clock._limit.when())
            first.set()
            await asyncio.gather(other, second)
            seen.append(clock._limit.when())

    asyncio.run(ask_both())
    *stopped, running = seen
    assert stopped[1:] == [None, None] and running is not None
