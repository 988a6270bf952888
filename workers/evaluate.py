"""Evaluation: every task, `samples_per_task` times. `python -m workers.evaluate spec.json`
(docs/jobs.md).
"""

from __future__ import annotations

import gc
import time
from pathlib import Path
from typing import Any

import msgspec

from workers.lib.agent_policy import AgentPolicy
from workers.lib.engines import Sampling
from workers.lib.environments import Environment, load
from workers.lib.errors import JobError
from workers.lib.events import Emitter
from workers.lib.harness.addressed import Addressed, Rollouts
from workers.lib.harness.playing import HarnessPlayer
from workers.lib.program import StopFlag, run_main
from workers.lib.rollouts import Finished, Limits, play
from workers.lib.shares import Shares, divided, fields_of
from workers.lib.specs.engines import AgentEndpoint, InProcess
from workers.lib.specs.environment import Harness
from workers.lib.specs.evaluate import Evaluate
from workers.lib.task_files import read_tasks
from workers.ml.policies import episodes_at_once, open_policy

SHOWN_EVERY_S = 0.2  # seconds; a thousand samples per second need no thousand lines of progress


def sampling_of(harness: Harness) -> Sampling:
    return Sampling(harness.temperature, harness.top_p, harness.max_new_tokens)


def limits_of(harness: Harness) -> Limits:
    return Limits(seconds=harness.max_seconds, tokens=harness.max_tokens)


def emit_sample(
    events: Emitter,
    task: dict,
    index: int,
    done: Finished,
    *,
    phase: str,
    step: int | None = None,
    **measured: Any,
) -> None:
    """Emit one sample. Token counts are sums over all turns; `measured` overrides them if they were
    measured elsewhere.
    """
    events.sample(
        task_id=task["id"],
        index=index,
        step=step,
        phase=phase,
        output=done.output,
        **vars(done.score),
        **done.used | measured,
        truncated=done.truncated,
        turns=len(done.replies),
        stop_reason=done.stop_reason,
    )


def main(spec: Evaluate, events: Emitter, stop: StopFlag) -> None:
    tasks, n, engine, harness = (
        read_tasks(spec.tasks),
        spec.samples_per_task,
        spec.engine,
        spec.environment.harness,
    )
    total, ended, passed, answered, shown, shown_at = len(tasks) * n, 0, 0, False, 0, 0.0
    agent = isinstance(engine, AgentEndpoint)
    limited = isinstance(engine, AgentEndpoint) and bool(engine.most_tokens or engine.most_usd)
    events.progress(0, total, "calling the agent" if agent else "loading the model")
    environment: Environment = load(spec.environment)
    rollouts = None
    if spec.rollouts:
        environment, rollouts = Addressed(environment), Rollouts(spec.rollouts, tasks, n)
    shares = Shares()

    def notify(text: str) -> None:
        events.progress(ended, total, text)
        events.log("info", text)

    player = HarnessPlayer(spec.harness, notify=notify, learns=False) if spec.harness else None
    if isinstance(engine, InProcess) and not environment.multi_turn and not player:
        shares = divided("workers.evaluate", Path(spec.model.base), len(tasks))
        engine = msgspec.structs.replace(engine, threads=engine.threads or shares.threads)

    def show() -> None:
        nonlocal shown, shown_at
        shown, shown_at = ended, time.monotonic()
        if limited:
            events.emit("spent", **policy.client.spent)
        events.progress(ended, total, f"{passed} of {ended} succeeded")

    def tell(index: int, sample: int, done: Finished) -> None:
        if (agent or player) and done.problem:
            done.score.details = [*done.score.details, done.problem]
        done.score.details = [*done.score.details, *(fault[:500] for fault in done.faults)]
        emit_sample(events, tasks[index], sample, done, phase="eval")
        count(done.score.success, bool(done.replies))
        if ended == total and not answered:
            raise JobError(f"No sample got an answer. {done.score.mask_reason or done.problem}")
        stop.check()

    def pass_on(sample: dict[str, Any]) -> None:
        events.sample(**fields_of(sample))
        count(sample["success"], True)

    def count(success: bool, has_reply: bool) -> None:
        nonlocal ended, passed, answered
        ended, passed = ended + 1, passed + success
        answered = answered or has_reply
        if ended == total or time.monotonic() - shown_at >= SHOWN_EVERY_S:
            show()

    # everything loaded by now stays, so the garbage collector need not scan it again and again
    gc.freeze()
    policy: Any = (
        AgentPolicy(engine, tools=environment.tools, rollouts=rollouts)
        if isinstance(engine, AgentEndpoint)
        else open_policy(
            engine,
            spec.model,
            sampling_of(harness),
            goes_on=environment.multi_turn or player is not None,
        )
    )
    concurrency = episodes_at_once(engine, environment)
    if player:
        player.start()
        events.emit("rollouts", url=player.gateway.url)
        concurrency = min(concurrency, player.harness.at_once)
    if not agent:
        events.progress(0, total, "waiting for the first samples")
    try:
        play(
            policy,
            environment,
            tasks,
            (
                Limits(seconds=harness.max_seconds) if agent else limits_of(harness)
            ),  # an agent's time limit is enforced by its policy
            tell,
            n=n,
            concurrency=concurrency,
            seed=spec.seed,
            only=shares.of(len(tasks)),
            check=(lambda: shares.read(pass_on)) if shares.others else None,
            player=player,
        )
        shares.read_all(pass_on, stop.check)
    except JobError:  # for a limit or a rejected key, the progress shows how many samples are kept
        if ended > shown or limited:
            show()
        raise
    finally:
        if player:
            player.close()
    events.result(metrics={"samples": total})


if __name__ == "__main__":
    run_main(Evaluate, main)
