"""Runs many episodes concurrently: a policy answers, environments respond, limits are enforced, and
no episode affects another. Light.

Evaluation, training, the demo's agent and rescoring use it; a single-turn task is an episode with
one step.

How failures are attributed: a crash of a tool is an observation. If the agent exceeds a limit
(time, turns, …: EXCEEDED), the sample fails without success or credit, so that hanging is never
better than failing. If a server does not answer, or the environment or the verifier crashes, the
sample is masked with the reason, since that says nothing about the model. Time is measured
separately for the agent and its tools; if a party took too long but answers a trivial question, the
agent kept it busy.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable, Container, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import uvloop

from workers.lib.advantages import turn_rewards
from workers.lib.clocks import Clock, Overtime
from workers.lib.environments import Environment, Episode
from workers.lib.environments.episodes import SCORED_AT_ONCE
from workers.lib.messages import calls_of, last_answer, text_of
from workers.lib.policies import SPENT, Policy, PolicyError, RecordedPolicy, Reply, seed_of
from workers.lib.resuming import resume
from workers.lib.transcripts import reported_results, same_result
from workers.lib.verifiers import Rollout, Score, masked
from workers.lib.verifiers.call_facts import add_call_facts
from workers.lib.verifiers.types import Execution


@dataclass(frozen=True)
class Limits:
    """Limits of one episode: seconds for the agent's answers, the same for its tools, turns,
    generated tokens, and seconds for scoring, which is only a last resort, since verifiers have
    their own limits and wait for each other.

    A limit of 0 means none. The environment's own limit on turns applies too. If all episodes share
    one engine, the time they wait for it does not count.
    """

    seconds: float = 300.0
    turns: int = 50
    tokens: int = 0
    score_seconds: float = 1800.0


CHECKED_EVERY_S = 0.5
LARGEST_REWARD = (
    1_000_000  # in either direction; with a larger reward, a group's advantages are meaningless
)
MOST_FAULTS = 5
SHOWN = 120  # characters of a tool's result in a reason
OTHER_RESULTS = (  # a stop reason: a replayed agent had run other tools than the environment's
    "other results"
)
LOST = "worker lost"  # a stop reason: whoever ran the agent is gone, so it is run once more
HUNG = "The model's server hung, or is too busy to answer."
MOST_TOKENS = 2**31 - 1  # per episode: what a database column can hold
NO_LIMITS = Limits(seconds=0, turns=0, score_seconds=0)
EXCEEDED = {
    "turns": "The agent took more turns than it may.",
    "tokens": "The agent wrote more tokens than it may.",
    "time": "The agent took longer than it may.",
    "size": "The agent's answer was larger than what is read.",
    "context": "The conversation became longer than the model's context.",
    "refused": "The model's server refused what the agent wrote.",
    "agent error": "The agent failed.",
}
"""Stop reason → what the sample failed for: limits that the agent itself exceeded, or its own
failure.
"""


class Ended(Exception):
    """The end of a conversation that cannot continue. `masks` says why the sample does not count,
    "" if it failed; `problem` is what the policy said about its own failure.
    """

    def __init__(self, stop_reason: str, masks: str = "", problem: str = "") -> None:
        super().__init__(stop_reason)
        self.stop_reason, self.masks, self.problem = stop_reason, masks[:500], problem[:500]
        self.facts: dict[str, float] = {}  # of an agent that held it, for the rollout's `stats`


class Player(Protocol):
    """Has an agent of its own hold the conversation (`workers.lib.harness`)."""

    async def converse(
        self,
        sampler: Any,
        episode: Episode,
        limits: Limits,
        replies: list[Reply],
        *,
        seed: int,
        key: int,
    ) -> Ended: ...


@dataclass
class Finished:
    """A finished episode. `replies` has one entry per turn of the agent."""

    rollout: Rollout
    score: Score
    replies: list[Reply]
    stop_reason: str
    seconds: float
    problem: str = ""  # what the policy said about the limit that it exceeded
    faults: list[str] = field(
        default_factory=list
    )  # of the environment's own code; for people, never for a model

    @property
    def output(self) -> str:
        """The text that the agent wrote last, or its last calls as JSON if there was only a
        call.
        """
        if self.replies and self.replies[-1].text:
            return self.replies[-1].text
        last = last_answer(self.rollout.messages)
        calls = last.get("tool_calls")
        return json.dumps(calls, ensure_ascii=False) if calls else text_of(last)

    @property
    def used(self) -> dict[str, float | None]:
        """Latency and tokens over all turns. Unknown values are None and never 0, which would look
        cheap and fast: if there is no answer, if tokens were not reported, or if a number cannot be
        stored.
        """
        tokens = {
            "input_tokens": sum(reply.prompt_tokens for reply in self.replies),
            "output_tokens": sum(reply.output_tokens for reply in self.replies),
        }
        counted = bool(self.replies) and all(reply.counted for reply in self.replies)
        if not counted or max(tokens.values()) > MOST_TOKENS:
            tokens = dict.fromkeys(tokens)
        return {
            "latency_ms": sum(reply.latency_ms for reply in self.replies) if self.replies else None
        } | tokens

    @property
    def truncated(self) -> bool:
        return self.stop_reason in EXCEEDED or any(reply.truncated for reply in self.replies)


async def rollout(
    policy: Policy,
    episode: Episode,
    limits: Limits,
    *,
    seed: int = 0,
    key: int = 0,
    scored: bool = True,
    scoring: asyncio.Semaphore | None = None,
    sampled: Callable[[], None] = lambda: None,
    recorded: Sequence[dict] = (),
    player: Player | None = None,
) -> Finished:
    """Run one episode to its end, score and close it. Raises PolicyError if that is final, and a
    cancellation. The policy continues after what was `recorded` (`workers.lib.resuming`). With a
    `player`, an agent asks the policy by itself.

    Without `scored` the verifier is not called, for when only time and tokens matter. `scoring`
    limits how many are scored at a time, so that time in the queue does not count as scoring time.
    `sampled` is called when the agent has finished, before scoring.
    """
    began, replies = time.perf_counter(), list[Reply]()
    try:
        if player is not None:
            end = await player.converse(policy, episode, limits, replies, seed=seed, key=key)
        else:
            end = await _converse(policy, episode, limits, replies, seed, key, recorded)
        if end.stop_reason != LOST:
            sampled()
        stop_reason, reason = end.stop_reason or episode.stop_reason, end.masks or episode.failure
        async with scoring or contextlib.nullcontext():
            reason = reason or ("" if scored else "Only its time was measured.")
            score = masked(reason) if reason else await _score(episode, limits)
    finally:
        policy.forget(key)
        await _close(episode)
    if stop_reason in EXCEEDED and not reason:
        score = failed(score, stop_reason)
    done = _rollout_of(episode, replies, stop_reason)
    done.stats.update(end.facts)
    add_call_facts(score, done)
    if not score.messages:
        score.messages = done.messages
    faults = list(dict.fromkeys(getattr(episode, "faults", [])))[:MOST_FAULTS]
    return Finished(
        done, score, replies, stop_reason, time.perf_counter() - began, end.problem, faults
    )


def failed(score: Score, stop_reason: str) -> Score:
    """The score of an episode that ended because the agent exceeded a limit: its score so far,
    without success or credit.
    """
    reward = 0.0 if score.reward is None else min(0.0, score.reward)
    score.reward, score.success, score.masked, score.mask_reason = reward, False, False, ""
    score.details = [EXCEEDED[stop_reason], *score.details]
    return score


async def _converse(
    policy: Policy,
    episode: Episode,
    limits: Limits,
    replies: list[Reply],
    seed: int,
    key: int,
    recorded: Sequence[dict],
) -> Ended:
    """Returns how the conversation ended, without a reason if the episode ended by itself."""
    try:
        if difference := await resume(episode, recorded):
            return Ended(OTHER_RESULTS, difference.text)
        await take_turns(policy, episode, limits, replies, seed, key)
    except Ended as end:
        return end
    except PolicyError as error:
        if error.final:
            raise
        # Input that is rejected before the agent's first turn is the task's own request: assistant
        # messages in it are examples, or what was said in production before the step that is
        # replayed.
        its_own = bool(replies) or error.limit not in ("context", "refused")
        if error.limit and its_own and (error.limit != "time" or await policy.responds()):
            return Ended(error.limit, problem=str(error))
        return Ended("policy error", f"The policy gave no answer: {error}")
    except Exception as error:  # an error of the environment says nothing about the model
        return Ended("environment error", f"The environment failed: {_error_text(error)}")
    return Ended("")


async def take_turns(
    policy: Policy, episode: Episode, limits: Limits, replies: list[Reply], seed: int, key: int
) -> None:
    """Run turns until the episode is done. Raises Ended, and errors of the policy and the
    environment.
    """
    other = ""  # why what the agent says from here on cannot be replayed
    agent, tools = Clock(0 if policy.shares_time else limits.seconds), Clock(limits.seconds)
    while not episode.done:
        if limits.turns and len(replies) >= limits.turns:
            raise Ended("turns")
        left = limits.tokens - sum(reply.output_tokens for reply in replies)
        if limits.tokens and left <= 0:
            raise Ended("tokens")
        try:
            async with agent.running():
                most = left if limits.tokens else None
                reply = await policy.answer(
                    episode.messages, episode.offered, seed=seed, key=key, most=most
                )
        except Overtime:
            masks = "" if await policy.responds() else HUNG
            raise Ended("time" if not masks else "policy error", masks) from None
        if reply is None:
            return
        if other and (calls_of(reply.message) or getattr(episode, "judges_words", True)):
            raise Ended(OTHER_RESULTS, other)
        replies.append(reply)
        before = len(episode.messages)
        try:
            async with tools.running():
                await episode.step(reply.message)
        except Overtime:
            masks = (
                ""
                if await episode.responds()
                else f"The environment took longer than {limits.seconds:g} seconds."
            )
            raise Ended("time" if not masks else "environment error", masks) from None
        other = other or _other_results(reply.message, episode, before)
        if limits.tokens and (
            reply.output_tokens > left or (reply.truncated and reply.output_tokens == left)
        ):
            raise Ended("tokens")  # even if it was the last answer


def _other_results(message: dict, episode: Episode, before: int) -> str:
    """Why the rest of an agent's own conversation cannot be replayed here: a tool that it ran
    itself returned something else than the environment's, so what it does next says nothing about
    it. "" if it can. A call that the environment refused as unsafe counts, whatever the agent's own
    tool did.
    """
    reported = reported_results(message)
    if not any(text is not None for text in reported):
        return ""
    answered = [text_of(row) for row in episode.messages[before:] if row.get("role") == "tool"]
    ran = list(getattr(episode, "calls", []))[-len(answered) :] if answered else []
    for at, (own, here) in enumerate(zip(reported, answered, strict=False)):
        unsafe = len(ran) == len(answered) and ran[at].unsafe
        if own is not None and not unsafe and not same_result(own, here):
            call = calls_of(message)[at].tool
            return (
                f"The agent saw other results than the environment's: its own {call} returned"
                f" “{own[:SHOWN]}”, and the environment's “{here[:SHOWN]}”. Let it call the"
                " tools at the address of its sample, or return its calls without running them"
                " (docs/agents.md)."
            )
    return ""


async def _score(episode: Episode, limits: Limits) -> Score:
    try:
        async with asyncio.timeout(limits.score_seconds or None):
            score = await episode.score()
    except TimeoutError:
        return masked(f"The verifier took longer than {limits.score_seconds:g} seconds.")
    except Exception as error:
        return masked(f"The verifier failed: {_error_text(error)}")
    name_harm(score, getattr(episode, "calls", ()))
    earned = [
        score.reward,
        *turn_rewards(score.components),
    ]  # what turns earned may be compared in place of their sum
    problem = next((said for value in earned if (said := out_of_range(value))), "")
    return masked(problem) if problem else score


def name_harm(score: Score, calls: Iterable[Execution]) -> None:
    """Adds which calls did harm to the details of an unsafe score, whatever verifier gave it: the
    gate tells kinds of harm apart.
    """
    harmful = dict.fromkeys(f"unsafe: {call.name}" for call in calls if call.unsafe and call.name)
    if score.unsafe:
        score.details = [text for text in harmful if text not in score.details] + score.details


def out_of_range(reward: float | None) -> str:
    """Why a reward cannot be used; "" if it can."""
    if reward is None or abs(reward) <= LARGEST_REWARD:
        return ""
    return (
        f"The reward {reward:g} is not within ±{LARGEST_REWARD:,}: beside it no other would count."
    )


async def _close(episode: Episode) -> None:
    """A failing close loses nothing: the score is known, and remote sessions expire."""
    with contextlib.suppress(Exception):
        async with asyncio.timeout(10.0):
            await episode.close()


def _error_text(error: Exception) -> str:
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
    except Exception:  # a task without usable expected calls; its score is masked already
        made = Rollout(
            task=getattr(episode, "task", {}),
            messages=getattr(episode, "said", []),
            tools=episode.tools,
        )
    return replace(made, stats=made.stats | stats)


def _unopened(task: dict, error: Exception) -> Finished:
    nothing = Rollout(task=task, messages=[], tools=[])
    return Finished(
        nothing,
        masked(f"The task cannot be opened: {_error_text(error)}"),
        [],
        "environment error",
        0.0,
    )


async def stream(
    policy: Policy,
    environment: Environment,
    tasks: Iterable[dict],
    limits: Limits,
    *,
    n: int = 1,
    concurrency: int = 64,
    seed: int = 0,
    only: Container[int] | None = None,
    sampled: Callable[[], None] = lambda: None,
    recorded: Sequence[dict] = (),
    player: Player | None = None,
) -> AsyncIterator[tuple[int, int, Finished]]:
    """Yield (index of the task, number of its sample, episode) as they end; at most `concurrency`
    run at a time.

    `only`: the indices of the tasks to play; a task's episodes do not depend on which others are
    played.

    If the reader stops or is cancelled, running episodes are cancelled and closed before this
    returns. If the job's limit is used up, episodes that have their answers still finish, since
    those are paid for.
    """
    chosen = ((index, task) for index, task in enumerate(tasks) if only is None or index in only)
    todo = ((index, sample, task) for index, task in chosen for sample in range(n))
    ended: asyncio.Queue[tuple[int, int, Finished] | BaseException | None] = asyncio.Queue()
    scoring = asyncio.Semaphore(SCORED_AT_ONCE)

    async def work() -> None:
        try:
            for index, sample, task in todo:
                own = {"seed": seed_of(seed, index, sample), "key": index * n + sample}
                for _ in range(2):
                    try:
                        episode = environment.open(task)
                    except Exception as error:  # one bad task affects no other
                        done = _unopened(task, error)
                        break
                    done = await rollout(
                        policy,
                        episode,
                        limits,
                        scoring=scoring,
                        sampled=sampled,
                        recorded=recorded,
                        player=player,
                        **own,
                    )
                    if done.stop_reason != LOST:
                        break
                ended.put_nowait((index, sample, done))
        except Exception as error:  # the policy cannot answer at all: left to the reader
            ended.put_nowait(error)
        finally:
            ended.put_nowait(None)

    workers = [asyncio.create_task(work()) for _ in range(max(1, concurrency))]
    try:
        left, spent = len(workers), None
        while left:
            item = await ended.get()
            if isinstance(item, PolicyError) and item.limit == SPENT:
                spent = spent or item
                todo.close()  # a later task must not be played only because it is cheaper
            elif isinstance(item, BaseException):
                raise item
            elif item is None:
                left -= 1
            else:
                yield item
        if spent:
            raise spent
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)


def play(
    policy: Policy,
    environment: Environment,
    tasks: Iterable[dict],
    limits: Limits,
    ended: Callable[[int, int, Finished], None],
    *,
    n: int = 1,
    concurrency: int = 64,
    seed: int = 0,
    only: Container[int] | None = None,
    check: Callable[[], None] | None = None,
    sampled: Callable[[], None] = lambda: None,
    player: Player | None = None,
) -> None:
    """Run `stream` in its own event loop, for programs. `ended` is called for each episode; an
    error in it ends the others, and so does one in `check`, which is called twice a second whatever
    the episodes wait for. Closes the policy.
    """

    async def follow() -> None:
        episodes = stream(
            policy,
            environment,
            tasks,
            limits,
            n=n,
            concurrency=concurrency,
            seed=seed,
            only=only,
            sampled=sampled,
            player=player,
        )
        async with contextlib.aclosing(episodes):
            async for index, sample, done in episodes:
                ended(index, sample, done)

    drive(policy, follow, check)


def drive(
    policy: Policy,
    follow: Callable[[], Coroutine[Any, Any, None]],
    check: Callable[[], None] | None = None,
) -> None:
    """Run `follow` in its own event loop, and `check` as `play` does. Closes the policy."""

    async def run() -> None:
        following = asyncio.ensure_future(follow())
        try:
            while not (await asyncio.wait([following], timeout=CHECKED_EVERY_S if check else None))[
                0
            ]:
                check()  # type: ignore[misc]
            await following
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            await policy.aclose()

    uvloop.run(run())  # asyncio's own loop needs a fifth more CPU time for a task with one question


async def replay(environment: Environment, task: dict, messages: list[dict]) -> Score:
    """The score of what an agent said, replayed in a new episode: its calls run again, their
    recorded results are dropped. Raises if the task cannot be opened.
    """
    said = [message for message in messages if message.get("role") == "assistant"]
    done = await rollout(RecordedPolicy([said]), environment.open(task), NO_LIMITS)
    return done.score
