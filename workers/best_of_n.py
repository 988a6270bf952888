"""Rejection sampling that samples itself: n answers to each training task by the model that is trained, of which those that the
verifier passes are learned from. `python -m workers.best_of_n spec.json` (docs/jobs.md).

The samples come first, all by the model at the start (RAFT 2304.06767, one round), then `workers.sft` learns from what is kept.
What each task gave is written down as soon as it is there, beside the checkpoints, so that after a stop or a crash at most a few
tasks are sampled again, with the same seeds.
"""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from msgspec import structs, to_builtins

from workers import sft
from workers.evaluate import emit_sample, limits_of
from workers.lib.engines import Sampling
from workers.lib.environments import Environment, load
from workers.lib.errors import JobError
from workers.lib.events import Emitter
from workers.lib.policies import EnginePolicy, PolicyError
from workers.lib.program import Stop, StopFlag, run_main
from workers.lib.rollouts import Finished, play
from workers.lib.specs import BestOfN, BestOfNConfig, Sft, SftConfig, SftRow
from workers.lib.training_cost import SAMPLED_TOGETHER
from workers.lib.typed import convert
from workers.ml import checkpoint
from workers.ml.ranks import ALONE, Ranks, join
from workers.ml.transformers_engine import TransformersEngine

SAMPLED = "sampled.jsonl"  # a line for each task


def main(spec: BestOfN, events: Emitter, stop: StopFlag) -> None:
    rows = sampled(spec, events, stop)
    names = [field.name for field in structs.fields(SftConfig)]
    same = {
        name: getattr(spec, name)
        for name in ("kind", "job_id", "attempt", "seed", "out_dir", "model", "engine", "environment")
    }
    resume = spec.resume_from if checkpoint.step_of(spec.resume_from) else None
    sft.main(
        Sft(
            **same, resume_from=resume, rows=rows, validation_rows=spec.validation_rows, validation_tasks=spec.validation_tasks,
            config=SftConfig(**{name: getattr(spec.config, name) for name in names}),
        ),
        events,
        stop,
    )  # fmt: skip


def sampled(spec: BestOfN, events: Emitter, stop: StopFlag) -> list[SftRow]:
    """What is learned from, in the order of the tasks."""
    file, ranks = Path(spec.out_dir) / SAMPLED, join(spec.config.processes)
    found = ranks.from_main(lambda: read(file))
    if any(task["id"] not in found for task in spec.tasks):
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            with file.open("w") if ranks.is_main else nullcontext() as lines:
                for one in found.values() if lines else ():  # again, since the last line may have been half written
                    lines.write(json.dumps(one) + "\n")
                sample(spec, found, lines, events, stop, ranks)
        except Stop:
            if ranks.is_main:
                keep(spec, events)
            raise
    totals = {name: sum(one[name] for one in found.values()) for name in ("samples", "passed", "masked", "kept")}
    unmasked = max(1, totals["samples"] - totals["masked"])
    events.metric(0, {f"rejection/{name}": float(value) for name, value in totals.items()} | {
        "rejection/success": totals["passed"] / unmasked, "rejection/tasks": float(sum(one["kept"] > 0 for one in found.values())),
    })  # fmt: skip
    if not totals["kept"]:
        raise JobError(why_nothing(spec, totals))
    return [convert(row, SftRow) for task in spec.tasks for row in found[task["id"]]["rows"]]


def why_nothing(spec: BestOfN, totals: dict[str, int]) -> str:
    """A sentence for the screen where no sample is learned from."""
    of = f"None of the {spec.config.samples} samples of any of the {len(spec.tasks)} tasks"
    if totals["masked"] == totals["samples"]:
        return f"{of} could be scored. Open a rollout for the reason."
    if totals["passed"]:
        return (
            f"{totals['passed']:,} of {totals['samples']:,} samples passed, but each of them is empty or was cut off, and such answers are not "
            f"learned from. Raise max_new_tokens, which is {spec.config.max_new_tokens:,}."
        )
    return f"{of} passed, so there is nothing to learn from. Sample more of each, raise the temperature, or begin with SFT on demonstrations."


