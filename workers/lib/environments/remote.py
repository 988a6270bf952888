"""An environment behind NeMo Gym's resources-server REST API: the server provides sessions, tools
and verification. Light.

Addresses inside our own network are only called if the spec says `allow_private`, which the
caller's rules decide.
"""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any
from urllib.parse import quote

import httpx2

from workers.lib.advantages import turn_components
from workers.lib.environments import EnvironmentFailed
from workers.lib.environments.episodes import ToolEnvironment, ToolEpisode, tool_names
from workers.lib.environments.gym_rows import response_of, row_of
from workers.lib.errors import SpecError
from workers.lib.keys import bearer, hidden, key_in
from workers.lib.messages import chat_tool
from workers.lib.outgoing import Bounds, RefusedAddress, TooMuch, async_client
from workers.lib.specs.environment import Environment as EnvironmentSpec
from workers.lib.verifiers import Clients, Execution, Score, masked

TRIES = 3
FIRST_WAIT_S = 0.2
RESPONDS_S = 10.0  # for a trivial question
MAX_BYTES = 4 * 1024 * 1024  # per answer
OPTIONS = {
    "url": str,
    "api_key_env": str,
    "timeout_s": (int, float),
    "success_at": (int, float),
    "turn_rewards": bool,
    "tools": list,
}


class RemoteError(Exception):
    """What the server did wrong, as a sentence."""


class Remote(ToolEnvironment):
    """`config`: url, and optionally timeout_s (60), success_at (the reward from which it is a
    success, 1), turn_rewards (whether its answer to /verify has `step_rewards`), and api_key_env,
    the name of the environment variable with the server's key.
    """

    def __init__(self, spec: EnvironmentSpec, *, clients: Clients | None = None) -> None:
        super().__init__(spec)
        config = spec.config
        for name, value in config.items():
            if name not in OPTIONS or not isinstance(value, OPTIONS[name]):
                raise SpecError(f"“environment.config.{name}” is unknown or of the wrong type.")
        self.url = httpx2.URL(config.get("url", "").rstrip("/"))
        if self.url.scheme not in ("http", "https") or not self.url.host:
            raise SpecError("“environment.config.url” must begin with http:// or https://.")
        self.key, self.timeout_s = (
            key_in(config.get("api_key_env", "")),
            float(config.get("timeout_s", 60)),
        )
        self.success_at = float(config.get("success_at", 1.0))
        self.turn_rewards = config.get("turn_rewards", False)
        self.allow_private = spec.allow_private
        self.tools = [chat_tool(tool) for tool in config.get("tools") or self.harness.tools or []]

    def open(self, task: dict, state: dict | None = None) -> RemoteEpisode:
        return RemoteEpisode(self, task, state)


