"""Who answers in an episode: an engine in this process, or a record (a model's server: chat_policy). Light: no torch."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Protocol

from workers.lib.engines import Engine, Output, Prompt, Sampling, SoFar
from workers.lib.errors import JobError, sentence
from workers.lib.streamed import Written

Watch = Callable[[int, Callable[[], Written]], None]
"""Called while an answer is written: its episode's key, and what reads how far it is."""


def seed_of(seed: int, index: int, sample: int) -> int:
    """One for each answer, in the 31 bits that every server takes."""
    return (seed * 1_000_003 + index * 1_009 + sample) % 2**31


SPENT = "spent"  # the `limit` of a final error: no further question may be asked, and what is open may come to its end


class PolicyError(JobError):
    """The policy gave no answer; the message says why. `final`: nor would it to any other question, so the job ends.
    `limit` names what this one answer or conversation exceeded (a stop reason of workers.lib.rollouts), or is SPENT; else ""."""

    def __init__(self, message: str, final: bool = False, limit: str = "") -> None:
        super().__init__(message)
        self.final, self.limit = final, limit


@dataclass(frozen=True)
class Reply:
    """One message of the policy. Ids and log-probabilities are of this turn alone, as the engine gave them; they are empty
    where it does not. They must not be made again from the text: a second tokenisation may differ. `text` is what was
    written, before anything was read as a call. Not `counted`: who answered did not say how many tokens, so these are
    estimates or 0, for limits only."""

    message: dict
    text: str = ""
    prompt_tokens: int = 0
    output_tokens: int = 0
    counted: bool = True
    latency_ms: float = 0.0
    truncated: bool = False
    prompt_token_ids: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


class Policy(Protocol):
    """`seed` tells samples of one task apart, `key` is the episode's number among those of a `stream`. `shares_time`:
    waiting for it says nothing about an episode, since all wait for the same engine."""

    shares_time: bool

    async def answer(
        self, messages: list[dict], tools: list[dict], *, seed: int, key: int = 0, most: int | None = None
    ) -> Reply | None:
        """The next assistant message; None where the policy has nothing more to say. Raises PolicyError. `most` tokens are
        left to the episode; who generates in batches may write more, which the episode then fails for."""

    async def responds(self) -> bool:
        """Whether it answers a trivial question now: then a slow answer is its own doing, not that of a server which hangs."""

    def forget(self, key: int) -> None:
        """The episode of this key is over: what is kept for it can go."""

    async def aclose(self) -> None: ...


@dataclass
class _Asked:
    key: int
    prompt: Prompt
    future: asyncio.Future[Output]


