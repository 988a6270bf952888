"""Finds the step of a failed run whose correction would have changed the end. `python -m
workers.find_step spec.json` (docs/jobs.md).

First the recorded run is replayed once: how far the environment answers as it did then, and whether
the run fails there. Then continuations from some of its steps are played and scored
(`workers.lib.step_search` says which).
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
from typing import Any

from workers.evaluate import limits_of, sampling_of
from workers.lib.agent_policy import AgentPolicy
from workers.lib.environments import Environment, load
from workers.lib.errors import JobError
from workers.lib.events import Emitter
from workers.lib.policies import RecordedPolicy, seed_of
from workers.lib.program import StopFlag, run_main
from workers.lib.resuming import Difference, resume, turns_of
from workers.lib.rollouts import Finished, Limits, drive, rollout, stream
from workers.lib.specs.engines import AgentEndpoint
from workers.lib.specs.find_step import FindStep
from workers.lib.step_search import Tried, Wanted, most_tries, next_try
from workers.lib.verifiers import Score
from workers.ml.policies import episodes_at_once, open_policy


def main(spec: FindStep, events: Emitter, stop: StopFlag) -> None:
    environment = load(spec.environment)
    limits = limits_of(spec.environment.harness)
    events.progress(_done(spec), 0, "replaying the recorded run")
    difference, score = asyncio.run(replayed(spec, environment, limits))
    check_end(score)
    steps = [step for step in spec.steps if difference is None or step <= difference.at]
    events.emit(
        "replayed",
        steps=steps,
        differs_at=difference and difference.at,
        difference=difference.text if difference else "",
    )
    gc.freeze()
    events.progress(_done(spec), most_tries(len(steps), spec.each, every=spec.every), "loading")
    engine, sampling = spec.engine, sampling_of(spec.environment.harness)
    policy: Any = (
        AgentPolicy(engine, tools=environment.tools)
        if isinstance(engine, AgentEndpoint)
        else open_policy(engine, spec.model, sampling, None, None, environment.multi_turn)
    )
    search = Search(spec, environment, limits, steps, events, stop)
    drive(policy, lambda: search.run(policy), stop.check)
    events.result(stopped=search.stopped)


async def replayed(
    spec: FindStep, environment: Environment, limits: Limits
) -> tuple[Difference | None, Score | None]:
    """Where the environment begins to answer otherwise than in the run; or, if it does not, the
    score that it gives the run.
    """
    episode = environment.open(spec.task)
    try:
        difference = await resume(episode, spec.recorded)
    finally:
        with contextlib.suppress(Exception):
            await episode.close()
    if difference:
        return difference, None
    done = await rollout(
        RecordedPolicy([[]]), environment.open(spec.task), limits, recorded=spec.recorded
    )
    return None, done.score


def check_end(score: Score | None) -> None:
    """Raises JobError if the environment does not see that the run has failed."""
    if score is not None and score.masked:
        raise JobError(f"The environment cannot score the recorded run. {score.mask_reason}")
    if score is not None and score.success:
        raise JobError(
            "In this environment the recorded run succeeds, so no step can be blamed: choose the"
            " environment and the task whose verifier sees the failure, or dismiss the failure."
        )


class Search:
    def __init__(
        self,
        spec: FindStep,
        environment: Environment,
        limits: Limits,
        steps: list[int],
        events: Emitter,
        stop: StopFlag,
    ) -> None:
        self.spec, self.environment, self.limits = spec, environment, limits
        self.steps, self.events, self.stop = steps, events, stop
        self.tried = {one.step: Tried(one.successes, one.n, one.masked) for one in spec.tried}
        self.used, self.stopped = spec.used, ""
        self.answered = _done(spec) > 0

    async def run(self, policy: Any) -> None:
        while wanted := next_try(self.steps, self.tried, self.spec.each, every=self.spec.every):
            if self.spec.most_tokens and self.used >= self.spec.most_tokens:
                self.stopped = f"The limit of {self.spec.most_tokens:,} tokens is reached."
                return
            await self._continue(policy, wanted)

    async def _continue(self, policy: Any, wanted: Wanted) -> None:
        """Plays the wanted continuations. Their seeds depend on the step and on how many there are
        already.
        """
        step, recorded = wanted.step, self.spec.recorded[: wanted.step]
        index = first = self.tried.get(step, Tried()).attempts
        reason = ""
        episodes = stream(
            policy,
            self.environment,
            [self.spec.task],
            self.limits,
            n=wanted.n,
            concurrency=episodes_at_once(self.spec.engine, self.environment),
            seed=seed_of(self.spec.seed, step, first),
            recorded=recorded,
        )
        async with contextlib.aclosing(episodes):
            async for _, _, done in episodes:
                self._tell(step, index, done)
                index, reason = index + 1, done.score.mask_reason or done.problem
                self.stop.check()
        if not self.answered:
            raise JobError(f"No continuation got an answer. {reason}")

    def _tell(self, step: int, index: int, done: Finished) -> None:
        score, known = done.score, self.tried.get(step, Tried())
        before = sum(1 for _ in turns_of(self.spec.recorded[:step]))
        said = [at for at, _, _ in turns_of(done.rollout.messages)][before:]
        messages = done.rollout.messages[said[0] :] if said else []
        self.events.sample(
            step=step,
            index=index,
            output=done.output,
            **vars(score) | {"messages": messages},
            **done.used,
            truncated=done.truncated,
            turns=len(done.replies),
            stop_reason=done.stop_reason,
        )
        self.tried[step] = Tried(
            known.successes + (score.success and not score.masked),
            known.n + (not score.masked),
            known.masked + score.masked,
        )
        self.answered = self.answered or bool(done.replies)
        self.used += sum(reply.prompt_tokens + reply.output_tokens for reply in done.replies)
        total = most_tries(len(self.steps), self.spec.each, every=self.spec.every)
        ended = sum(one.attempts for one in self.tried.values())
        self.events.progress(ended, max(total, ended), f"{ended} continuations")


def _done(spec: FindStep) -> int:
    return sum(one.n + one.masked for one in spec.tried)


if __name__ == "__main__":
    run_main(FindStep, main)
