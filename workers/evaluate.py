"""Evaluation: every task, `samples_per_task` times. `python -m workers.evaluate spec.json` (docs/jobs.md)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from workers.engines import Engine, Output, Sampling, open_engine
from workers.environments import Environment, load
from workers.events import Emitter
from workers.spec import StopFlag, run_main
from workers.verifiers import Score


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


def main(spec: dict, events: Emitter, stop: StopFlag) -> None:
    tasks, n = spec["tasks"], spec["samples_per_task"]
    total = len(tasks) * n
    events.progress(0, total, "loading the model")
    environment = load(spec["environment"])
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
