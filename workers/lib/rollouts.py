"""Many episodes at a time: a policy talks, environments answer, limits hold, and no episode harms another. Light.

Evaluation, training, the demo's agent and rescoring go through here; a single-turn task is an episode of one step.

What ends in which way: a tool's crash is an observation. Turn and token limits end the episode, which is scored as it
stands. A time limit, a policy that does not answer, and a crash of the environment or the verifier mask the sample, with
the reason: none of them says anything about the model.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, replace

from workers.lib.environments import Environment, Episode
from workers.lib.environments.episodes import SCORED_AT_ONCE
from workers.lib.messages import last_answer, text_of
from workers.lib.policies import Policy, PolicyError, RecordedPolicy, Reply, seed_of
from workers.lib.verifiers import Rollout, Score, masked


@dataclass(frozen=True)
class Limits:
    """Of one episode: seconds for the conversation, turns of the agent, tokens it writes, seconds for its score.

    A limit of 0 does not hold. The environment's own limit on turns holds besides. Where all episodes share one engine,
    the seconds in which they wait for it do not count.
    """

    seconds: float = 300.0
    turns: int = 50
    tokens: int = 0
    score_seconds: float = 120.0


NO_LIMITS = Limits(seconds=0, turns=0, score_seconds=0)


@dataclass
class Finished:
    """An episode at its end. `replies` has one for each turn of the agent."""

    rollout: Rollout
    score: Score
    replies: list[Reply]
    stop_reason: str
    seconds: float

    @property
    def output(self) -> str:
        """What the agent wrote last; its last calls as JSON where it gave only calls."""
        if self.replies and self.replies[-1].text:
            return self.replies[-1].text
        last = last_answer(self.rollout.messages)
        calls = last.get("tool_calls")
        return json.dumps(calls, ensure_ascii=False) if calls else text_of(last)

    @property
    def truncated(self) -> bool:
        return self.stop_reason in ("turns", "tokens", "time") or any(reply.truncated for reply in self.replies)


async def rollout(
    policy: Policy,
    episode: Episode,
    limits: Limits,
    *,
    seed: int = 0,
    key: int = 0,
    scoring: asyncio.Semaphore | None = None,
) -> Finished:
    """Drives one episode to its end, scores and closes it. Raises PolicyError where that is final, and a cancellation.

    `scoring` bounds how many are scored at a time, so that the seconds of a score are not spent in a queue.
    """
    began, replies = time.perf_counter(), list[Reply]()
    reason = ""
    try:
        stopped, reason = await _converse(policy, episode, limits, replies, seed, key)
        async with scoring or contextlib.nullcontext():
            score = masked(reason) if reason else await _score(episode, limits)
    finally:
        await _close(episode)
    stop_reason = stopped or episode.stop_reason
    done = _rollout_of(episode, replies, stop_reason)
    if not score.messages:
        score.messages = done.messages
    return Finished(done, score, replies, stop_reason, time.perf_counter() - began)


async def _converse(
    policy: Policy, episode: Episode, limits: Limits, replies: list[Reply], seed: int, key: int
) -> tuple[str, str]:
    """(the limit that ended it, why it must be masked), each "" where there is none."""
    try:
        async with asyncio.timeout(limits.seconds or None) as clock:
            return await _turns(policy, episode, limits, replies, seed, key, clock), ""
    except PolicyError as error:
        if error.final:
            raise
        return "policy error", f"The policy gave no answer: {error}"[:500]
    except TimeoutError as error:
        if clock.expired():
            return "time", f"The episode took longer than {limits.seconds:g} seconds."
        return "environment error", f"The environment failed: {_said(error)}"
    except Exception as error:  # a fault of the environment is no evidence about the model
        return "environment error", f"The environment failed: {_said(error)}"


async def _turns(
    policy: Policy,
    episode: Episode,
    limits: Limits,
    replies: list[Reply],
    seed: int,
    key: int,
    clock: asyncio.Timeout,
) -> str:
    """Turn by turn until the episode is done (""), or the name of the limit that was reached."""
    while not episode.done:
        if limits.turns and len(replies) >= limits.turns:
            return "turns"
        if limits.tokens and sum(reply.output_tokens for reply in replies) >= limits.tokens:
            return "tokens"
        async with _stopped(clock) if policy.shares_time else contextlib.nullcontext():
            reply = await policy.answer(episode.messages, episode.offered, seed=seed, key=key)
        if reply is None:
            return ""
        replies.append(reply)
        await episode.step(reply.message)
    return ""


@contextlib.asynccontextmanager
async def _stopped(clock: asyncio.Timeout) -> AsyncIterator[None]:
    """The clock goes on afterwards with what was left of it."""
    ends, loop = clock.when(), asyncio.get_running_loop()
    began = loop.time()
    clock.reschedule(None)
    yield
    clock.reschedule(ends + loop.time() - began if ends is not None else None)


async def _score(episode: Episode, limits: Limits) -> Score:
    try:
        async with asyncio.timeout(limits.score_seconds or None):
            return await episode.score()
    except TimeoutError:
        return masked(f"The verifier took longer than {limits.score_seconds:g} seconds.")
    except Exception as error:
        return masked(f"The verifier failed: {_said(error)}")


async def _close(episode: Episode) -> None:
    """A failing close loses nothing: the score is there, and remote sessions expire."""
    with contextlib.suppress(Exception):
        await asyncio.wait_for(episode.close(), 10.0)


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:300]


def _rollout_of(episode: Episode, replies: list[Reply], stop_reason: str) -> Rollout:
    stats = {
        "turns": len(replies),
        "stop_reason": stop_reason,
        "input_tokens": sum(reply.prompt_tokens for reply in replies),
        "output_tokens": sum(reply.output_tokens for reply in replies),
    }
    try:
        made = episode.rollout()  # type: ignore[attr-defined]
    except Exception:  # a task without usable expected calls: its score is masked already
        made = Rollout(task=getattr(episode, "task", {}), messages=getattr(episode, "said", []), tools=episode.tools)
    return replace(made, stats=made.stats | stats)


def _unopened(task: dict, error: Exception) -> Finished:
    nothing = Rollout(task=task, messages=[], tools=[])
    return Finished(nothing, masked(f"The task cannot be opened: {_said(error)}"), [], "environment error", 0.0)


async def stream(
    policy: Policy,
    environment: Environment,
    tasks: Iterable[dict],
    limits: Limits,
    *,
    n: int = 1,
    concurrency: int = 64,
    seed: int = 0,
) -> AsyncIterator[tuple[int, int, Finished]]:
    """(index of the task, number of its sample, episode) as they end; at most `concurrency` are open at a time.

    Where the reader stops or is cancelled, those under way are cancelled and closed before this returns.
    """
    todo = iter([(index, sample, task) for index, task in enumerate(tasks) for sample in range(n)])
    ended: asyncio.Queue[tuple[int, int, Finished] | BaseException | None] = asyncio.Queue()
    scoring = asyncio.Semaphore(SCORED_AT_ONCE)

    async def work() -> None:
        try:
            for index, sample, task in todo:
                own = {"seed": seed_of(seed, index, sample), "key": index * n + sample}
                try:
                    episode = environment.open(task)
                except Exception as error:  # one bad task harms no other
                    ended.put_nowait((index, sample, _unopened(task, error)))
                    continue
                done = await rollout(policy, episode, limits, scoring=scoring, **own)
                ended.put_nowait((index, sample, done))
        except Exception as error:  # a policy that answers nobody: the reader's affair
            ended.put_nowait(error)
        finally:
            ended.put_nowait(None)

    workers = [asyncio.create_task(work()) for _ in range(max(1, concurrency))]
    try:
        left = len(workers)
        while left:
            item = await ended.get()
            if isinstance(item, BaseException):
                raise item
            if item is None:
                left -= 1
            else:
                yield item
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)


def play(
    policy: Policy,
    environment: Environment,
    tasks: list[dict],
    limits: Limits,
    ended: Callable[[int, int, Finished], None],
    *,
    n: int = 1,
    concurrency: int = 64,
    seed: int = 0,
) -> None:
    """`stream` in an event loop of its own, for programs: `ended` is called for each episode, and what it raises ends
    the others. Closes the policy."""

    async def run() -> None:
        episodes = stream(policy, environment, tasks, limits, n=n, concurrency=concurrency, seed=seed)
        try:
            async with contextlib.aclosing(episodes):
                async for index, sample, done in episodes:
                    ended(index, sample, done)
        finally:
            await policy.aclose()

    asyncio.run(run())


async def replay(environment: Environment, task: dict, messages: list[dict]) -> Score:
    """The score of what an agent said, said again in a fresh episode: its calls are carried out, their recorded results
    dropped. Raises where the task cannot be opened."""
    said = [message for message in messages if message.get("role") == "assistant"]
    done = await rollout(RecordedPolicy([said]), environment.open(task), NO_LIMITS)
    return done.score
