"""A remote environment against a real resources-server on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.workers.episodes import played
from tests.workers.test_workplace_assistant import assistant
from workers.lib.environments import load, remote
from workers.lib.errors import SpecError
from workers.lib.verifiers import Score

TASK = {
    "id": "t1",
    "messages": [{"role": "user", "content": "Add 2."}],
    "tools": [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}],
    "expected": {"tool": "add", "args": {"n": 2}},
}


class Server(ThreadingHTTPServer):
    """Counts by session; the reward is 1 where the count is 2. `answers` replace what a path would
    say.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.sessions: dict[str, int] = {}
        self.seen: list[tuple[str, Any]] = []
        self.keys: set[str | None] = set()
        self.answers: dict[str, Any] = {}
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/env/x"


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        path = self.path.rsplit("/", 1)[1]
        cookie = (self.headers.get("Cookie") or "").removeprefix("sid=")
        with self.server.lock:
            self.server.seen.append((path, body))
            self.server.keys.add(self.headers.get("Authorization"))
            fresh = ""
            if path == "seed_session":
                cookie = fresh = f"s{len(self.server.sessions)}"
                self.server.sessions[fresh] = 0
            elif path == "add":
                self.server.sessions[cookie] += body.get("n", 0)
        answer: Any = {"output": self.server.sessions.get(cookie)}
        if path == "verify":
            answer = body | {
                "reward": float(self.server.sessions.get(cookie) == 2),
                "reward_components": {"count": 1, "bad": "x"},
            }
        self._say(self.server.answers.get(path, answer), fresh)

    def _say(self, answer: Any, fresh: str) -> None:
        if callable(answer):
            answer = answer()
        status, data = answer if isinstance(answer, tuple) else (200, json.dumps(answer).encode())
        self.send_response(status)
        if fresh:
            self.send_header("Set-Cookie", f"sid={fresh}")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        with contextlib.suppress(OSError):  # a client that has seen enough hangs up
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


def spec(server: Server, **config: Any) -> dict:
    return {
        "kind": "remote",
        "config": {"url": server.url} | config,
        "harness": {},
        "verifier": {},
        "allow_private": True,
    }


def play(server: Server, *messages: dict, **config: Any) -> tuple[list[str], Score]:
    return played(spec(server, **config), TASK, *messages)


def test_it_seeds_calls_and_verifies(server: Server) -> None:
    answers, score = play(server, assistant(("add", {"n": 2})), assistant(text="Done."))
    assert (
        answers == ['{"output": 2}']
        and score.reward == 1
        and score.success
        and score.components == {"count": 1}
    )
    assert [path for path, _ in server.seen] == ["seed_session", "add", "verify", "close_session"]
    row, verified = server.seen[0][1], server.seen[2][1]
    assert (
        row["responses_create_params"]["tools"][0]["name"] == "add"
        and row["ground_truth"][0]["name"] == "add"
    )
    kinds = [item["type"] for item in verified["response"]["output"]]
    assert kinds == ["function_call", "function_call_output", "message"] and verified["id"] == "t1"


def test_sessions_are_each_their_own(server: Server) -> None:
    async def run() -> list[float | None]:
        environment = load(spec(server))
        episodes = [environment.open(TASK) for _ in range(20)]
        for _ in range(2):
            await asyncio.gather(*(one.step(assistant(("add", {"n": 1}))) for one in episodes[:10]))
        await asyncio.gather(*(one.step(assistant(("add", {"n": 1}))) for one in episodes[10:]))
        scores = await asyncio.gather(*(one.score() for one in episodes))
        await asyncio.gather(*(one.close() for one in episodes))
        return [score.reward for score in scores]

    assert asyncio.run(run()) == [1.0] * 10 + [0.0] * 10


def test_a_state_that_went_through_json_goes_on_the_same(server: Server) -> None:
    async def run() -> float | None:
        environment = load(spec(server))
        first = environment.open(TASK)
        await first.step(assistant(("add", {"n": 1})))
        again = environment.open(TASK, json.loads(json.dumps(first.state)))
        await again.step(assistant(("add", {"n": 1})))
        score = await again.score()
        await asyncio.gather(first.client.aclose(), again.client.aclose())
        return score.reward

    assert asyncio.run(run()) == 1 and len(server.sessions) == 1


def test_a_tool_that_fails_is_an_observation(server: Server) -> None:
    server.answers["add"] = (500, b"Traceback /secret/path")
    answers, score = play(
        server,
        assistant(("add", {"n": 2}), ("fly", {}), ("add/../verify", {})),
        assistant(text="Hm."),
    )
    assert answers[0] == "Error: The tool did not answer (/add answered HTTP 500)."
    assert (
        "no tool fly" in answers[1] and "no tool add/../verify" in answers[2] and not score.masked
    )


def test_a_call_that_takes_too_long_is_an_observation_where_the_server_answers_others(
    server: Server,
) -> None:
    over = threading.Event()
    server.answers["add"] = lambda: over.wait(300)
    answers, score = play(
        server, assistant(("add", {"n": 2})), assistant(text="Hm."), timeout_s=4
    )  # for the others as well
    over.set()
    assert answers == ["Error: The tool did not answer (ReadTimeout)."] and not score.masked


