"""Evaluation: every task, `samples_per_task` times. `python -m workers.evaluate spec.json` (docs/jobs.md)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import asdict

from workers.lib.engines import Engine, Output, Sampling, open_engine
from workers.lib.environments import Environment, load
from workers.lib.events import Emitter
from workers.lib.rollouts import ChatPolicy, EnginePolicy, Finished, Limits, stream
from workers.lib.spec import StopFlag, run_main
from workers.lib.verifiers import Score


def sampling_of(harness: dict, seed: int) -> Sampling:
    return Sampling(
        temperature=harness.get("temperature", 1.0),
        top_p=harness.get("top_p", 1.0),
        max_new_tokens=harness.get("max_new_tokens", 64),
        seed=seed,
    )


def rollouts(
    engine: Engine, environment: Environment, tasks: list[dict], sampling: Sampling, n: int
) -> Iterator[tuple[dict, list[tuple[Output, Score]]]]:
    """(task, its n scored outputs), as they are finished. Evaluation and training both go through here."""
    conversations = [environment.conversation(task) for task in tasks]
    for index, outputs in engine.generate(conversations, sampling, n):
        yield tasks[index], [(output, environment.score(tasks[index], output.text)) for output in outputs]


def emit_sample(
    events: Emitter, task: dict, index: int, output: Output, score: Score, *, phase: str, step: int | None = None
) -> None:
    events.sample(
        task_id=task["id"],
        index=index,
        step=step,
        phase=phase,
        output=output.text,
        **asdict(score),
        latency_ms=output.latency_ms,
        input_tokens=output.prompt_tokens,
        output_tokens=output.output_tokens,
        truncated=output.truncated,
    )


def emit_episode(events: Emitter, task: dict, index: int, done: Finished, *, phase: str) -> None:
    """The sample event of a conversation: the counts are of all its turns."""
    events.sample(
        task_id=task["id"],
        index=index,
        step=None,
        phase=phase,
        output=done.output,
        **asdict(done.score),
        latency_ms=sum(reply.latency_ms for reply in done.replies),
        input_tokens=sum(reply.prompt_tokens for reply in done.replies),
        output_tokens=sum(reply.output_tokens for reply in done.replies),
        truncated=done.truncated,
        turns=len(done.replies),
        stop_reason=done.stop_reason,
    )


def limits_of(harness: dict) -> Limits:
    return Limits(seconds=harness.get("max_seconds", 300.0), tokens=harness.get("max_tokens", 0))


async def converse(spec: dict, environment: Environment, events: Emitter, stop: StopFlag) -> None:
    """Every task `samples_per_task` times in an environment of several turns."""
    tasks, n, engine, harness = spec["tasks"], spec["samples_per_task"], spec["engine"], spec["environment"]["harness"]
    sampling = sampling_of(harness, spec.get("seed", 0))
    is_server = engine.get("kind") == "openai"
    policy = ChatPolicy(engine, sampling) if is_server else EnginePolicy(open_engine(engine, spec["model"]), sampling)
    many = engine.get("concurrency", 64)
    found = stream(policy, environment, tasks, limits_of(harness), n=n, concurrency=many, seed=sampling.seed)
    done = passed = 0
    try:
        async with aclosing(found):
            async for index, sample, episode in found:
                emit_episode(events, tasks[index], sample, episode, phase="eval")
                done, passed = done + 1, passed + episode.score.success
                events.progress(done, len(tasks) * n, f"{passed} of {done} succeeded")
                stop.check()
    finally:
        await policy.aclose()


def main(spec: dict, events: Emitter, stop: StopFlag) -> None:
    tasks, n = spec["tasks"], spec["samples_per_task"]
    total = len(tasks) * n
    events.progress(0, total, "loading the model")
    environment = load(spec["environment"])
    if environment.multi_turn:
        asyncio.run(converse(spec, environment, events, stop))
        events.result(metrics={"samples": total})
        return
    engine = open_engine(spec["engine"], spec["model"])
    done = passed = 0
    sampling = sampling_of(spec["environment"]["harness"], spec.get("seed", 0))
    for task, scored in rollouts(engine, environment, tasks, sampling, n):
        for index, (output, score) in enumerate(scored):
            emit_sample(events, task, index, output, score, phase="eval")
            passed += score.success
        done += n
        events.progress(done, total, f"{passed} of {done} succeeded")
        stop.check()
    events.result(metrics={"samples": total})


if __name__ == "__main__":
    run_main("evaluate", main)
