"""Stored answers scored again, nothing generated. `python -m workers.rescore spec.json` (docs/jobs.md)."""

from __future__ import annotations

import asyncio
from dataclasses import asdict

from workers.lib.environments import Environment, load
from workers.lib.environments.rerun import replay
from workers.lib.events import Emitter
from workers.lib.spec import StopFlag, run_main

KEPT = ("reward", "components", "success", "unsafe", "masked", "mask_reason", "details")
AT_ONCE = 16


def turns_of(sample: dict) -> list[dict]:
    """The assistant's turns of a stored sample; its output where the turns were not kept."""
    said = [message for message in sample["messages"] if message.get("role") == "assistant"]
    return said or [{"role": "assistant", "content": sample.get("output", "")}]


async def rescore(environment: Environment, samples: list[dict], events: Emitter, stop: StopFlag) -> list[dict]:
    """A row {id, reward, …} per sample, in their order."""
    gate, done = asyncio.Semaphore(AT_ONCE), 0

    async def one(sample: dict) -> dict:
        nonlocal done
        async with gate:
            stop.check()
            score = await replay(environment, sample["task"], turns_of(sample))
        done += 1
        events.progress(done, len(samples), "scoring")
        fields = asdict(score)
        return {"id": sample["id"]} | {name: fields[name] for name in KEPT}

    return list(await asyncio.gather(*map(one, samples)))


def main(spec: dict, events: Emitter, stop: StopFlag) -> None:
    environment = load(spec["environment"])
    events.result(scores=asyncio.run(rescore(environment, spec["samples"], events, stop)))


if __name__ == "__main__":
    run_main("rescore", main)
