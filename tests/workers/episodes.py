"""An episode played from its beginning to its score."""

from __future__ import annotations

import asyncio

from workers.lib.environments import load
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
