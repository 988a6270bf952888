"""Latency of several versions, measured alternately on the same tasks. `python -m
workers.measure_latency spec.json` (docs/jobs.md).

All versions are loaded and warmed up before anything counts. Then each task is answered by one
version after the other, one request at a time, in a seeded random order: whatever else slows the
machine down slows all of them down. It ends when the typical ratio of every two versions is known
to `precision`, or after `rounds` rounds. Nothing is scored.

Where evaluations divide their tasks among processes, so does this program: each process has all
versions, and answers one request at a time with its own cores.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

from msgspec import structs

from workers.evaluate import limits_of, sampling_of
from workers.lib.environments import Environment, load
from workers.lib.errors import JobError
from workers.lib.events import Emitter
from workers.lib.latency import typical_ratio
from workers.lib.policies import Policy, seed_of
from workers.lib.program import StopFlag, run_main
from workers.lib.rollouts import Finished, Limits, rollout
from workers.lib.shares import Shares, divided, fields_of
from workers.lib.specs.engines import Engine, InProcess
from workers.lib.specs.measure_latency import MeasureLatency
from workers.ml.policies import open_side_by_side

ERROR = 0.025  # error on each side of the interval whose width `precision` bounds


@dataclass
class Side:
    """One version, ready to answer. `found` has the milliseconds of each task."""

    id: str
    policy: Policy
    environment: Environment
    limits: Limits
    found: list[list[float]]


@dataclass
class Told:
    """Reports the answers of all processes, round by round: another one may be ahead."""

    spec: MeasureLatency
    sides: list[Side]
    events: Emitter
    shares: Shares
    round: int = 0
    ended: int = 0
    early: list[dict[str, Any]] = field(default_factory=list)

    def answer(self, sample: dict[str, Any]) -> None:
        if sample["round"] > self.round:
            self.early.append(sample)
            return
        self.events.sample(**sample)
        if ms := sample["latency_ms"]:
            self._found(sample).append(ms)
        self.ended += 1
        total = len(self.spec.tasks) * self.spec.rounds * len(self.sides)
        self.events.progress(
            self.ended, total, f"round {self.round + 1} of at most {self.spec.rounds}"
        )

    def read(self, wait_s: float = 0.0) -> bool:
        return self.shares.read(lambda event: self.answer(fields_of(event)), wait_s)

    def begin_round(self, number: int) -> None:
        self.round = number
        early, self.early = self.early, []
        for sample in early:
            self.answer(sample)

    def end_round(self, check: Callable[[], None]) -> None:
        """Waits for what the others have of the round. Raises JobError if they have ended."""
        every = len(self.spec.tasks) * len(self.sides) * (self.round + 1)
        while self.shares.others and self.ended < every:
            going = self.read(wait_s=0.2)
            check()
            if not going and self.ended < every:
                raise JobError("A process of the job ended before it had answered everything.")

    def _found(self, sample: dict[str, Any]) -> list[float]:
        side = next(side for side in self.sides if side.id == sample["version"])
        place = next(
            place for place, task in enumerate(self.spec.tasks) if task["id"] == sample["task_id"]
        )
        return side.found[place]


def main(spec: MeasureLatency, events: Emitter, stop: StopFlag) -> None:
    total = len(spec.tasks) * spec.rounds * len(spec.versions)
    events.progress(0, total, "loading the models")
    environments = [load(version.environment) for version in spec.versions]
    shares = _shares(spec, environments)
    versions = [
        structs.replace(version, engine=_with_threads(version.engine, shares.threads))
        for version in spec.versions
    ]
    samplings = [sampling_of(version.environment.harness) for version in versions]
    policies = open_side_by_side(versions, samplings, merged=spec.adapters == "merged")
    sides = [
        Side(
            version.id,
            policy,
            environment,
            limits_of(version.environment.harness),
            [[] for _ in spec.tasks],
        )
        for version, policy, environment in zip(versions, policies, environments, strict=True)
    ]
    rounds = asyncio.run(_measure(spec, sides, Told(spec, sides, events, shares), stop))
    events.result(metrics={"rounds": rounds})


def _shares(spec: MeasureLatency, environments: list[Environment]) -> Shares:
    """As an evaluation's; each process has the weights of all versions."""
    in_process = all(isinstance(version.engine, InProcess) for version in spec.versions)
    if not in_process or any(environment.multi_turn for environment in environments):
        return Shares()
    return divided(
        "workers.measure_latency",
        Path(spec.versions[0].model.base),
        len(spec.tasks),
        copies=len(spec.versions),
    )


def _with_threads(engine: Engine, threads: int) -> Engine:
    if isinstance(engine, InProcess):
        return structs.replace(engine, threads=engine.threads or threads)
    return engine


async def _measure(spec: MeasureLatency, sides: list[Side], told: Told, stop: StopFlag) -> int:
    """Returns the number of rounds that were needed."""
    rng, shares = random.Random(spec.seed), told.shares
    mine = shares.of(len(spec.tasks))
    try:
        for number in range(-(-spec.warm_up // shares.count)):
            for side in sides:
                place = mine[number % len(mine)]
                await _answer(side, spec.tasks[place], seed_of(spec.seed, number, spec.rounds))
                stop.check()
        for number in range(spec.rounds):
            told.begin_round(number)
            for place in rng.sample(range(len(spec.tasks)), len(spec.tasks)):
                order = rng.sample(sides, len(sides))  # also of others' tasks: one draw for all
                for turn, side in enumerate(order if place in mine else ()):
                    done = await _answer(side, spec.tasks[place], seed_of(spec.seed, place, number))
                    used = done.used
                    told.answer(
                        {
                            "version": side.id,
                            "task_id": spec.tasks[place]["id"],
                            "round": number,
                            "turn": turn,
                            "latency_ms": _milliseconds(done, side.limits),
                            "input_tokens": used["input_tokens"] or 0,
                            "output_tokens": used["output_tokens"] or 0,
                        }
                    )
                    told.read()
                    stop.check()
            told.end_round(stop.check)
            if not shares.number and _precise(sides, spec.precision):
                return number + 1
    finally:
        for side in sides:
            await side.policy.aclose()
    return spec.rounds


async def _answer(side: Side, task: dict, seed: int) -> Finished:
    return await rollout(
        side.policy, side.environment.open(task), side.limits, seed=seed, scored=False
    )


def _milliseconds(done: Finished, limits: Limits) -> float | None:
    """The model's time; the limit if it was reached; None if something else failed."""
    if done.stop_reason == "time":
        return limits.seconds * 1000
    if done.stop_reason in ("policy error", "environment error"):
        return None
    return sum(reply.latency_ms for reply in done.replies) or None


def _precise(sides: list[Side], precision: float) -> bool:
    measured = [at for at in range(len(sides[0].found)) if all(side.found[at] for side in sides)]
    if not measured:
        raise JobError("No task was answered by all versions.")
    for one, other in combinations(sides, 2):
        ratio = typical_ratio(
            [one.found[at] for at in measured], [other.found[at] for at in measured], error=ERROR
        )
        if (ratio.high - ratio.low) / 2 > precision * ratio.value:
            return False
    return True


if __name__ == "__main__":
    run_main(MeasureLatency, main)
