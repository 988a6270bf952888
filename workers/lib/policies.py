"""Policies, which answer in an episode: an engine in this process, or a recording (chat_policy has
those on servers). Light: no torch.
"""

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
    """A seed for each answer, within the 31 bits that every server accepts."""
    return (seed * 1_000_003 + index * 1_009 + sample) % 2**31


def turn_seed(seed: int, messages: list[dict]) -> int:
    """Each turn has its own seed, so that the same words later in a conversation do not get the
    same answer again.
    """
    return seed_of(seed, sum(message["role"] == "assistant" for message in messages), 0)


# the `limit` of a final error: no further question may be asked, but open episodes may finish
SPENT = "spent"


class PolicyError(JobError):
    """The policy gave no answer; the message says why. `final`: it would not answer any other
    question either, so the job ends. `limit` names what this answer or conversation exceeded (a
    stop reason of workers.lib.rollouts), or is SPENT; else "".
    """

    def __init__(self, message: str, final: bool = False, limit: str = "") -> None:
        super().__init__(message)
        self.final, self.limit = final, limit


@dataclass(frozen=True)
class Reply:
    """One message of the policy. Ids and log-probabilities are those of this turn, as the engine
    returned them; empty if it returns none. They must not be recomputed from the text, since
    tokenizing it again may give other tokens. `text` is the generated text before calls were
    parsed. `finish_reason` and `model` are what a server reports, "" if it does not. If not
    `counted`, the number of tokens was not reported, so it is an estimate or 0, and only good for
    limits.
    """

    message: dict
    text: str = ""
    prompt_tokens: int = 0
    output_tokens: int = 0
    counted: bool = True
    latency_ms: float = 0.0
    truncated: bool = False
    finish_reason: str = ""
    model: str = ""
    prompt_token_ids: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


class Policy(Protocol):
    """`seed` distinguishes samples of one task, `key` is the episode's number within a `stream`.
    `shares_time`: all episodes wait for the same engine, so waiting time says nothing about an
    episode.
    """

    shares_time: bool

    async def answer(
        self,
        messages: list[dict],
        tools: list[dict],
        *,
        seed: int,
        key: int = 0,
        most: int | None = None,
    ) -> Reply | None:
        """The next assistant message; None if the policy has nothing more to say. Raises
        PolicyError. `most` is the number of tokens that the episode has left; a batching engine may
        generate more, in which case the episode fails.
        """

    async def responds(self) -> bool:
        """Whether it currently answers a trivial question. If so, a slow answer is the agent's own
        fault, not that of a server that hangs.
        """

    def forget(self, key: int) -> None:
        """The episode with this key is over, so anything stored for it can be dropped."""

    async def aclose(self) -> None: ...


class Sampler(Protocol):
    """A policy that returns the tokens of its answers, and can continue any earlier answer."""

    async def sample(
        self,
        messages: list[dict],
        tools: list[dict],
        so_far: SoFar | None,
        *,
        seed: int,
        key: int = 0,
        most: int | None = None,
    ) -> tuple[Reply, SoFar]:
        """An answer, and the conversation up to it, from which a later answer can continue. With
        `so_far`, the prompt continues its ids if the chat template allows it; the reply's
        `prompt_token_ids` show whether it did. Raises PolicyError.
        """

    def decode(self, ids: list[int]) -> str:
        """The text of an answer's tokens, as in `Reply.text`."""

    def count(self, messages: list[dict], tools: list[dict]) -> int:
        """The tokens of a prompt."""


@dataclass
class _Asked:
    key: int
    prompt: Prompt
    future: asyncio.Future[Output]


