"""Correct episodes: a task's expected calls and messages, played in its environment. Light: no
torch.

The results are those of the environment's own tools, and an episode only counts if its verifier
calls it a success.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from workers.lib.environments import Environment, gold_calls
from workers.lib.messages import to_native
from workers.lib.policies import RecordedPolicy
from workers.lib.rollouts import Limits, rollout

DONE = "Done."
LIMITS = Limits(seconds=60.0, score_seconds=60.0)


def gold_answers(task: dict) -> list[dict]:
    """The agent's messages, one per step: those of `metadata.gold` [{"call", "args"} or {"say"}],
    or else the expected calls one after another and a closing message. [] if the task has none.
    """
    steps: Any = (task.get("metadata") or {}).get("gold")
    if not isinstance(steps, list):
        try:
            calls = gold_calls(task)
        except (ValueError, KeyError, TypeError):
            return []
        steps = (
            [*({"call": call["tool"], "args": call["args"]} for call in calls), {"say": DONE}]
            if calls
            else []
        )
    return [_answer(step, number) for number, step in enumerate(steps, 1)]


def _answer(step: dict, number: int) -> dict:
    if "say" in step:
        return {"role": "assistant", "content": str(step["say"])}
    call = to_native(step["call"], step.get("args") or {}, f"call_{number}")
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def gold_turns(environment: Environment, task: dict) -> list[dict]:
    """All messages after the task's own in an episode that succeeds; [] if there is none."""
    answers = gold_answers(task)
    if not answers:
        return []
    with ThreadPoolExecutor(1) as thread:  # the caller may be in an event loop
        done = thread.submit(lambda: asyncio.run(_played(environment, task, answers))).result()
    if done is None or done.score.masked or not done.score.success:
        return []
    messages = done.rollout.messages
    last = max(at for at, message in enumerate(messages) if message["role"] == "assistant")
    return messages[: last + 1]


async def _played(environment: Environment, task: dict, answers: list[dict]) -> Any:
    try:
        return await rollout(RecordedPolicy([answers]), environment.open(task), LIMITS)
    except Exception:  # a task that cannot be opened has no gold episode
        return None
