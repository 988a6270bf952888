"""Who answers in an episode: a model's server, an engine in this process, or a record. Light: no torch."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import httpx

from workers.lib.engines import Engine, Output, Prompt, Sampling
from workers.lib.engines.openai_engine import LONGEST_WAIT_S, TRIES, authorization
from workers.lib.environments.episodes import as_assistant
from workers.lib.spec import JobError, SpecError, check_field, sentence

FIRST_WAIT_S = 0.5


def seed_of(seed: int, index: int, sample: int) -> int:
    """One for each answer, in the 31 bits that every server takes."""
    return (seed * 1_000_003 + index * 1_009 + sample) % 2**31


class PolicyError(JobError):
    """The policy gave no answer; the message says why. `final`: nor would it to any other question, so the job ends."""

    def __init__(self, message: str, final: bool = False) -> None:
        super().__init__(message)
        self.final = final


@dataclass(frozen=True)
class Reply:
    """One message of the policy. Ids and log-probabilities are of this turn alone, as the engine gave them; they are empty
    where it does not. They must not be made again from the text: a second tokenisation may differ. `text` is what was
    written, before anything was read as a call."""

    message: dict
    text: str = ""
    prompt_tokens: int = 0
    output_tokens: int = 0
    latency_ms: float = 0.0
    truncated: bool = False
    prompt_token_ids: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


class Policy(Protocol):
    """`seed` tells samples of one task apart, `key` is the episode's number among those of a `stream`. `shares_time`:
    waiting for it says nothing about an episode, since all wait for the same engine."""

    shares_time: bool

    async def answer(self, messages: list[dict], tools: list[dict], *, seed: int, key: int = 0) -> Reply | None:
        """The next assistant message; None where the policy has nothing more to say. Raises PolicyError."""

    async def aclose(self) -> None: ...


class ChatPolicy:
    """Any OpenAI-compatible server with tools. The `engine` part of a spec: {base_url, model, api_key_env, timeout_s,
    concurrency}. To be closed with `aclose`, or used with `async with`."""

    shares_time = False

    def __init__(self, engine: dict, sampling: Sampling, *, transport: httpx.AsyncBaseTransport | None = None) -> None:
        check_field({"engine": engine}, "engine.base_url", str)
        check_field({"engine": engine}, "engine.model", str)
        url = httpx.URL(engine["base_url"].rstrip("/"))
        if url.scheme not in ("http", "https") or not url.host:
            raise SpecError("The spec's “engine.base_url” must begin with http:// or https://.")
        self.model, self.sampling, self.first_wait_s = engine["model"], sampling, FIRST_WAIT_S
        self.where = f"The model server at {url.host}" + (f":{url.port}" if url.port else "")
        self.options: dict[str, Any] = {
            "base_url": url,
            "headers": authorization(engine.get("api_key_env")),
            "timeout": httpx.Timeout(engine.get("timeout_s", 120.0), connect=10.0),
            "limits": httpx.Limits(max_connections=1),
            "transport": transport,
            "verify": httpx.create_ssl_context() if url.scheme == "https" else False,
        }
        self.clients: list[httpx.AsyncClient] = []
        self.free: list[httpx.AsyncClient] = []
        self.lines = asyncio.Semaphore(engine.get("concurrency", 64))

    @contextlib.asynccontextmanager
    async def _line(self) -> AsyncIterator[httpx.AsyncClient]:
        """A client with one connection, the one used last first: a pool of 200 looks through all of them at each request,
        40,000 looks each time, which was 50 ms."""
        async with self.lines:
            if not self.free:
                self.clients.append(httpx.AsyncClient(**self.options))
                self.free.append(self.clients[-1])
            client = self.free.pop()
            try:
                yield client
            finally:
                self.free.append(client)

    async def __aenter__(self) -> ChatPolicy:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        await asyncio.gather(*(client.aclose() for client in self.clients))

    async def answer(self, messages: list[dict], tools: list[dict], *, seed: int, key: int = 0) -> Reply:
        body = {
            "model": self.model,
            "messages": messages,
            "temperature": self.sampling.temperature,
            "top_p": self.sampling.top_p,
            "max_tokens": self.sampling.max_new_tokens,
            "seed": seed,
        }
        response, latency_ms = await self._post(body | ({"tools": tools} if tools else {}))
        try:
            answer = response.json()
            choice, usage = answer["choices"][0], answer.get("usage") or {}
            message = as_assistant(choice["message"], 1 + sum(item["role"] == "assistant" for item in messages))
            return Reply(
                message=message,
                text=message["content"] or "",
                prompt_tokens=int(usage.get("prompt_tokens") or 0),
                output_tokens=int(usage.get("completion_tokens") or 0),
                latency_ms=latency_ms,
                truncated=choice.get("finish_reason") == "length",
            )
        except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
            raise PolicyError(f"{self.where} answered with something that is no chat completion.") from error

    async def _post(self, body: dict[str, Any]) -> tuple[httpx.Response, float]:
        """(a good response, its latency). A busy or broken server is tried again, with growing waits."""
        problem = ""
        for attempt in range(TRIES):
            began, response = time.perf_counter(), None
            try:
                async with self._line() as client:
                    response = await client.post("chat/completions", json=body)
                problem = f"HTTP {response.status_code}"
            except httpx.HTTPError as error:
                problem = str(error) or type(error).__name__
            if response is not None and response.status_code == 200:
                return response, (time.perf_counter() - began) * 1000
            if response is not None and response.status_code not in (408, 409, 429) and response.status_code < 500:
                raise PolicyError(f"{self.where} refused the request ({problem}): {response.text[:300]}")
            if attempt + 1 < TRIES:
                await asyncio.sleep(self._wait_s(attempt, response))
        raise PolicyError(f"{self.where} gave no answer in {TRIES} tries ({problem}).")

    def _wait_s(self, attempt: int, response: httpx.Response | None) -> float:
        asked = response.headers.get("retry-after", "") if response is not None else ""
        return min(LONGEST_WAIT_S, float(asked) if asked.isdecimal() else self.first_wait_s * 2**attempt)


@dataclass
class _Asked:
    key: int
    prompt: Prompt
    future: asyncio.Future[Reply]


class EnginePolicy:
    """A batched engine in this process. What all open episodes ask for is generated together, those with the same prompt
    as one, and each gets its answer as soon as it is whole. An engine that fails would fail again, so that is final."""

    shares_time = True

    def __init__(self, engine: Engine, sampling: Sampling) -> None:
        self.engine, self.sampling = engine, sampling
        self.waiting: list[_Asked] = []
        self.running: asyncio.Task[None] | None = None
        self.thread = ThreadPoolExecutor(1, "engine")
        self.closed = False

    async def answer(self, messages: list[dict], tools: list[dict], *, seed: int, key: int = 0) -> Reply:
        # A seed of its own for each turn: the same words later on are not to give the same answer again.
        turn = sum(message["role"] == "assistant" for message in messages)
        prompt = Prompt(messages, [seed_of(seed, turn, 0)], tools)
        asked = _Asked(key, prompt, asyncio.get_running_loop().create_future())
        self.waiting.append(asked)
        if self.running is None or self.running.done():
            self.running = asyncio.create_task(self._run())
        return await asked.future

    async def aclose(self) -> None:
        """Waits until the engine has left the batch at hand, since its model may be used for something else next."""
        self.closed = True
        if self.running is not None and not self.running.done():
            self.running.cancel()
            await asyncio.gather(self.running, return_exceptions=True)
        self.thread.shutdown()

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
            same = json.dumps([one.prompt.messages, one.prompt.tools], sort_keys=True, default=str)
            groups.setdefault(same, []).append(one)
        groups_asked = list(groups.values())
        prompts = [replace(group[0].prompt, seeds=[one.prompt.seeds[0] for one in group]) for group in groups_asked]
        loop = asyncio.get_running_loop()

        def work() -> None:
            for index, outputs in self.engine.generate(prompts, self.sampling):
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
            one.future.set_result(reply_of(output))


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
    """Says again what agents said: `turns` holds each episode's assistant messages, by its key. Scores stored answers anew;
    a record that ends before its episode ends it there, and one that is longer is cut."""

    shares_time = True

    def __init__(self, turns: list[list[dict]]) -> None:
        self.left = [iter(messages) for messages in turns]

    async def answer(self, messages: list[dict], tools: list[dict], *, seed: int, key: int = 0) -> Reply | None:
        said = next(self.left[key], None)
        return None if said is None else Reply(said)

    async def aclose(self) -> None:
        """Nothing is held."""
