"""Many episodes at a time: a policy talks, environments answer, limits hold, and no episode harms another. Light.

What ends in which way: a tool's crash is an observation. Turn and token limits end the episode, which is scored as it
stands. A time limit, a policy that does not answer, and a crash of the environment or the verifier mask the sample, with
the reason: none of them says anything about the model.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import httpx

from workers.lib.engines import Engine, Sampling
from workers.lib.engines.openai_engine import LONGEST_WAIT_S, TRIES, authorization, seed_of
from workers.lib.environments import Environment, Episode
from workers.lib.environments.episodes import as_assistant
from workers.lib.spec import SpecError, check_field
from workers.lib.verifiers import Rollout, Score, masked, parse_call, text_of

FIRST_WAIT_S = 0.5


class PolicyError(Exception):
    """The policy gave no answer; the message says why."""


@dataclass(frozen=True)
class Limits:
    """Of one episode: seconds for the conversation, turns of the agent, tokens it writes, seconds for its score.

    A limit of 0 does not hold. The environment's own limit on turns holds besides.
    """

    seconds: float = 300.0
    turns: int = 50
    tokens: int = 0
    score_seconds: float = 120.0


@dataclass(frozen=True)
class Reply:
    """One message of the policy. Ids and log-probabilities are of this turn alone, as the engine gave them; they are empty
    where it does not. They must not be made again from the text: a second tokenisation may differ."""

    message: dict
    prompt_tokens: int = 0
    output_tokens: int = 0
    latency_ms: float = 0.0
    truncated: bool = False
    prompt_token_ids: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


class Policy(Protocol):
    """`seed` tells samples of one task apart, `key` orders those that are asked for at once."""

    async def answer(self, messages: list[dict], tools: list[dict], *, seed: int, key: int = 0) -> Reply:
        """The next assistant message. Raises PolicyError."""


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
        """The agent's last words; its last calls as JSON where it ended with calls."""
        said = [message for message in self.rollout.messages if message.get("role") == "assistant"]
        last = said[-1] if said else {}
        return text_of(last.get("content")) or json.dumps(last.get("tool_calls") or "", ensure_ascii=False)

    @property
    def truncated(self) -> bool:
        return self.stop_reason in ("turns", "tokens", "time") or any(reply.truncated for reply in self.replies)


async def rollout(policy: Policy, episode: Episode, limits: Limits, *, seed: int = 0, key: int = 0) -> Finished:
    """Drives one episode to its end, scores and closes it. Raises nothing but a cancellation."""
    began, replies = time.perf_counter(), list[Reply]()
    reason = ""
    try:
        stopped, reason = await _converse(policy, episode, limits, replies, seed, key)
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
            return await _turns(policy, episode, limits, replies, seed, key), ""
    except PolicyError as error:
        return "policy error", f"The policy gave no answer: {error}"[:500]
    except TimeoutError as error:
        if clock.expired():
            return "time", f"The episode took longer than {limits.seconds:g} seconds."
        return "environment error", f"The environment failed: {_said(error)}"
    except Exception as error:  # a fault of the environment is no evidence about the model
        return "environment error", f"The environment failed: {_said(error)}"


async def _turns(policy: Policy, episode: Episode, limits: Limits, replies: list[Reply], seed: int, key: int) -> str:
    """Turn by turn until the episode is done (""), or the name of the limit that was reached."""
    while not episode.done:
        if limits.turns and len(replies) >= limits.turns:
            return "turns"
        if limits.tokens and sum(reply.output_tokens for reply in replies) >= limits.tokens:
            return "tokens"
        reply = await policy.answer(episode.messages, episode.tools, seed=seed, key=key)
        replies.append(reply)
        await episode.step(reply.message)
    return ""


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

    async def work() -> None:
        try:
            for index, sample, task in todo:
                episode = environment.open(task)
                done = await rollout(policy, episode, limits, seed=seed_of(seed, index, sample), key=index * n + sample)
                ended.put_nowait((index, sample, done))
        except Exception as error:  # a task that cannot be opened is a fault of the spec: the reader gets to see it
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


async def gather(
    policy: Policy,
    environment: Environment,
    tasks: list[dict],
    limits: Limits,
    *,
    n: int = 1,
    concurrency: int = 64,
    seed: int = 0,
) -> list[list[Finished]]:
    """The n episodes of each task, in the order of the tasks."""
    found: list[dict[int, Finished]] = [{} for _ in tasks]
    async with contextlib.aclosing(
        stream(policy, environment, tasks, limits, n=n, concurrency=concurrency, seed=seed)
    ) as episodes:
        async for index, sample, done in episodes:
            found[index][sample] = done
    return [[samples[sample] for sample in range(n)] for samples in found]


