"""An environment on an OpenEnv server: its tools, its state, and the rewards of its steps. Light:
no torch.

The tools are part of the spec, as the server listed them when it was connected. Each episode has
its own connection; its state is the list of actions, which are repeated if an episode is reopened
(as the REST protocol does).
"""

from __future__ import annotations

import copy
import json
import math
from typing import Any

import httpx2

from workers.lib.environments import EnvironmentFailed
from workers.lib.environments.episodes import (
    ToolEnvironment,
    ToolEpisode,
    judged,
    tool_names,
    verifier_of,
)
from workers.lib.errors import SpecError
from workers.lib.keys import key_in
from workers.lib.openenv import AGENTS_FAULT, LOST, OBSERVE, STEP, OpenEnvError, Session, error_text
from workers.lib.specs.environment import Environment as EnvironmentSpec
from workers.lib.verifiers import Clients, Execution, Score

OPTIONS = {
    "url": str,
    "api_key_env": str,
    "timeout_s": (int, float),
    "success_at": (int, float),
    "tools": list,
    "mcp": bool,
}
OWN = "remote"


class OpenEnv(ToolEnvironment):
    """`config`: url, tools and mcp (whether the tools are the server's own, or “step”), as found
    when it was connected; optionally timeout_s (60), success_at (1) and api_key_env. The reward is
    the sum of the steps' rewards unless the spec names a verifier.
    """

    def __init__(self, spec: EnvironmentSpec, *, clients: Clients | None = None) -> None:
        """Raises SpecError."""
        super().__init__(spec)
        self.config = spec.config
        for name, value in self.config.items():
            if name not in OPTIONS or not isinstance(value, OPTIONS[name]):
                raise SpecError(f"“environment.config.{name}” is unknown or of the wrong type.")
        url = httpx2.URL(self.config.get("url", ""))
        if url.scheme not in ("http", "https") or not url.host:
            raise SpecError("“environment.config.url” must begin with http:// or https://.")
        self.tools = self.config.get("tools") or []
        if not self.tools:
            raise SpecError("“environment.config.tools” is empty: connect the server again.")
        self.by_mcp, self.success_at = (
            bool(self.config.get("mcp")),
            float(self.config.get("success_at", 1.0)),
        )
        key_in(self.config.get("api_key_env", ""))
        self.allow_private, self.verifier = spec.allow_private, verifier_of(spec, clients, OWN)

    def open(self, task: dict, state: dict | None = None) -> OpenEnvEpisode:
        return OpenEnvEpisode(self, task, state)


class OpenEnvEpisode(ToolEpisode):
    """`acts` are the actions taken, `rewards` their rewards. A task's metadata may contain `reset`:
    its parameters.
    """

    def __init__(self, environment: OpenEnv, task: dict, state: dict | None) -> None:
        super().__init__(environment, task, state)
        self.environment = environment
        self.session = Session(environment.config, allow_private=environment.allow_private)
        self.client = self.session  # closed between the calls of the REST protocol
        state = copy.deepcopy(state) if state else {}
        self.acts: list[dict] = state.get("acts", [])
        self.rewards: list[float] = state.get("rewards", [])
        self.first: dict | None = None  # the observation of the reset; None before connecting
        given = (task.get("metadata") or {}).get("reset")
        self.parameters: dict = given if isinstance(given, dict) else {}

    def world(self) -> dict:
        return {"acts": copy.deepcopy(self.acts), "rewards": list(self.rewards)}

    async def _begin(self) -> dict:
        """Raises EnvironmentFailed."""
        if self.first is None:
            try:
                self.first = (await self.session.ask("reset", self.parameters))["observation"]
                for act in self.acts:
                    await self.session.ask("step", act)
            except (OpenEnvError, *LOST) as error:
                raise EnvironmentFailed(
                    f"no episode could be begun ({error_text(error)})"
                ) from error
        return self.first

    async def run(self, tool: str, args: dict) -> Execution:
        if tool not in tool_names(self.tools):
            return self.refusal(tool, args, f"There is no tool {tool[:80]}.")
        first = await self._begin()
        if not self.environment.by_mcp and tool == OBSERVE:
            return Execution(
                True, False, json.dumps(first, ensure_ascii=False), name=tool, args=args
            )
        act = (
            {"type": "call_tool", "tool_name": tool, "arguments": args}
            if self.environment.by_mcp
            else args
        )
        try:
            found = await self.session.ask(STEP, act)
        except OpenEnvError as error:
            if error.code in AGENTS_FAULT:
                return self.refusal(
                    tool, args, f"The environment refused the action ({error_text(error)})."
                )
            raise EnvironmentFailed(f"its server failed ({error_text(error)})") from error
        except LOST as error:
            raise EnvironmentFailed(f"its server does not answer ({error_text(error)})") from error
        self.acts.append(act)
        self.rewards.append(number_of(found["reward"]))
        if found["done"]:
            self.stop_reason = "finished"
        return self._seen(tool, args, found["observation"])

    def _seen(self, tool: str, args: dict, observation: dict) -> Execution:
        if not self.environment.by_mcp:
            return Execution(
                True, False, json.dumps(observation, ensure_ascii=False), name=tool, args=args
            )
        if error := observation.get("error"):
            return self.refusal(
                tool, args, str(error.get("message") if isinstance(error, dict) else error)[:500]
            )
        return Execution(True, False, result_text(observation.get("result")), name=tool, args=args)

    async def score(self) -> Score:
        await self._begin()
        if self.environment.verifier is not None:
            return await judged(self.environment.verifier, self.rollout())
        reward = sum(self.rewards)
        success = reward >= self.environment.success_at
        return Score(
            reward=reward,
            components={"reward": reward, "steps": float(len(self.rewards))},
            success=success,
            messages=self.said,
        )

    async def close(self) -> None:
        await self.session.aclose()


def number_of(reward: Any) -> float:
    """A step's reward; 0 if there is none. Raises EnvironmentFailed if it is not a finite
    number.
    """
    if reward is None:
        return 0.0
    if isinstance(reward, bool | int | float) and math.isfinite(reward):
        return float(reward)
    raise EnvironmentFailed(f"its reward {reward!r:.80} is not a finite number")


def result_text(result: Any) -> str:
    """The part of an MCP tool's result that an agent sees: its texts, or else its data."""
    if isinstance(result, dict):
        content = result.get("content")
        if isinstance(content, list):
            texts = [
                str(part.get("text", ""))
                for part in content
                if isinstance(part, dict) and part.get("type") == "text"
            ]
            if texts:
                return "\n".join(texts)
        if "data" in result:
            result = result["data"]
    return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
