"""A few versions answer the same few requests, side by side. `python -m workers.playground spec.json` (docs/jobs.md).

Versions on servers answer at the same time; those of this process one after the other, each model loaded once. What goes wrong with
one version (its server is down, its money is used up) ends that side alone.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import asdict
from typing import Any

from msgspec.json import encode

from workers.evaluate import limits_of, sampling_of
from workers.lib.environments import load
from workers.lib.errors import JobError, sentence
from workers.lib.events import Emitter
from workers.lib.policies import EnginePolicy, Policy
from workers.lib.program import Stop, StopFlag, run_main
from workers.lib.rollouts import Finished, stream
from workers.lib.specs import InProcess, Playground, Side
from workers.lib.verifiers import masked
from workers.ml.policies import episodes_at_once, open_policy


class Stage:
    """What all sides share: where they report, and how far they are."""

    def __init__(self, spec: Playground, events: Emitter, stop: StopFlag) -> None:
        self.spec, self.events, self.stop = spec, events, stop
        self.total, self.ended = len(spec.sides) * len(spec.tasks) * spec.samples_per_task, 0
        self.errors: dict[str, str] = {}
        self.answered = False

    def tell(self, side: int, task: int, index: int, done: Finished) -> None:
        """Emits one answer; without a right answer to compare with, it has no score."""
        score = done.score
        if reason := self.spec.tasks[task].get("unscored"):
            score = masked(reason)
            score.messages = done.score.messages
        self.answered = self.answered or bool(done.replies)
        self.ended += 1
        self.events.sample(
            side=side,
            task_id=self.spec.tasks[task]["id"],
            index=index,
            output=done.output,
            **asdict(score),
            **done.used,
            truncated=done.truncated,
            turns=len(done.replies),
            stop_reason=done.stop_reason,
        )
        self.events.progress(self.ended, self.total, f"{self.ended} of {self.total} answers")
        self.stop.check()

    def failed(self, side: int, error: Exception) -> None:
        self.errors[str(side)] = sentence(error)[:500]
        self.events.log("error", f"Version {side + 1}: {self.errors[str(side)]}")


def main(spec: Playground, events: Emitter, stop: StopFlag) -> None:
    stage = Stage(spec, events, stop)
    events.progress(0, stage.total, "starting")
    asyncio.run(_play_all(stage))
    if not stage.answered and stage.errors:
        raise JobError(" ".join(dict.fromkeys(stage.errors.values())))
    events.result(metrics={"answers": stage.ended}, errors=stage.errors)


async def _play_all(stage: Stage) -> None:
    """Raises Stop."""
    numbered = list(enumerate(stage.spec.sides))
    here = [(number, side) for number, side in numbered if isinstance(side.engine, InProcess)]
    jobs = [_on_server(stage, number, side) for number, side in numbered if not isinstance(side.engine, InProcess)]
    tasks = [asyncio.create_task(job) for job in [*jobs, _in_process(stage, here)]]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _on_server(stage: Stage, number: int, side: Side) -> None:
    try:
        policy = await asyncio.to_thread(open_policy, side.engine, side.model, sampling_of(side.environment.harness))
    except Exception as error:
        stage.failed(number, error)
        return
    try:
        await _play(stage, number, side, policy)
    finally:
        await policy.aclose()


async def _in_process(stage: Stage, sides: list[tuple[int, Side]]) -> None:
    """One model after the other; prompts on the same model share it."""
    models: dict[bytes, list[tuple[int, Side]]] = {}
    for number, side in sides:
        models.setdefault(encode([side.model, side.engine]), []).append((number, side))
    for group in models.values():
        first = group[0][1]
        try:
            opened: Any = await asyncio.to_thread(
                open_policy, first.engine, first.model, sampling_of(first.environment.harness)
            )
        except Exception as error:
            for number, _ in group:
                stage.failed(number, error)
            continue
        await opened.aclose()  # its engine stays loaded
        for number, side in group:
            policy = EnginePolicy(opened.engine, sampling_of(side.environment.harness))
            try:
                await _play(stage, number, side, policy)
            finally:
                await policy.aclose()


async def _play(stage: Stage, number: int, side: Side, policy: Policy) -> None:
    """All answers of one version. Raises Stop."""
    spec = stage.spec
    try:
        environment = load(side.environment)
        episodes = stream(
            policy, environment, spec.tasks, limits_of(environment.harness), n=spec.samples_per_task,
            concurrency=episodes_at_once(side.engine, environment), seed=spec.seed,
        )  # fmt: skip
        async with contextlib.aclosing(episodes):
            async for task, index, done in episodes:
                stage.tell(number, task, index, done)
    except Stop:
        raise
    except Exception as error:
        stage.failed(number, error)


if __name__ == "__main__":
    run_main("playground", main)
