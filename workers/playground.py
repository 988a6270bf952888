"""Lets a few versions answer the same few requests, side by side. `python -m workers.playground
spec.json` (docs/jobs.md).

Versions on servers answer in parallel; those in this process one after the other, each model loaded
once. If one version fails (its server is down, its budget is used up), only that side ends.
Unfinished answers are reported a few times per second.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

from msgspec.json import encode

from workers.evaluate import limits_of, sampling_of
from workers.lib.environments import load
from workers.lib.errors import JobError, sentence
from workers.lib.events import Emitter
from workers.lib.policies import EnginePolicy, Policy
from workers.lib.program import StopFlag, run_main
from workers.lib.rollouts import Finished, stream
from workers.lib.specs.engines import InProcess
from workers.lib.specs.playground import Playground, Side
from workers.lib.streamed import Written
from workers.lib.verifiers import masked
from workers.ml.policies import episodes_at_once, open_policy

SHOWN_EVERY_S = 0.2
# maximum shown of an unfinished answer: characters of its end, characters of arguments, calls
MOST_SHOWN, MOST_ARGUMENTS, MOST_CALLS = 4_000, 1_000, 8
HEEDED_EVERY_S = 0.2


class Stage:
    """What all sides share: the event stream and the progress."""

    def __init__(self, spec: Playground, events: Emitter, stop: StopFlag) -> None:
        self.spec, self.events, self.stop = spec, events, stop
        self.total, self.ended = len(spec.sides) * len(spec.tasks) * spec.samples_per_task, 0
        self.errors: dict[int, str] = {}
        self.answered = False
        self.writing: dict[tuple[int, int], Callable[[], Written]] = {}
        self.due: asyncio.TimerHandle | None = None

    def watch(self, side: int, key: int, read: Callable[[], Written]) -> None:
        """Register an answer in progress; `read` returns its current content. It is reported soon,
        together with the others.
        """
        self.writing[side, key] = read
        if self.due is None:
            self.due = asyncio.get_running_loop().call_later(SHOWN_EVERY_S, self.show)

    def show(self) -> None:
        if self.due is not None:
            self.due.cancel()
        now, self.writing, self.due = self.writing, {}, None
        for (side, key), read in now.items():
            task, index = divmod(key, self.spec.samples_per_task)
            found = read().apart()
            calls = (
                Written(calls=found.calls[-MOST_CALLS:])
                .changed(lambda text: text[-MOST_ARGUMENTS:])
                .calls
            )
            self.events.emit(
                "partial",
                side=side,
                task_id=self.spec.tasks[task]["id"],
                index=index,
                calls=calls,
                text=found.text[-MOST_SHOWN:],
                thought=found.thought[-MOST_SHOWN:],
            )

    def tell(self, side: int, task: int, index: int, done: Finished) -> None:
        """Emit one answer. Without an expected answer to compare with, it has no score."""
        self.show()
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
        self.events.progress(self.ended, self.total, "")

    def failed(self, side: int, error: Exception) -> None:
        """End a side after an error. This is reported immediately, since the others may still
        generate for long.
        """
        self.show()
        self.errors[side] = sentence(error)[:500]
        self.events.emit("failed", side=side, error=self.errors[side])
        self.events.log("error", f"Version {side + 1}: {self.errors[side]}")


def main(spec: Playground, events: Emitter, stop: StopFlag) -> None:
    stage = Stage(spec, events, stop)
    events.progress(0, stage.total, "starting")
    asyncio.run(_play_all(stage))
    if not stage.answered and stage.errors:
        raise JobError(" ".join(dict.fromkeys(stage.errors.values())))
    events.result(metrics={"answers": stage.ended})


async def _play_all(stage: Stage) -> None:
    """Raises Stop."""
    numbered = list(enumerate(stage.spec.sides))
    here = [(number, side) for number, side in numbered if isinstance(side.engine, InProcess)]
    jobs = [
        _on_server(stage, number, side)
        for number, side in numbered
        if not isinstance(side.engine, InProcess)
    ]
    tasks = [asyncio.create_task(job) for job in [*jobs, _in_process(stage, here)]]
    waiting = set(tasks)
    try:
        while waiting:
            stage.stop.check()
            ended, waiting = await asyncio.wait(
                waiting, timeout=HEEDED_EVERY_S, return_when=asyncio.FIRST_COMPLETED
            )
            for task in ended:
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _on_server(stage: Stage, number: int, side: Side) -> None:
    try:
        policy = await asyncio.to_thread(
            open_policy,
            side.engine,
            side.model,
            sampling_of(side.environment.harness),
            watch=partial(stage.watch, number),
        )
    except Exception as error:
        stage.failed(number, error)
        return
    try:
        await _play(stage, number, side, policy)
    finally:
        await policy.aclose()


async def _in_process(stage: Stage, sides: list[tuple[int, Side]]) -> None:
    """One model after the other; versions that only differ in their prompt share it."""
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
        await opened.aclose()  # keeps the engine loaded
        for number, side in group:
            policy = EnginePolicy(
                opened.engine, sampling_of(side.environment.harness), partial(stage.watch, number)
            )
            try:
                await _play(stage, number, side, policy)
            finally:
                await policy.aclose()


async def _play(stage: Stage, number: int, side: Side, policy: Policy) -> None:
    """All answers of one version."""
    spec = stage.spec
    try:
        environment = load(side.environment)
        episodes = stream(
            policy,
            environment,
            spec.tasks,
            limits_of(environment.harness),
            n=spec.samples_per_task,
            concurrency=episodes_at_once(side.engine, environment),
            seed=spec.seed,
        )
        async with contextlib.aclosing(episodes):
            async for task, index, done in episodes:
                stage.tell(number, task, index, done)
    except Exception as error:
        stage.failed(number, error)


if __name__ == "__main__":
    run_main(Playground, main)