class EnginePolicy:
    """A batching engine in this process. Requests of all open episodes are generated together,
    those with the same prompt as one, and each gets its answer as soon as it is complete. `most` is
    not enforced, since an answer beyond it exceeds the episode's limit either way. An engine that
    fails would fail again, so its errors are final. `watch` is called in the event loop.

    Token in, token out: an episode's next prompt continues the ids of the previous prompt and its
    answer, and uses what the engine has computed for them, unless all episodes have a single turn
    (`goes_on`).
    """

    shares_time = True

    def __init__(
        self,
        engine: Engine,
        sampling: Sampling,
        watch: Watch | None = None,
        *,
        goes_on: bool = True,
    ) -> None:
        self.engine, self.sampling, self.watch, self.goes_on = engine, sampling, watch, goes_on
        self.waiting: list[_Asked] = []
        self.so_far: dict[int, SoFar] = {}  # by open episode
        self.running: asyncio.Task[None] | None = None
        self.thread = ThreadPoolExecutor(1, "engine")
        self.closed = False

    async def answer(
        self,
        messages: list[dict],
        tools: list[dict],
        *,
        seed: int,
        key: int = 0,
        most: int | None = None,
    ) -> Reply:
        reply, self.so_far[key] = await self.sample(
            messages, tools, self.so_far.get(key), seed=turn_seed(seed, messages), key=key
        )
        return reply

    async def sample(
        self,
        messages: list[dict],
        tools: list[dict],
        so_far: SoFar | None,
        *,
        seed: int,
        key: int = 0,
        most: int | None = None,
    ) -> tuple[Reply, SoFar]:
        prompt = Prompt(messages, [seed], tools, so_far, self.goes_on)
        waiting = _Asked(key, prompt, asyncio.get_running_loop().create_future())
        self.waiting.append(waiting)
        if self.running is None or self.running.done():
            self.running = asyncio.create_task(self._run())
        output = await waiting.future
        asked = output.prompt_token_ids
        return reply_of(output), SoFar(
            messages, tools, asked + output.token_ids, output.computed, len(asked)
        )

    def decode(self, ids: list[int]) -> str:
        return self.engine.decode(ids)

    def count(self, messages: list[dict], tools: list[dict]) -> int:
        return len(self.engine.prompt_ids(messages, tools))

    async def responds(self) -> bool:
        return not self.closed

    def forget(self, key: int) -> None:
        self.so_far.pop(key, None)

    async def aclose(self) -> None:
        """Wait until the engine has finished the current batch, since its model may be used for
        something else next.
        """
        self.closed = True
        if self.running is not None and not self.running.done():
            self.running.cancel()
            await asyncio.gather(self.running, return_exceptions=True)
        self.thread.shutdown()
        self.running = None  # also drops references to what was cancelled
        self.so_far.clear()

    async def _run(self) -> None:
        while self.waiting:
            await self._settle()
            batch = sorted(
                (one for one in self.waiting if not one.future.done()), key=lambda one: one.key
            )
            self.waiting = []
            if batch:
                await self._generate(batch)

    async def _settle(self) -> None:
        """Wait until no more requests arrive: every episode that can continue at once should be
        part of this batch.
        """
        calm, count = 0, len(self.waiting)
        while calm < 3:
            await asyncio.sleep(0)
            calm = calm + 1 if len(self.waiting) == count else 0
            count = len(self.waiting)

    async def _generate(self, batch: list[_Asked]) -> None:
        groups: dict[str, list[_Asked]] = {}
        for one in batch:
            ids = (
                one.prompt.so_far and one.prompt.so_far.ids
            )  # the same text may have had other tokens
            same = json.dumps(
                [one.prompt.messages, one.prompt.tools, ids], sort_keys=True, default=str
            )
            groups.setdefault(same, []).append(one)
        groups_asked = list(groups.values())
        prompts = [
            replace(group[0].prompt, seeds=[one.prompt.seeds[0] for one in group])
            for group in groups_asked
        ]
        loop = asyncio.get_running_loop()

        def show(index: int, place: int, text: str) -> None:
            if self.closed:
                raise PolicyError("It was closed while it generated.", final=True)
            if self.watch is not None:
                loop.call_soon_threadsafe(
                    self.watch, groups_asked[index][place].key, lambda: Written(text)
                )

        def work() -> None:
            for index, outputs in self.engine.generate(
                prompts, self.sampling, show if self.watch else None
            ):
                loop.call_soon_threadsafe(_deliver, groups_asked[index], outputs)
                if self.closed:
                    return

        failure = PolicyError("The engine gave no answer.", final=True)
        try:
            await loop.run_in_executor(self.thread, work)
        except Exception as error:
            failure = PolicyError(sentence(error), final=True)
            failure.__cause__ = error
            left = [one for one in batch if not one.future.done()]
            if again := self._writable(left):
                self.waiting = again + self.waiting
                return
        for one in batch:
            if not one.future.done():
                one.future.set_exception(failure)

    def _writable(self, asked: list[_Asked]) -> list[_Asked]:
        """After an error: the others, if some conversations cannot be written as a prompt, which
        are refused; a chat template raises where roles are unknown or do not alternate.
        """
        fine = list[_Asked]()
        for one in asked:
            try:
                self.engine.prompt_ids(one.prompt.messages, one.prompt.tools, one.prompt.so_far)
            except Exception as error:
                said = (
                    f"The model's chat template cannot write this conversation: {sentence(error)}"
                )
                one.future.set_exception(PolicyError(said, limit="refused"))
            else:
                fine.append(one)
        return fine if len(fine) < len(asked) else []


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
        finish_reason="length" if output.truncated else "stop",
        prompt_token_ids=output.prompt_token_ids,
        token_ids=output.token_ids,
        logprobs=output.logprobs,
    )


class RecordedPolicy:
    """Replays what agents said: `turns` holds each episode's assistant messages, by its key. Used
    to score stored answers again. A recording that ends before its episode ends it; one that is
    longer is cut off.
    """

    shares_time = True

    def __init__(self, turns: list[list[dict]]) -> None:
        self.left = [iter(messages) for messages in turns]

    async def answer(
        self,
        messages: list[dict],
        tools: list[dict],
        *,
        seed: int,
        key: int = 0,
        most: int | None = None,
    ) -> Reply | None:
        said = next(self.left[key], None)
        return None if said is None else Reply(said)

    async def responds(self) -> bool:
        return True

    def forget(self, key: int) -> None:
        """Nothing is stored between turns."""

    async def aclose(self) -> None:
        """There is nothing to close."""
