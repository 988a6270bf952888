"""Evaluation: every task, `samples_per_task` times. `python -m workers.evaluate spec.json` (docs/jobs.md)."""

from __future__ import annotations

from dataclasses import asdict

from workers.lib.engines import Sampling
from workers.lib.environments import load
from workers.lib.errors import JobError
from workers.lib.events import Emitter
from workers.lib.program import StopFlag, run_main
from workers.lib.rollouts import Finished, Limits, play
from workers.lib.specs import Evaluate
from workers.ml.policies import episodes_at_once, open_policy


def sampling_of(harness: dict) -> Sampling:
    return Sampling(
        temperature=harness.get("temperature", 1.0),
        top_p=harness.get("top_p", 1.0),
        max_new_tokens=harness.get("max_new_tokens", 64),
    )


def limits_of(harness: dict) -> Limits:
    return Limits(seconds=harness.get("max_seconds", 300.0), tokens=harness.get("max_tokens", 0))


def emit_sample(
    events: Emitter, task: dict, index: int, done: Finished, *, phase: str, step: int | None = None
) -> None:
    """The counts are of all turns."""
    events.sample(
        task_id=task["id"],
        index=index,
        step=step,
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


def main(spec: Evaluate, events: Emitter, stop: StopFlag) -> None:
    tasks, n, engine, harness = spec.tasks, spec.samples_per_task, spec.engine, spec.environment["harness"]
    total, ended, passed, answered = len(tasks) * n, 0, 0, False
    events.progress(0, total, "loading the model")
    environment = load(spec.environment)

    def tell(index: int, sample: int, done: Finished) -> None:
        nonlocal ended, passed, answered
        emit_sample(events, tasks[index], sample, done, phase="eval")
        ended, passed = ended + 1, passed + done.score.success
        answered = answered or bool(done.replies)
        events.progress(ended, total, f"{passed} of {ended} succeeded")
        if ended == total and not answered:
            raise JobError(f"No sample got an answer. {done.score.mask_reason}")
        stop.check()

    play(
        open_policy(engine, spec.model, sampling_of(harness)),
        environment,
        tasks,
        limits_of(harness),
        tell,
        n=n,
        concurrency=episodes_at_once(engine, environment),
        seed=spec.seed,
    )
    events.result(metrics={"samples": total})


if __name__ == "__main__":
    run_main("evaluate", main)
