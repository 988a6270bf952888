"""The OpenAI engine against a real HTTP server on this machine."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from workers.lib.engines.openai_engine import OpenAIEngine, Sampling, seed_of
from workers.lib.spec import JobError, SpecError


class Server(ThreadingHTTPServer):
    """Echoes the last message; `failures` are the statuses of its first answers."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.failures: list[int] = []
        self.raw: bytes | None = None
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
            status = self.server.failures.pop(0) if self.server.failures else 200
            self.server.busy += 1
            self.server.busiest = max(self.server.busiest, self.server.busy)
        time.sleep(0.02)
        with self.server.lock:
            self.server.busy -= 1
        answer = {
            "choices": [
                {
                    "message": {"role": "assistant", "content": f"{body['messages'][-1]['content']} {body['seed']}"},
                    "finish_reason": "length" if body["max_tokens"] < 5 else "stop",
                }
            ],
            "usage": {"prompt_tokens": 11, "completion_tokens": 3},
        }
        data = self.server.raw or json.dumps(answer if status == 200 else {"error": "no such thing"}).encode()
        self.send_response(status)
        if status in (429, 503):
            self.send_header("Retry-After", "0")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def engine_for(server: Server, **fields: object) -> OpenAIEngine:
    engine = OpenAIEngine({"base_url": server.url, "model": "m"} | fields)
    engine.first_wait_s = 0.001
    return engine


def said(*texts: str) -> list[list[dict]]:
    return [[{"role": "user", "content": text}] for text in texts]


def test_each_conversation_gets_its_own_answers_in_order(server: Server) -> None:
    engine = OpenAIEngine({"kind": "openai", "base_url": server.url, "model": "m"})
    sampling = Sampling(temperature=0.5, top_p=0.9, max_new_tokens=9, seed=4)
    found = dict(engine.generate(said("a", "b", "c"), sampling, 2))
    assert {index: [output.text for output in outputs] for index, outputs in found.items()} == {
        index: [f"{text} {seed_of(4, index, sample)}" for sample in range(2)] for index, text in enumerate("abc")
    }
    body, key, path = server.seen[0]
    assert path == "/v1/chat/completions" and key is None
    assert body["model"] == "m" and body["temperature"] == 0.5 and body["top_p"] == 0.9 and body["max_tokens"] == 9
    output = found[0][0]
    assert (output.prompt_tokens, output.output_tokens, output.truncated) == (11, 3, False)
    assert output.token_ids == output.logprobs == [] and output.latency_ms >= 20


def test_requests_run_side_by_side_up_to_the_limit(server: Server) -> None:
    list(engine_for(server, concurrency=3).generate(said(*"abcdef"), Sampling(), 2))
    assert 2 <= server.busiest <= 3


def test_an_answer_that_was_cut_says_so(server: Server) -> None:
    [(_, [output])] = engine_for(server).generate(said("a"), Sampling(max_new_tokens=2))
    assert output.truncated


def test_a_busy_server_is_asked_again(server: Server) -> None:
    server.failures = [429, 503, 500]
    [(_, [output])] = engine_for(server, concurrency=1).generate(said("a"), Sampling())
    assert output.text.startswith("a ") and len(server.seen) == 4


def test_a_server_that_stays_broken_ends_the_job_with_a_sentence(server: Server) -> None:
    server.failures = [503] * 100
    with pytest.raises(JobError, match=rf"127\.0\.0\.1:{server.server_port} gave no answer in 6 tries \(HTTP 503\)"):
        list(engine_for(server, concurrency=1).generate(said("a"), Sampling()))
    assert len(server.seen) == 6


@pytest.mark.parametrize(
    ("status", "says"),
    [(401, "refused the API key"), (404, "no model “m”"), (400, "HTTP 400.*no such thing"), (302, "redirects")],
)
def test_a_refusal_is_not_tried_again(status: int, says: str, server: Server) -> None:
    server.failures = [status]
    with pytest.raises(JobError, match=says):
        list(engine_for(server).generate(said("a"), Sampling()))
    assert len(server.seen) == 1


def test_a_refusal_drops_what_was_not_begun(server: Server) -> None:
    server.failures = [400]
    with pytest.raises(JobError):
        list(engine_for(server, concurrency=1).generate(said(*"abcdefghijklmnop"), Sampling()))
    assert len(server.seen) <= 3


@pytest.mark.parametrize("raw", [b"<html>", b"[]", b'{"choices": []}', b'{"choices": [{"message": null}]}'])
def test_an_answer_of_another_shape_is_said(raw: bytes, server: Server) -> None:
    server.raw = raw
    with pytest.raises(JobError, match="no chat completion"):
        list(engine_for(server).generate(said("a"), Sampling()))


def test_no_server_at_all_is_said() -> None:
    engine = OpenAIEngine({"base_url": "http://127.0.0.1:9/v1", "model": "m"})
    engine.first_wait_s = 0.001
    with pytest.raises(JobError, match=r"127\.0\.0\.1:9 gave no answer"):
        list(engine.generate(said("a"), Sampling()))


def test_the_key_comes_from_the_environment(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", "secret")
    list(engine_for(server, api_key_env="SOME_KEY").generate(said("a"), Sampling()))
    assert server.seen[0][1] == "Bearer secret"
    monkeypatch.delenv("SOME_KEY")
    with pytest.raises(JobError, match="SOME_KEY"):
        engine_for(server, api_key_env="SOME_KEY")


@pytest.mark.parametrize(
    ("engine", "says"),
    [
        ({"model": "m"}, "lacks “engine.base_url”"),
        ({"base_url": "http://127.0.0.1/v1"}, "lacks “engine.model”"),
        ({"base_url": "file:///etc/passwd", "model": "m"}, "http:// or https://"),
        ({"base_url": "/v1", "model": "m"}, "http:// or https://"),
    ],
)
def test_a_spec_that_names_no_server_is_refused(engine: dict, says: str) -> None:
    with pytest.raises(SpecError, match=says):
        OpenAIEngine(engine)
