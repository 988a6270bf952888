"""Measures how fast rollout servers sample: few and many answers at a time, each with one token and
with several. Light: no torch.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from workers.lib.adapter_serving import asked_at
from workers.lib.engines import Sampling
from workers.lib.prefixes import Tree
from workers.lib.specs.rollouts import Rollouts
from workers.lib.token_policy import CompletionClient, completion_body

SHORT, LONG = 1, 17  # tokens per answer
FEW, MANY = 4, 32  # concurrent answers


def server_rates(rollouts: Rollouts, prompts: Sequence[Sequence[int]]) -> list[dict[str, Any]]:
    """Like `sampling` in workers.measure_training, over all servers, which get answers in turn.
    Raises ChatError.
    """
    return asyncio.run(_measured(rollouts, prompts))


async def _measured(rollouts: Rollouts, prompts: Sequence[Sequence[int]]) -> list[dict[str, Any]]:
    clients = [
        CompletionClient(asked_at(server), concurrency=server.concurrency)
        for server in rollouts.servers
    ]
    try:
        await _ask(clients, prompts, 1, SHORT)
        return [await _point(clients, prompts, size) for size in (FEW, MANY)]
    finally:
        await asyncio.gather(*(client.aclose() for client in clients))


async def _point(
    clients: Sequence[CompletionClient], prompts: Sequence[Sequence[int]], size: int
) -> dict[str, Any]:
    short, long = [await _ask(clients, prompts, size, tokens) for tokens in (SHORT, LONG)]
    step = max(0.0, long - short) / (LONG - SHORT)
    asked = [prompts[at % len(prompts)] for at in range(size)]
    return {
        "answers": size,
        "prompt_tokens": len(Tree(asked)),
        "step_s": step,
        "prefill_s": max(0.0, short - step),
    }


async def _ask(
    clients: Sequence[CompletionClient], prompts: Sequence[Sequence[int]], size: int, tokens: int
) -> float:
    """Returns seconds. All answers have the requested length, whatever they contain."""
    bodies = [
        completion_body(prompts[at % len(prompts)], Sampling(), [], at, tokens)
        | {"ignore_eos": True}
        for at in range(size)
    ]
    began = time.perf_counter()
    await asyncio.gather(*(clients[at % len(clients)].ask(body) for at, body in enumerate(bodies)))
    return time.perf_counter() - began
