"""Agents in their own harness in an environment with a state: its tools are at the rollout's
address, and the score is that of what was done there.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.workers.test_open_rollout import Spelling
from workers.lib.environments import load
from workers.lib.harness import open_rollout, playing
from workers.lib.harness.launchers import Launcher, Outcome, Work
from workers.lib.harness.playing import HarnessPlayer
from workers.lib.policies import PolicyError
from workers.lib.rollouts import Finished, Limits, play
from workers.lib.specs.engines import AgentEndpoint
from workers.lib.specs.harness import AgentCommand, AgentHarness
from workers.lib.token_rows import rows_of

AGENT = Path(__file__).parent / "agents" / "office_agent.py"
DELETE = "email_delete_email"
SPEC: dict[str, Any] = {
    "kind": "builtin",
    "name": "workplace_assistant",
    "harness": {"max_turns": 6},
    "verifier": {"kind": "tables"},
}


def call(number: int) -> str:
    made = {"name": DELETE, "arguments": {"email_id": f"{number:08}"}}
    return f"<tool_call>{json.dumps(made)}</tool_call>"


def task(number: int) -> dict:
    expected = {"calls": [{"tool": DELETE, "args": {"email_id": f"{number:08}"}}]}
    asked = f"Throw away the mail with the id {number:08}."
    return {
        "id": f"mail-{number}",
        "messages": [{"role": "user", "content": asked}],
        "expected": expected,
    }


def command(way: str = "plain", **more: Any) -> AgentHarness:
    given = AgentCommand(argv=[sys.executable, str(AGENT), way])
    return AgentHarness(name="office", version="1", command=given, **more)


class Playing(Spelling):
    """A sampler as `play` takes it."""

    shares_time = True

    def forget(self, key: int) -> None:
        """Nothing is stored."""

    async def aclose(self) -> None:
        """There is nothing to close."""


def played(
    harness: AgentHarness,
    *answers: str,
    launcher: Launcher | None = None,
    limits: Limits = Limits(seconds=60),  # noqa: B008
    **more: Any,
) -> Finished:
    found: list[Finished] = []
    player = HarnessPlayer(harness, launcher)
    player.start()
    try:
        play(
            Playing(*answers),
            load(SPEC),
            [task(1)],
            limits,
            lambda index, sample, done: found.append(done),
            player=player,
            **more,
        )
    finally:
        player.close()
    (done,) = found
    return done


@pytest.mark.parametrize(("number", "success"), [(1, True), (2, False)])
def test_what_is_done_at_the_address_is_scored_and_learned(number: int, success: bool) -> None:
    done = played(command(), call(number), "Done.")
    assert (done.score.success, done.score.masked) == (success, False)
    assert [one.name for one in done.rollout.calls] == [DELETE]
    (row,) = rows_of(done)
    learned = bytes(i for i, is_learned in zip(row.ids, row.learnt, strict=True) if is_learned)
    assert learned.decode() == f"{call(number)}Done."
    assert [m["role"] for m in done.score.messages] == ["assistant", "tool", "assistant"]


def test_calls_that_the_model_did_not_write_are_not_credited() -> None:
    done = played(command("cheats"), call(1), "Done.")
    assert done.score.mask_reason == open_rollout.OWN_CALL.format(DELETE)


def test_an_agent_that_ends_before_it_ran_a_call_is_told_so() -> None:
    launcher = Asking(("POST", "ID/v1/chat/completions", CHAT))
    done = played(command(), call(1), launcher=launcher)
    assert done.score.mask_reason == playing.STOPPED


class Service(BaseHTTPRequestHandler):
    """A deployed agent, which is told with each request where its model and its tools are."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        where, messages = asked["metadata"], asked["messages"]
        assert self.headers["X-Flywheel-Model-URL"] == where["flywheel_model_url"]
        while True:
            body = {"messages": messages, "tools": asked["tools"]}
            said = _post(f"{where['flywheel_model_url']}/chat/completions", body)
            messages.append(message := said["choices"][0]["message"])
            if not message.get("tool_calls"):
                break
            for one in message["tool_calls"]:
                name, given = one["function"]["name"], json.loads(one["function"]["arguments"])
                output = _post(f"{where['flywheel_tools']}/{name}", given)["output"]
                messages.append({"role": "tool", "tool_call_id": one["id"], "content": output})
        data = json.dumps({"messages": messages}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: Any) -> None:
        """Quiet."""


def _post(url: str, body: dict) -> dict:
    return httpx2.post(url, json=body, timeout=60).raise_for_status().json()


@pytest.fixture
def service() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Service)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def called(url: str) -> AgentHarness:
    endpoint = AgentEndpoint(base_url=url, name="office", version="1", allow_private=True)
    return AgentHarness(name="office", version="1", endpoint=endpoint)