class EnginePolicy:
    """A batched engine in this process. What all open episodes ask for is generated together, those with the same prompt
    as one, and each gets its answer as soon as it is whole; `most` cuts none, since an answer beyond it has exceeded the episode's
    limit either way. An engine that fails would fail again, so that is final. `watch` is called in the event loop.

    Token in, token out: an episode's next prompt goes on from the ids of the one before and of its answer, and from what the
    engine has computed of them, unless all episodes have one turn (`goes_on`)."""

    shares_time = True

    def __init__(self, engine: Engine, sampling: Sampling, watch: Watch | None = None, *, goes_on: bool = True) -> None:
        self.engine, self.sampling, self.watch, self.goes_on = engine, sampling, watch, goes_on
        self.waiting: list[_Asked] = []
        self.so_far: dict[int, SoFar] = {}  # of each open episode
        self.running: asyncio.Task[None] | None = None
        self.thread = ThreadPoolExecutor(1, "engine")
        self.closed = False

    async def answer(
        self, messages: list[dict], tools: list[dict], *, seed: int, key: int = 0, most: int | None = None
    ) -> Reply:
        # A seed of its own for each turn: the same words later on are not to give the same answer again.
        turn = sum(message["role"] == "assistant" for message in messages)
        prompt = Prompt(messages, [seed_of(seed, turn, 0)], tools, self.so_far.get(key), self.goes_on)
        waiting = _Asked(key, prompt, asyncio.get_running_loop().create_future())
        self.waiting.append(waiting)
        if self.running is None or self.running.done():
            self.running = asyncio.create_task(self._run())
        output = await waiting.future
        asked = output.prompt_token_ids
        self.so_far[key] = SoFar(messages, tools, asked + output.token_ids, output.computed, len(asked))
        return reply_of(output)

    async def responds(self) -> bool:
        return not self.closed

    def forget(self, key: int) -> None:
        self.so_far.pop(key, None)

    async def aclose(self) -> None:
        """Waits until the engine has left the batch at hand, since its model may be used for something else next."""
        self.closed = True
        if self.running is not None and not self.running.done():
            self.running.cancel()
            await asyncio.gather(self.running, return_exceptions=True)
        self.thread.shutdown()
        self.running = None  # with what was cancelled in it
        self.so_far.clear()

    async def _run(self) -> None:
        while self.waiting:
            await self._settle()
            batch = sorted((one for one in self.waiting if not one.future.done()), key=lambda one: one.key)
            self.waiting = []
            if batch:
                await self._generate(batch)

    async def _settle(self) -> None:
        """Waits until nobody joins any more: whoever can go on at once is to be in this batch."""
        calm, count = 0, len(self.waiting)
        while calm < 3:
            await asyncio.sleep(0)
            calm = calm + 1 if len(self.waiting) == count else 0
            count = len(self.waiting)

    async def _generate(self, batch: list[_Asked]) -> None:
        groups: dict[str, list[_Asked]] = {}
        for one in batch:
            ids = one.prompt.so_far and one.prompt.so_far.ids  # the same words may have been other tokens
            same = json.dumps([one.prompt.messages, one.prompt.tools, ids], sort_keys=True, default=str)
            groups.setdefault(same, []).append(one)
        groups_asked = list(groups.values())
        prompts = [replace(group[0].prompt, seeds=[one.prompt.seeds[0] for one in group]) for group in groups_asked]
        loop = asyncio.get_running_loop()

        def show(index: int, place: int, text: str) -> None:
            if self.closed:
                raise PolicyError("It was closed while it generated.", final=True)
            if self.watch is not None:
                loop.call_soon_threadsafe(self.watch, groups_asked[index][place].key, lambda: Written(text))

        def work() -> None:
            for index, outputs in self.engine.generate(prompts, self.sampling, show if self.watch else None):
                loop.call_soon_threadsafe(_deliver, groups_asked[index], outputs)
                if self.closed:
                    return

        failure = PolicyError("The engine gave no answer.", final=True)
        try:
            await loop.run_in_executor(self.thread, work)
        except Exception as error:
            failure = PolicyError(sentence(error), final=True)
            failure.__cause__ = error
        for one in batch:
            if not one.future.done():
                one.future.set_exception(failure)


def _deliver(group: list[_Asked], outputs: list[Output]) -> None:
    for one, output in zip(group, outputs, strict=True):
        if not one.future.done():
            one.future.set_result(output)


def reply_of(output: Output) -> Reply:
    return Reply(
        message={"role": "assistant", "content": output.text},
        text=output.text,
        prompt_tokens=output.prompt_tokens,
        output_tokens=output.output_tokens,
        latency_ms=output.latency_ms,
        truncated=output.truncated,
        prompt_token_ids=output.prompt_token_ids,
        token_ids=output.token_ids,
        logprobs=output.logprobs,
    )


class RecordedPolicy:
    """Says again what agents said: `turns` holds each episode's assistant messages, by its key. Scores stored answers again;
    a record that ends before its episode ends it there, and one that is longer is cut."""

    shares_time = True

    def __init__(self, turns: list[list[dict]]) -> None:
        self.left = [iter(messages) for messages in turns]

    async def answer(
        self, messages: list[dict], tools: list[dict], *, seed: int, key: int = 0, most: int | None = None
    ) -> Reply | None:
        said = next(self.left[key], None)
        return None if said is None else Reply(said)

    async def responds(self) -> bool:
        return True

    def forget(self, key: int) -> None:
        """Nothing is kept between turns."""

    async def aclose(self) -> None:
        """Nothing is held."""
