"""Latency of several versions, measured alternately on the same tasks. `python -m
workers.measure_latency spec.json` (docs/jobs.md).

All versions are loaded and warmed up before anything counts. Then each task is answered by one
version after the other, one request at a time, in a seeded random order: whatever else slows the
machine down slows all of them down. It ends when the typical ratio of every two versions is known
to `precision`, or after `rounds` rounds. Nothing is scored.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from itertools import combinations

from workers.evaluate import limits_of, sampling_of
from workers.lib.environments import Environment, load
from workers.lib.errors import JobError
from workers.lib.events import Emitter
from workers.lib.latency import typical_ratio
from workers.lib.policies import Policy, seed_of
from workers.lib.program import StopFlag, run_main
from workers.lib.rollouts import Finished, Limits, rollout
from workers.lib.specs.measure_latency import MeasureLatency
from workers.ml.policies import open_side_by_side

ERROR = 0.025  # error on each side of the interval whose width `precision` bounds


@dataclass
class Side:
    """One version, ready to answer. `found` maps tasks to its milliseconds."""

    id: str
    policy: Policy
    environment: Environment
    limits: Limits
    found: list[list[float]]


def main(spec: MeasureLatency, events: Emitter, stop: StopFlag) -> None:
    total = len(spec.tasks) * spec.rounds * len(spec.versions)
    events.progress(0, total, "loading the models")
    samplings = [sampling_of(version.environment.harness) for version in spec.versions]
    policies = open_side_by_side(spec.versions, samplings, merged=spec.adapters == "merged")
    sides = [
        Side(
            version.id,
            policy,
            load(version.environment),
            limits_of(version.environment.harness),
            [],
        )
        for version, policy in zip(spec.versions, policies, strict=True)
    ]
    rounds = asyncio.run(_measure(spec, sides, events, stop, total))
    events.result(metrics={"rounds": rounds})


async def _measure(
    spec: MeasureLatency, sides: list[Side], events: Emitter, stop: StopFlag, total: int
) -> int:
    """Returns the number of rounds that were needed."""
    rng, ended = random.Random(spec.seed), 0
    try:
        for number in range(spec.warm_up):
            for side in sides:
                await _answer(
                    side,
                    spec.tasks[number % len(spec.tasks)],
                    seed_of(spec.seed, number, spec.rounds),
                )
                stop.check()
        for side in sides:
            side.found = [[] for _ in spec.tasks]
        for number in range(spec.rounds):
            for index in rng.sample(range(len(spec.tasks)), len(spec.tasks)):
                for turn, side in enumerate(rng.sample(sides, len(sides))):
                    done = await _answer(side, spec.tasks[index], seed_of(spec.seed, index, number))
                    ms = _milliseconds(done, side.limits)
                    if ms:
                        side.found[index].append(ms)
                    used = done.used
                    events.sample(
                        version=side.id,
                        task_id=spec.tasks[index]["id"],
                        round=number,
                        turn=turn,
                        latency_ms=ms,
                        input_tokens=used["input_tokens"] or 0,
                        output_tokens=used["output_tokens"] or 0,
                    )
                    ended += 1
                    events.progress(ended, total, f"round {number + 1} of at most {spec.rounds}")
                    stop.check()
            if _precise(sides, spec.precision):
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