def sample(
    spec: BestOfN, found: dict[str, dict], lines: Any, events: Emitter, stop: StopFlag, ranks: Ranks = ALONE
) -> None:
    """Adds what each task gave to `found` and to the file. Tasks are sampled a few at a time, the same ones whenever it begins, so
    that their seeds do not depend on where it stopped. Of several `ranks` each samples for some of them, and all know all; the
    first has the file."""
    config, n = spec.config, spec.config.samples
    total = len(spec.tasks) * n
    events.progress(len(found) * n, total, "loading the model")
    with stop.at_once():
        environment = load(spec.environment)
        engine = TransformersEngine.load(spec.engine, spec.model)
    engine.check = stop.check
    sampling = Sampling(config.temperature, config.top_p, config.max_new_tokens)
    for start in range(0, len(spec.tasks), SAMPLED_TOGETHER):
        tasks = spec.tasks[start : start + SAMPLED_TOGETHER]
        if all(task["id"] in found for task in tasks):
            continue
        waiting: list[dict[int, Finished]] = [{} for _ in tasks]

        def tell(index: int, number: int, done: Finished, tasks: Any = tasks, waiting: Any = waiting) -> None:
            waiting[index][number] = done
            task = tasks[index]
            if len(waiting[index]) < n or task["id"] in found:
                return
            found[task["id"]] = result = result_of(environment, task, [waiting[index][at] for at in range(n)], config)
            for at in range(n):
                emit_sample(events, task, at, waiting[index][at], phase="train", step=0)
            if lines:
                lines.write(json.dumps(result) + "\n")
                lines.flush()
            passed = sum(one["passed"] for one in found.values())
            events.progress(len(found) * n, total, f"sampling: {passed} of {len(found) * n} passed")

        def play_some(some: range, tell: Any, tasks: Any = tasks, seed: int = spec.seed * 100_003 + start) -> None:
            try:
                play(
                    EnginePolicy(engine, sampling, goes_on=environment.multi_turn), environment, tasks, limits_of(environment.harness), tell,
                    n=n, concurrency=len(some) * n, seed=seed, only=some, check=stop.check,
                )  # fmt: skip
            except PolicyError:
                stop.check()  # which ended the generation
                raise

        ranks.share(len(tasks), play_some, tell)


def result_of(environment: Environment, task: dict, episodes: list[Finished], config: BestOfNConfig) -> dict[str, Any]:
    """What a task gave; the component `kept` of each score says whether it is learned from."""
    chosen = kept_of(episodes, config)
    for at, one in enumerate(episodes):
        one.score.components = one.score.components | {"kept": float(at in chosen)}
    return {
        "task": task["id"],
        "samples": len(episodes),
        "passed": sum(one.score.success and not one.score.masked for one in episodes),
        "masked": sum(one.score.masked for one in episodes),
        "kept": len(chosen),
        "rows": [to_builtins(row_of(environment, task, episodes[at])) for at in chosen],
    }


def kept_of(episodes: list[Finished], config: BestOfNConfig) -> list[int]:
    """Places of the samples that are learned from: of those that passed and differ, the best or all, the best first."""
    good = [
        at
        for at, done in enumerate(episodes)
        if done.score.success
        and not done.score.masked
        and not done.truncated
        and any(reply.text.strip() for reply in done.replies)
    ]
    good.sort(key=lambda at: -float(episodes[at].score.reward or 0))
    different = {said(episodes[at]): at for at in reversed(good)}
    chosen = [at for at in good if different[said(episodes[at])] == at]
    return chosen[:1] if config.keep == "best" else chosen


def said(done: Finished) -> str:
    return json.dumps([reply.text.strip() for reply in done.replies])


def row_of(environment: Environment, task: dict, done: Finished) -> SftRow:
    episode = environment.open(task)
    given: dict[str, Any] = {"messages": episode.messages, "tools": episode.offered}
    if len(done.replies) == 1 and len(done.rollout.messages) <= 1:
        return SftRow(**given, completion=done.replies[0].text)
    return SftRow(**given, turns=done.rollout.messages)


def read(file: Path) -> dict[str, dict]:
    """{task: its line}; the last line may be half written."""
    found = {}
    for line in file.read_text().splitlines() if file.is_file() else ():
        try:
            one = json.loads(line)
        except ValueError:
            continue
        found[one["task"]] = one
    return found


def keep(spec: BestOfN, events: Emitter) -> None:
    """A checkpoint of step 0, so that the run can be resumed where it sampled."""
    folder = Path(spec.out_dir) / "checkpoint-0"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / checkpoint.STATE).write_text(json.dumps({"step": 0, "optimizer": {}}))
    events.checkpoint(0, str(folder))


if __name__ == "__main__":
    run_main("best_of_n", main)