# Policies


class ChatPolicy:
    """Any OpenAI-compatible server with tools. The `engine` part of a spec: {base_url, model, api_key_env, timeout_s,
    concurrency}. To be closed with `aclose`, or used with `async with`."""

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
            return Reply(
                message=as_assistant(choice["message"], 1 + sum(item["role"] == "assistant" for item in messages)),
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
    conversation: list[dict]
    future: asyncio.Future[Reply]


class EnginePolicy:
    """A batched engine in lock-step: what all open episodes ask for is generated in one batch.

    Engines know no tools: they are described in the system prompt, earlier calls and results become text, and an answer
    that is exactly {"tool": …, "args": …} becomes a call.
    """

    def __init__(self, engine: Engine, sampling: Sampling, *, describe_tools: bool = True) -> None:
        self.engine, self.sampling, self.describe_tools = engine, sampling, describe_tools
        self.waiting: list[_Asked] = []
        self.running: asyncio.Task[None] | None = None
        self.rounds = 0

    async def answer(self, messages: list[dict], tools: list[dict], *, seed: int, key: int = 0) -> Reply:
        conversation = as_text(messages, tools if self.describe_tools else [])
        asked = _Asked(key, conversation, asyncio.get_running_loop().create_future())
        self.waiting.append(asked)
        if self.running is None or self.running.done():
            self.running = asyncio.create_task(self._run())
        return await asked.future

    async def aclose(self) -> None:
        if self.running is not None and not self.running.done():
            self.running.cancel()
            await asyncio.gather(self.running, return_exceptions=True)

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
        # A round of its own seed: the same words in a later turn are not to give the same answer again.
        sampling = replace(self.sampling, seed=seed_of(self.sampling.seed, self.rounds, 0))
        self.rounds += 1
        try:
            replies = await asyncio.to_thread(self._replies, [one.conversation for one in batch], sampling)
        except Exception as error:
            replies = [PolicyError(f"The engine failed: {_said(error)}")] * len(batch)
        for one, reply in zip(batch, replies, strict=True):
            if one.future.done():
                continue
            if isinstance(reply, Exception):
                one.future.set_exception(reply)
            else:
                one.future.set_result(reply)

    def _replies(self, conversations: list[list[dict]], sampling: Sampling) -> list[Any]:
        found: list[Any] = [PolicyError("The engine gave no answer.")] * len(conversations)
        prompt_ids = getattr(self.engine, "prompt_ids", None)
        for index, [output] in self.engine.generate(conversations, sampling, 1):
            found[index] = Reply(
                message=as_message(output.text),
                prompt_tokens=output.prompt_tokens,
                output_tokens=output.output_tokens,
                latency_ms=output.latency_ms,
                truncated=output.truncated,
                prompt_token_ids=prompt_ids(conversations[index]) if prompt_ids else [],
                token_ids=output.token_ids,
                logprobs=output.logprobs,
            )
        return found


def as_message(text: str) -> dict:
    """A text as an assistant message: exactly one {"tool", "args"} object is a call, anything else the answer."""
    call = parse_call(text.strip())
    if call is None:
        return {"role": "assistant", "content": text}
    function = {"name": call["tool"], "arguments": json.dumps(call["args"], ensure_ascii=False)}
    return {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": function}]}


def as_text(messages: list[dict], tools: list[dict]) -> list[dict]:
    """A conversation without native calls: calls as the JSON the agent writes, results as turns of the user."""
    told = [_told(message) for message in messages]
    if not tools:
        return told
    lines = [json.dumps(tool["function"], ensure_ascii=False) for tool in tools]
    how = 'To call a tool, answer with {"tool": name, "args": {…}} and nothing else. The tools:\n' + "\n".join(lines)
    if told and told[0]["role"] == "system":
        return [told[0] | {"content": f"{told[0]['content']}\n\n{how}"}, *told[1:]]
    return [{"role": "system", "content": how}, *told]


def _told(message: dict) -> dict:
    if message["role"] == "tool":
        return {"role": "user", "content": f"Result: {text_of(message.get('content'))}"}
    calls = [
        json.dumps({"tool": call["function"]["name"], "args": _args(call["function"]["arguments"])}, ensure_ascii=False)
        for call in message.get("tool_calls") or []
    ]
    texts = [text for text in (text_of(message.get("content")), *calls) if text]
    return {"role": message["role"], "content": "\n".join(texts)}


def _args(arguments: Any) -> Any:
    try:
        return json.loads(arguments) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError):
        return arguments
