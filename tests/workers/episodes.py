"""An episode played from its beginning to its score."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing

from workers.lib.environments import Environment, load
from workers.lib.policies import Policy
from workers.lib.rollouts import Finished, Limits, replay, stream
from workers.lib.verifiers import Score


def played(spec: dict, task: dict, *messages: dict) -> tuple[list[str], Score]:
    """What the tools answered to the agent's messages, and the score."""

    async def run() -> tuple[list[str], Score]:
        episode = load(spec).open(task)
        for message in messages:
            await episode.step(message)
        score = await episode.score()
        await episode.close()
        return [m["content"] for m in episode.messages if m["role"] == "tool"], score

    return asyncio.run(run())


def score_text(environment: Environment, task: dict, text: str) -> Score:
    """The score of one answer in words. In a thread: the caller's may have an event loop, as a
    browser's test has.
    """
    with ThreadPoolExecutor(1) as thread:
        said = [{"role": "assistant", "content": text}]
        return thread.submit(lambda: asyncio.run(replay(environment, task, said))).result()


async def gather(
    policy: Policy,
    environment: Environment,
    tasks: list[dict],
    limits: Limits,
    *,
    n: int = 1,
    **options: int,
) -> list[list[Finished]]:
    """The n episodes of each task, in the order of the tasks."""
    found: list[dict[int, Finished]] = [{} for _ in tasks]
    async with aclosing(stream(policy, environment, tasks, limits, n=n, **options)) as episodes:
        async for index, sample, done in episodes:
            found[index][sample] = done
    return [[samples[sample] for sample in range(n)] for samples in found]
