"""One call of a tool, and the score of a response: in the open session, or in a fresh episode. No
database.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from typing import Any

from workers.lib.advantages import turn_rewards
from workers.lib.environments import Environment, Episode
from workers.lib.rollouts import replay
from workers.lib.verifiers import Score, masked

CALL_S, SCORE_S = 60.0, 240.0


@dataclass(frozen=True)
class Called:
    """What a tool answered, whether the call worked, and the episode's state after it."""

    observation: str
    state: dict
    ok: bool


def call(environment: Environment, task: dict, state: dict | None, tool: str, args: Any) -> Called:
    """Never raises because of the caller's input: a tool's error is its answer."""

    async def run() -> Called:
        episode = environment.open(task, state)
        try:
            async with asyncio.timeout(CALL_S):
                done = await episode.call(tool, args)
            return Called(done.observation, episode.state, done.ok)
        except TimeoutError:
            text = f"Error: the tool gave no answer within {CALL_S:g} s."
            return Called(text, state or episode.state, False)
        finally:
            await put_away(episode)

    return asyncio.run(run())


def tools_of(environment: Environment, task: dict, state: dict | None) -> list[dict]:
    """The tools that an agent is shown in this state. Raises whatever opening the task raises."""
    episode: Any = environment.open(task, state)
    if getattr(episode, "client", None) is not None:
        asyncio.run(put_away(episode))
    return episode.visible()


def score(
    environment: Environment, task: dict, said: list[dict], state: dict | None = None
) -> Score:
    """Of a session's `state` in which calls ran, else of the turns taken again in a fresh episode.

    Never raises: whatever fails is the environment's fault and masks the sample.
    """

    async def run() -> Score:
        async with asyncio.timeout(SCORE_S):
            if state is None or not environment.multi_turn:
                return await replay(environment, task, said)
            return await _score_messages(environment, task, said, state)

    try:
        return asyncio.run(run())
    except TimeoutError:
        return masked(f"The verifier gave no score within {SCORE_S:g} s.")
    except Exception as error:
        return masked(f"The verifier failed: {type(error).__name__}: {error}")


async def _score_messages(
    environment: Environment, task: dict, said: list[dict], state: dict
) -> Score:
    episode = environment.open(task, state)
    try:
        episode.add_messages(said)
        return masked(episode.failure) if episode.failure else await episode.score()
    finally:
        await episode.close()


async def put_away(episode: Episode) -> None:
    """Lets go of connections, and leaves the session at the other end open."""
    client = getattr(episode, "client", None)
    if client is not None:
        await client.aclose()


def as_members(score: Score) -> dict[str, Any]:
    """What /verify adds to the two echoed fields. Nothing in it reveals the expected answer."""
    reward = score.reward
    if score.masked or reward is None or not math.isfinite(reward):
        reason = score.mask_reason or "The verifier gave no finite number."
        return {
            "reward": 0.0,
            "mask_sample": True,
            "failure_kind": "verifier_error",
            "failure_reason": reason,
            "reward_components": {},
        }
    components = {name: value for name, value in score.components.items() if math.isfinite(value)}
    return {
        "reward": float(reward),
        "mask_sample": False,
        "failure_kind": None,
        "failure_reason": None,
        "reward_components": components,
        **{f"component_{name}": value for name, value in components.items()},
        **({"step_rewards": earned} if (earned := turn_rewards(components)) else {}),
        "success": float(score.success),
        "unsafe": float(score.unsafe),
    }
