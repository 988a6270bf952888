"""OpenEnv servers: their tools are discovered, an episode is one connection, the rewards of its
steps count.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.workers.openenv_server import Server, serving
from workers.lib.environments import load
from workers.lib.environments.gym_tools import described_tools
from workers.lib.errors import SpecError
from workers.lib.messages import to_native
from workers.lib.openenv import OpenEnvError, http_client, tools_of
from workers.lib.verifiers import Score


def discovered(server: Server) -> tuple[list[dict], bool]:
    async def ask() -> tuple[list[dict], bool]:
        async with http_client({"url": server.url}, allow_private=True) as http:
            return await tools_of(http)

    return asyncio.run(ask())


def spec_of(server: Server, **more: Any) -> dict:
    tools, by_mcp = discovered(server)
    return {
        "kind": "openenv",
        "config": {"url": server.url, "tools": tools, "mcp": by_mcp},
        "allow_private": True,
    } | more


def play(
    spec: dict, calls: list[tuple[str, dict]], reset: dict | None = None, state: dict | None = None
) -> tuple[Any, Score | None]:
    async def run() -> tuple[Any, Score | None]:
        task = {
            "id": "t",
            "messages": [{"role": "user", "content": "Go."}],
            "metadata": {"reset": reset or {}},
        }
        episode = load(spec).open(task, state)
        try:
            for name, args in calls:
                if not episode.done:
                    await episode.step({"content": None, "tool_calls": [to_native(name, args)]})
            return episode, None if episode.failure else await episode.score()
        finally:
            await episode.close()

    return asyncio.run(run())


def test_a_server_without_tools_has_its_action_and_the_first_observation() -> None:
    with serving() as server:
        tools, by_mcp = discovered(server)
    assert [tool["function"]["name"] for tool in tools] == ["observe", "step"] and not by_mcp
    step = tools[1]["function"]
    assert step["description"] == "Moves the counter."
    assert step["parameters"] == {
        "type": "object",
        "additionalProperties": False,
        "required": ["by"],
        "properties": {"by": {"type": "integer"}},
    }


def test_an_episode_is_one_connection_whose_rewards_add_up() -> None:
    with serving() as server:
        calls = [
            ("observe", {}),
            ("step", {"by": "x"}),
            ("step", {"by": 1}),
            ("step", {"by": 2}),
            ("step", {"by": 9}),
        ]
        episode, score = play(spec_of(server), calls, reset={"goal": 3})
        assert [call.observation for call in episode.calls] == [
            '{"value": 0}',
            "Error: The environment refused the action (Invalid message).",
            '{"value": 1}',
            '{"value": 3}',
        ]
        assert (episode.stop_reason, score.reward, score.success) == ("finished", 1.0, True)
        assert len(server.sessions) == 1 and server.sessions[0][0] == {
            "type": "reset",
            "data": {"goal": 3},
        }
        _, score = play(spec_of(server), [("step", {"by": 1}), ("step", {"by": 1})])
        assert score.reward == 1.0 and server.sessions[1][-1]["type"] == "close"


def test_tools_of_its_own_are_called_by_their_names() -> None:
    with serving(by_mcp=True) as server:
        spec = spec_of(server)
        assert [tool["function"]["name"] for tool in spec["config"]["tools"]] == ["add"]
        episode, score = play(spec, [("add", {"by": 1}), ("drop", {}), ("add", {"by": 1})])
        assert [call.observation for call in episode.calls] == [
            "1",
            "Error: There is no tool drop.",
            "2",
        ]
        assert score.success and server.sessions[0][1]["data"] == {
            "type": "call_tool",
            "tool_name": "add",
            "arguments": {"by": 1},
        }


def test_an_episode_that_is_opened_again_does_again_what_was_done() -> None:
    with serving() as server:
        spec = spec_of(server)
        episode, _ = play(spec, [("step", {"by": 1})], reset={"goal": 5})
        again, score = play(spec, [("step", {"by": 4})], reset={"goal": 5}, state=episode.state)
        assert again.calls[-1].observation == '{"value": 5}' and score.reward == 1.0


def test_another_verifier_may_score() -> None:
    with serving() as server:
        spec = spec_of(server, verifier={"kind": "calls"})
        _, score = play(spec, [("step", {"by": 2})])
    assert score.masked or "reward" not in score.components


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        ("full", "no place"),
        ("dies", "ended the connection"),
        ("strange", "'much' is not a finite number"),
    ],
)
def test_a_server_that_fails_masks_the_sample(mode: str, said: str) -> None:
    with serving() as server:
        spec = spec_of(server)
        server.mode = mode
        episode, _ = play(spec, [("step", {"by": 1})])
    assert said in episode.failure and episode.stop_reason == "environment error"


def test_what_is_no_openenv_server_is_told() -> None:
    with (
        serving(mode="nothing") as server,
        pytest.raises(OpenEnvError, match="/mcp answered HTTP 404"),
    ):
        discovered(server)


def test_an_address_inside_the_network_needs_permission() -> None:
    with serving() as server:
        episode, _ = play(spec_of(server) | {"allow_private": False}, [("step", {"by": 1})])
    assert "no episode could be begun" in episode.failure and not server.sessions


@pytest.mark.parametrize(
    "config",
    [
        {"url": "ftp://x", "tools": [1]},
        {"url": "http://x", "tools": []},
        {"url": "http://x", "what": 1},
    ],
)
def test_a_wrong_config_is_refused(config: dict) -> None:
    with pytest.raises(SpecError):
        load({"kind": "openenv", "config": config})


# Tools of NeMo Gym's servers

OPENAPI = {
    "paths": {
        "/seed_session": {"post": {}},
        "/verify": {"post": {}},
        "/v1/x": {"post": {}},
        "/{path}": {"post": {}},
        "/look": {"get": {}},
        "/get_weather": {
            "post": {
                "summary": "Get Weather",
                "description": "The weather of a city.",
                "requestBody": {
                    "content": {
                        "application/json": {"schema": {"$ref": "#/components/schemas/Asked"}}
                    }
                },
            }
        },
    },
    "components": {
        "schemas": {
            "Asked": {
                "type": "object",
                "properties": {"city": {"$ref": "#/components/schemas/City"}},
                "required": ["city"],
            },
            "City": {"type": "string"},
            "Loop": {"$ref": "#/components/schemas/Loop"},
        }
    },
}


def test_tools_of_a_resources_server_come_from_its_routes() -> None:
    (tool,) = described_tools({"detail": "Not Found"}, OPENAPI)
    assert tool["function"] == {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "required": ["city"],
            "properties": {"city": {"$ref": "#/$defs/City"}},
            "$defs": {"City": {"type": "string"}},
        },
    }


@pytest.mark.parametrize(
    "openapi",
    [None, [], {}, {"paths": []}, {"paths": {"/a": None}}, {"paths": {"/a": {"post": 1}}}],
)
def test_a_server_that_says_nothing_has_none(openapi: Any) -> None:
    assert described_tools(None, openapi) == []


def test_references_in_a_circle_end() -> None:
    body = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Loop"}}}}
    (tool,) = described_tools(None, OPENAPI | {"paths": {"/a": {"post": {"requestBody": body}}}})
    assert tool["function"]["parameters"] == {"type": "object"}


def test_a_flywheel_lists_its_tools_itself() -> None:
    listed = [
        {
            "type": "function",
            "name": "add",
            "description": "Adds.",
            "parameters": {"type": "object"},
            "strict": True,
        }
    ]
    (tool,) = described_tools({"tools": listed}, OPENAPI)
    assert tool["function"]["name"] == "add"