ECHO = {"responses_create_params": {}, "response": {"id": "resp_t1"}}


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ({"reward": 1.0}, "does not echo"),
        (ECHO | {"reward": 1.0, "response": {"id": "other"}}, "echoes another"),
        (ECHO | {"reward": "1"}, "not a finite number"),
        (ECHO | {"reward": True}, "not a finite number"),
        (
            (200, b'{"responses_create_params": {}, "response": {"id": "resp_t1"}, "reward": NaN}'),
            "not a finite number",
        ),
        ([1], "not a JSON object"),
        ((200, b"<html>"), "not JSON"),
        ((503, b""), "HTTP 503"),
        ((200, b"[" * 100_000), "not JSON"),
        ((200, b" " * (remote.MAX_BYTES + 1)), "more than 4 MiB"),
        (
            ECHO
            | {
                "reward": 0,
                "mask_sample": True,
                "failure_kind": "judge",
                "failure_reason": "timeout",
            },
            "judge: timeout",
        ),
    ],
)
def test_a_verifier_that_breaks_the_protocol_masks_the_sample(
    server: Server, answer: Any, reason: str
) -> None:
    server.answers["verify"] = answer
    _, score = play(server, assistant(text="Done."))
    assert score.masked and score.reward is None and reason in score.mask_reason


@pytest.mark.parametrize(
    ("earned", "reason"),
    [
        ([0.75, 0.25], ""),
        (None, "reports no step_rewards"),
        ([0.75, "0.25"], "reports no step_rewards"),
        ([1.0], "1 step_rewards for 2 turns"),
        ([0.75, 0.5], "add up to 1.25, not to its reward of 1"),
    ],
)
def test_rewards_per_turn_are_components_or_mask_the_sample(
    server: Server, earned: Any, reason: str
) -> None:
    server.answers["verify"] = ECHO | {"reward": 1.0, "step_rewards": earned}
    _, score = play(
        server, assistant(("add", {"n": 2})), assistant(text="Done."), turn_rewards=True
    )
    assert score.masked == bool(reason) and reason in score.mask_reason
    assert score.components == ({} if reason else {"reward": 1.0, "turn_1": 0.75, "turn_2": 0.25})


def test_only_a_failed_connection_is_tried_again(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "FIRST_WAIT_S", 0.0)
    tries: list[str] = []
    once = remote.RemoteEpisode._once

    async def flaky(self: remote.RemoteEpisode, path: str, body: Any) -> Any:
        tries.append(path)
        if len(tries) < 3:
            raise remote.httpx2.ConnectError("refused")
        return await once(self, path, body)

    monkeypatch.setattr(remote.RemoteEpisode, "_once", flaky)
    server.answers["verify"] = (500, b"")
    _, score = play(server, assistant(text="Done."))
    assert (
        tries == ["seed_session"] * 3 + ["verify", "close_session"]
        and "HTTP 500" in score.mask_reason
    )


def test_the_key_goes_with_every_call_and_is_not_kept(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GYM_KEY", "sk-secret")
    server.answers["add"] = {"output": "You sent Bearer sk-secret"}
    steps = assistant(("add", {"n": 2})), assistant(text="Done.")
    answers, score = play(server, *steps, api_key_env="GYM_KEY")
    assert server.keys == {"Bearer sk-secret"} and len(server.seen) == 4
    assert "sk-secret" not in json.dumps([answers, score.messages]) and "[key]" in answers[0]


def test_a_key_that_is_not_set_is_told_before_any_call(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GYM_KEY", raising=False)
    with pytest.raises(SpecError, match="GYM_KEY, which should hold the key, is not set"):
        load(spec(server, api_key_env="GYM_KEY"))
    assert not server.seen


def test_a_slow_server_is_not_waited_for(server: Server) -> None:
    server.answers["verify"] = lambda: (time.sleep(0.5), ECHO)[1]
    _, score = play(server, assistant(text="Done."), timeout_s=0.1)
    assert score.masked and "Timeout" in score.mask_reason


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"url": "ftp://x"},
        {"url": 3},
        {"url": "http://x", "speed": 1},
        {"url": "http://x", "timeout_s": "1"},
        {"url": "http://x", "headers": {"Authorization": "Bearer secret"}},
        {"url": "http://x", "api_key_env": ["A"]},
    ],
)
def test_a_wrong_config_is_refused(config: dict) -> None:
    with pytest.raises(SpecError, match=r"environment\.config"):
        load({"kind": "remote", "config": config, "harness": {}, "verifier": {}})


def test_addresses_inside_ones_network_need_leave(server: Any) -> None:
    """Each tool call and each verification is refused at the connection, whatever name leads
    there.
    """
    spec = {"kind": "remote", "config": {"url": server.url}, "harness": {}, "verifier": {}}
    score = asyncio.run(load(spec).open(TASK).score())
    assert score.masked and "FLYWHEEL_ALLOW_PRIVATE_URLS" in score.mask_reason