class RemoteEpisode(ToolEpisode):
    """One session. Its cookies are the state; each episode has its own client, so that none gets
    another's cookies.
    """

    def __init__(self, environment: Remote, task: dict, state: dict | None) -> None:
        tools = [chat_tool(tool) for tool in task.get("tools") or environment.tools]
        super().__init__(environment, task, state, tools=tools)
        self.environment, self.row = environment, row_of(task | {"messages": self.before}, tools)
        self.seeded = bool((state or {}).get("seeded"))
        self.client = async_client(
            allow_private=environment.allow_private,
            base_url=environment.url,
            headers=bearer(environment.key),
            cookies=(state or {}).get("cookies") or {},
            timeout=httpx2.Timeout(environment.timeout_s, connect=10.0),
            bounds=Bounds(MAX_BYTES, environment.timeout_s),
        )

    def world(self) -> dict:
        return {"seeded": self.seeded, "cookies": dict(self.client.cookies.items())}

    async def _begin(self) -> None:
        if not self.seeded:
            await self._post("seed_session", self.row)
            self.seeded = True

    async def run(self, tool: str, args: dict) -> Execution:
        if tool not in tool_names(self.tools):
            return self.refusal(tool, args, f"There is no tool {tool[:80]}.")
        try:
            await self._begin()
        except (RemoteError, RefusedAddress, httpx2.HTTPError, TimeoutError) as error:
            raise EnvironmentFailed(f"no session could be opened ({_error_text(error)})") from error
        try:
            answer = await self._post(quote(tool, safe=""), args)
        except RemoteError as error:
            return self.refusal(tool, args, f"The tool did not answer ({_error_text(error)}).")
        except (RefusedAddress, httpx2.HTTPError, TimeoutError) as error:
            if not await self.responds():
                raise EnvironmentFailed(
                    f"its server does not answer ({_error_text(error)})"
                ) from error
            return self.refusal(tool, args, f"The tool did not answer ({_error_text(error)}).")
        text = answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)
        return Execution(True, False, text, name=tool, args=args)

    async def responds(self) -> bool:
        """Whether the server answers anything at all, even a 404."""
        try:
            async with asyncio.timeout(RESPONDS_S):
                await self.client.get("")
        except (RefusedAddress, httpx2.HTTPError, TimeoutError):
            return False
        return True

    async def score(self) -> Score:
        try:
            await self._begin()
            name = str(self.task.get("id") or "task")
            response = response_of(self.said, name=name, tools=self.tools)
            answer = await self._post("verify", self.row | {"response": response})
            score = self._read(answer, response)
        except (RemoteError, RefusedAddress, httpx2.HTTPError, TimeoutError) as error:
            score = masked(f"The remote verifier failed: {_error_text(error)}")
        score.messages = self.said
        return score

    def _read(self, answer: Any, response: dict) -> Score:
        """A score from the answer of /verify. Raises RemoteError if the answer violates the
        protocol.
        """
        if not isinstance(answer, dict):
            raise RemoteError("its answer is not a JSON object")
        if answer.get("mask_sample"):
            reasons = [
                str(answer[name]) for name in ("failure_kind", "failure_reason") if answer.get(name)
            ]
            return masked(": ".join(reasons) or "The remote verifier masked the sample.")
        echoed = answer.get("response")
        if not isinstance(answer.get("responses_create_params"), dict) or not isinstance(
            echoed, dict
        ):
            raise RemoteError("it does not echo responses_create_params and response")
        if echoed.get("id") != response["id"]:
            raise RemoteError("it echoes another response than it was given")
        reward = answer.get("reward")
        if not _is_number(reward):
            raise RemoteError("its reward is not a finite number")
        given = answer.get("reward_components")
        components = {str(name): float(value) for name, value in _pairs(given) if _is_number(value)}
        components = components or {"reward": float(reward)}
        if self.environment.turn_rewards:
            components |= turn_components(
                self._turn_rewards(answer.get("step_rewards"), float(reward))
            )
        return Score(
            reward=float(reward),
            components=components,
            success=reward >= self.environment.success_at,
        )

    def _turn_rewards(self, given: Any, reward: float) -> list[float]:
        """The reward of each turn. Raises RemoteError."""
        if not isinstance(given, list) or not all(_is_number(one) for one in given):
            raise RemoteError(
                "it reports no step_rewards, though the environment is set to have rewards per turn"
            )
        if len(given) != self.turns:
            raise RemoteError(
                f"it reports {len(given)} step_rewards for {self.turns} turns of the agent"
            )
        if not math.isclose(sum(given), reward, rel_tol=1e-6, abs_tol=1e-6):
            raise RemoteError(
                f"its step_rewards add up to {sum(given):g}, not to its reward of {reward:g}"
            )
        return [float(one) for one in given]

    async def _post(self, path: str, body: Any) -> Any:
        """The JSON answer. Only a failed connection is retried, since the call cannot have had an
        effect then.
        """
        for attempt in range(TRIES):
            try:
                return await self._once(path, body)
            except (httpx2.ConnectError, httpx2.ConnectTimeout):
                if attempt + 1 == TRIES:
                    raise
                await asyncio.sleep(FIRST_WAIT_S * 2**attempt)
        raise AssertionError("unreachable")

    async def _once(self, path: str, body: Any) -> Any:
        try:
            response = await self.client.post(path, json=body)
        except TooMuch as error:
            raise RemoteError(f"/{path} answered with {error}") from error
        text = hidden(response.content.decode(errors="replace"), self.environment.key)
        if response.status_code != 200:
            raise RemoteError(f"/{path} answered HTTP {response.status_code}")
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise RemoteError(f"/{path} answered with something that is not JSON") from error

    async def close(self) -> None:
        try:
            if self.seeded:
                await self._once("close_session", {})
        except (RemoteError, RefusedAddress, httpx2.HTTPError, TimeoutError):
            pass  # not every server supports it, and the session expires anyway
        finally:
            await self.client.aclose()


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _pairs(given: Any) -> Any:
    return given.items() if isinstance(given, dict) else ()


def _error_text(error: Exception) -> str:
    return str(error) if isinstance(error, RemoteError | RefusedAddress) else type(error).__name__
