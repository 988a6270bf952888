"""A recorded conversation run again: how stored answers are scored anew. Light: no torch."""

from __future__ import annotations

import contextlib

from workers.lib.environments import Environment, Episode, EpisodeError
from workers.lib.verifiers import Score


async def retold(environment: Environment, task: dict, messages: list[dict]) -> Episode:
    """A fresh episode in which the agent says what it said. Its calls are carried out, their recorded results dropped.

    To be closed by the caller.
    """
    episode = environment.open(task)
    for message in messages:
        if message.get("role") == "assistant":
            with contextlib.suppress(EpisodeError):  # a longer record than the environment allows is cut
                await episode.step(message)
    return episode


async def replay(environment: Environment, task: dict, messages: list[dict]) -> Score:
    """The score of that episode."""
    episode = await retold(environment, task, messages)
    try:
        return await episode.score()
    finally:
        await episode.close()
