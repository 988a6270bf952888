"""The tools of an MCP server as an environment, and what a server may do wrong."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.workers.episodes import played
from tests.workers.mcp_server import TOOLS, McpServer, running
from tests.workers.test_workplace_assistant import assistant
from workers.lib import mcp
from workers.lib.environments import load
from workers.lib.errors import SpecError
from workers.lib.mcp import McpClient, McpError
from workers.lib.outgoing import RefusedAddress
from workers.lib.verifiers import Score

TASK = {
    "id": "t1",
    "messages": [{"role": "user", "content": "Add 2."}],
    "expected": {"tool": "add", "args": {"n": 2}},
}
LISTED = [
    {
        "type": "function",
        "function": {
            "name": tool["name"],
            "description": tool.get("description", ""),
            "parameters": tool["inputSchema"],
        },
    }
    for tool in TOOLS
]


@pytest.fixture(params=[True, False], ids=["events", "json"])
def server(request: pytest.FixtureRequest) -> Iterator[McpServer]:
    with running(streamed=request.param) as server:
        yield server


def spec(server: McpServer, **config: Any) -> dict:
    given = {"url": server.url, "tools": LISTED} | config
    verifier = {"kind": "calls"}
    return {
        "kind": "mcp",
        "config": given,
        "harness": {},
        "verifier": verifier,
        "allow_private": True,
    }


def play(server: McpServer, *messages: dict, **config: Any) -> tuple[list[str], Score]:
    return played(spec(server, **config), TASK, *messages)


def tools_of(server: McpServer, **config: Any) -> list[dict]:
    async def ask() -> list[dict]:
        client = McpClient({"url": server.url} | config, allow_private=True)
        try:
            return await client.tools()
        finally:
            await client.end()

    return asyncio.run(ask())


def test_tools_are_listed_over_all_pages_and_the_session_is_ended(server: McpServer) -> None:
    assert tools_of(server) == LISTED and server.sums == {}
    assert server.seen == [
        ("initialize", None),
        ("notifications/initialized", "2025-03-26"),
        *[("tools/list", "2025-03-26")] * 2,
    ]


def test_calls_go_to_the_server_and_the_verifier_is_ours(server: McpServer) -> None:
    answers, score = play(server, assistant(("add", {"n": 2})), assistant(text="Done."))
    assert answers == ["sum\u20282 by None\n[image]"] and score.reward == 1 and score.success
    assert server.sums == {} and load(spec(server)).multi_turn


def test_what_goes_wrong_in_a_tool_is_an_observation(server: McpServer) -> None:
    answers, score = play(server, assistant(("fail", {}), ("fly", {})), assistant(text="Hm."))
    assert answers == ["Error: the till is closed", "Error: There is no tool fly."]
    assert not score.masked and not score.success


def test_a_state_that_went_through_json_goes_on_in_the_same_session(server: McpServer) -> None:
    async def run() -> list[str]:
        environment = load(spec(server))
        first = environment.open(TASK)
        done = [await first.call("add", {"n": 1})]
        again = environment.open(TASK, json.loads(json.dumps(first.state)))
        done.append(await again.call("add", {"n": 1}))
        other = environment.open(TASK)
        done.append(await other.call("add", {"n": 1}))
        await asyncio.gather(first.client.aclose(), again.close(), other.close())
        return [one.observation.split()[1] for one in done]

    assert asyncio.run(run()) == ["1", "2", "1"]


def test_the_key_goes_along_and_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MCP_KEY", "sk-secret")
    with running(streamed=True, key="sk-secret") as server:
        assert tools_of(server, api_key_env="MCP_KEY") == LISTED
        answers, _ = play(
            server, assistant(("add", {"n": 2})), assistant(text="Done."), api_key_env="MCP_KEY"
        )
        assert answers == ["sum\u20282 by Bearer [key]\n[image]"]
        with pytest.raises(McpError, match="wants a key"):
            tools_of(server)


JSON = "application/json"


@pytest.mark.more(rows=4)
@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((500, "text/plain", b""), "HTTP 500"),
        ((404, "text/plain", b""), "HTTP 404"),
        ((200, JSON, b"<html>"), "not JSON"),
        ((200, JSON, b"[" * 100_000), "not JSON"),
        ((200, JSON, b" " * (mcp.MAX_BYTES + 1)), "more than 4 MiB"),
        ((200, JSON, b'{"id": 9, "result": {}}'), "without an answer"),
        ((200, "text/event-stream", b'data: {"id": 2, "result": {}}'), "without an answer"),
        (
            (200, JSON, b'{"id": 2, "error": {"code": 1, "message": "no such page"}}'),
            "no such page",
        ),
        ((200, JSON, b'{"id": 2, "result": [1]}'), "no result"),
        ((200, JSON, b'{"id": 2, "result": {"tools": [{"name": ""}]}}'), "without a usable name"),
        (
            (200, JSON, json.dumps({"id": 2, "result": {"tools": TOOLS * 300}}).encode()),
            "more than 500 tools",
        ),
    ],
    ids=[
        "500",
        "404",
        "html",
        "deep",
        "large",
        "other id",
        "cut off",
        "error",
        "list",
        "no name",
        "many",
    ],
)
def test_a_server_that_breaks_the_protocol_is_told(
    answer: tuple[int, str, bytes], said: str
) -> None:
    with running(streamed=False) as server:
        server.answers["tools/list"] = answer
        with pytest.raises(McpError, match=said):
            tools_of(server)


def test_a_session_that_is_over_is_an_observation(server: McpServer) -> None:
    async def run() -> str:
        episode = load(spec(server)).open(TASK, {"session": "gone", "revision": "2025-06-18"})
        done = await episode.call("add", {"n": 1})
        await episode.close()
        return done.observation

    assert "the session is over" in asyncio.run(run())


@pytest.mark.parametrize(
    "config",
    [
        {"tools": []},
        {"url": "ftp://x"},
        {"headers": {}},
        {"timeout_s": "1"},
        {"api_key_env": "NOT_SET_ANYWHERE"},
    ],
    ids=str,
)
def test_a_wrong_config_is_refused(config: dict) -> None:
    given = {"url": "http://x", "tools": LISTED} | config
    with pytest.raises(SpecError, match=r"environment\.config|NOT_SET_ANYWHERE"):
        load({"kind": "mcp", "config": given, "harness": {}, "verifier": {"kind": "calls"}})


def test_addresses_inside_ones_network_need_leave() -> None:
    with running(streamed=False) as server, pytest.raises(RefusedAddress):
        asyncio.run(McpClient({"url": server.url}, allow_private=False).tools())