def test_a_deployed_agent_is_called_with_its_addresses(service: str) -> None:
    done = played(called(service), call(1), "Done.")
    assert done.score.success and not done.score.mask_reason
    assert len(rows_of(done)) == 1


def test_an_agent_that_cannot_be_started_ends_the_run() -> None:
    gone = AgentHarness(name="a", version="1", command=AgentCommand(argv=["/nowhere/agent"]))
    with pytest.raises(PolicyError, match="cannot be started"):
        played(gone)


def test_an_agent_that_is_away_is_masked() -> None:
    done = played(called("http://127.0.0.1:9"), limits=Limits(seconds=30))
    assert "127.0.0.1:9" in done.score.mask_reason


class Asking:
    """A launcher that asks for itself, in the test's own process."""

    def __init__(self, *requests: tuple[str, str, dict]) -> None:
        self.requests, self.came = requests, list[httpx2.Response]()

    async def run(self, work: Work) -> Outcome:
        async with httpx2.AsyncClient() as client:
            for method, path, more in self.requests:
                url = f"{work.address.removesuffix(work.token)}{path.replace('ID', work.token)}"
                self.came.append(await client.request(method, url, **more))
        return Outcome()


CHAT = {"json": {"messages": [{"role": "user", "content": "Hello?"}]}}
KEYED = CHAT | {"headers": {"Authorization": "Bearer nobody"}}


@pytest.mark.parametrize(
    ("request_", "status", "says"),
    [
        (("POST", "nobody/v1/chat/completions", CHAT), 404, "No rollout has this address"),
        (("POST", "ID/v1/embeddings", CHAT), 404, "A rollout's address has no"),
        (("GET", "ID/v1/chat/completions", {}), 405, "Not Allowed"),
        (("POST", "ID/v1/chat/completions", {"content": b"{"}), 400, "not JSON"),
        (("POST", "ID/v1/chat/completions", {"json": CHAT["json"] | {"n": 8}}), 400, "n must be 1"),
        (("POST", "ID/v1/responses", {"json": {"input": "a", "store": True}}), 400, "store"),
        (("POST", "ID/v1/messages", CHAT), 400, "max_tokens"),
        (("POST", "ID/tools/launch_rocket", {"json": {}}), 404, "no tool “launch_rocket”"),
        (("GET", "ID/v1/models", {}), 200, "flywheel"),
        (("POST", "ID/chat/completions", KEYED), 200, "choices"),
    ],
)
def test_each_bad_request_gets_a_sentence(
    request_: tuple[str, str, dict], status: int, says: str
) -> None:
    launcher = Asking(request_)
    played(command(), launcher=launcher)
    (came,) = launcher.came
    assert came.status_code == status and says in came.text


@pytest.mark.parametrize("path", ["v1/chat/completions", "v1/responses", "v1/messages"])
@pytest.mark.parametrize("stream", [True, False])
def test_every_api_gives_the_answer_that_was_sampled(path: str, stream: bool) -> None:
    bodies = {
        "v1/chat/completions": CHAT["json"],
        "v1/responses": {"input": "Hello?", "store": False},
        "v1/messages": CHAT["json"] | {"max_tokens": 9},
    }
    launcher = Asking(("POST", f"ID/{path}", {"json": bodies[path] | {"stream": stream}}))
    done = played(command(), "As sampled.", launcher=launcher)
    assert "As sampled." in launcher.came[0].text
    assert [bytes(reply.token_ids) for reply in done.replies] == [b"As sampled."]
    assert not done.score.mask_reason


def test_the_key_may_be_the_rollouts_and_another_rollouts_is_refused() -> None:
    class Both(Asking):
        async def run(self, work: Work) -> Outcome:
            auth = {"headers": {"x-api-key": work.token}}
            self.requests = (("POST", "v1/chat/completions", CHAT | auth),)
            return await super().run(work)

    launcher = Both()
    assert not played(command(), "Yes.", launcher=launcher).score.mask_reason
    assert launcher.came[0].status_code == 200


def test_an_agent_that_hangs_fails_and_one_that_waits_for_the_model_does_not() -> None:
    class Hanging(Asking):
        async def run(self, work: Work) -> Outcome:
            import asyncio

            await super().run(work)
            await asyncio.sleep(60)
            return Outcome()

    hanging = Hanging(("POST", "ID/v1/chat/completions", CHAT))
    done = played(command(), "Yes.", launcher=hanging, limits=Limits(seconds=0.5))
    assert (done.stop_reason, done.score.masked, done.score.success) == ("time", False, False)
