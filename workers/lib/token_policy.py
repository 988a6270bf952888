"""A policy on vLLM or SGLang servers, token in and token out: ids are sent, and ids with
log-probabilities come back.

The trainer's own tokenizer and template produce the ids, so a row contains exactly what was
sampled, never text that was tokenized again. An answer whose tokens cannot be trusted ends the run,
because training on it would be training on something else. Light: no torch.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from workers.lib.chat_client import AsyncChatClient, ChatError, ChatServer
from workers.lib.engines import Sampling, SoFar
from workers.lib.policies import PolicyError, Reply, turn_seed

EPISODES_FAULT = ("context", "size")  # limits that an episode exceeded while the server works
MAX_BYTES = 32 * 1024 * 1024  # per answer, for the ids and log-probabilities of long ones
SLACK = 1e-3  # how far above 0 rounding may put a log-probability


class CompletionClient(AsyncChatClient):
    """Asks for completions of token ids."""

    path, wanted, max_bytes = "/completions", "a completion", MAX_BYTES
    alterable = ()  # without these parameters the tokens would have another distribution

    def is_answer(self, answer: Any) -> bool:
        return isinstance(answer["choices"][0], dict)


class Tokenizing(Protocol):
    """The tokenizer functions of an in-process engine."""

    stop_ids: list[int]
    tokenizer: Any

    def prompt_ids(
        self, messages: list[dict], tools: list[dict] | None = None, so_far: SoFar | None = None
    ) -> list[int]: ...


@dataclass(frozen=True)
class Sampled:
    """An answer's tokens, including the one that ended it, and the sampler's log-probability of
    each.
    """

    ids: list[int]
    logprobs: list[float]


class Untrusted(PolicyError):
    """An answer whose tokens must not be trained on."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence, final=True)


def sampled_in(
    answer: dict, prompt: Sequence[int], model: str, where: str, asks: str = "Rollouts need"
) -> Sampled:
    """The tokens in an answer to /completions with `return_token_ids` and `logprobs`. Raises
    Untrusted.
    """

    def wrong(what: str) -> Untrusted:
        return Untrusted(
            f"{where} {what}. {asks} a server that returns exact tokens: vLLM 0.10.2 or later,"
            " SGLang 0.5 or later."
        )

    if answer.get("model") != model:
        raise wrong(f"answered as “{str(answer.get('model'))[:80]}” when “{model}” was asked")
    choice = answer["choices"][0]
    given, ids = choice.get("prompt_token_ids"), choice.get("token_ids")
    if not isinstance(ids, list) or not ids or not all(type(one) is int for one in ids):
        raise wrong("returned no token ids with its answer")
    if given is not None and given != list(prompt):
        raise wrong("answered another prompt than the one it was sent")
    found = choice.get("logprobs")
    values = found.get("token_logprobs") if isinstance(found, dict) else None
    if not isinstance(values, list) or len(values) != len(ids):
        count = len(values) if isinstance(values, list) else "no"
        raise wrong(f"returned {count} log-probabilities for {len(ids)} tokens")
    if not all(is_logprob(value) for value in values):
        raise wrong("returned a log-probability that is not one")
    return Sampled(ids, [min(0.0, value) for value in values])


def is_logprob(value: Any) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and math.isfinite(value)
        and value <= SLACK
    )


def completion_body(
    ids: Sequence[int], sampling: Sampling, stop_ids: list[int], seed: int, most: int
) -> dict:
    """`logprobs` 0: only that of the sampled token. All other sampling parameters are set too,
    since a server may have its own defaults.
    """
    return {
        "prompt": list(ids),
        "max_tokens": most,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "seed": seed,
        "stop_token_ids": stop_ids,
        "logprobs": 0,
        "return_token_ids": True,
        "add_special_tokens": False,
    }


class TokenPolicy:
    """Episodes on one or several servers that have the adapter loaded under the model's name. An
    episode stays on its server as long as that answers. Close it with `aclose`. Raises ChatError.

    A server that fails or hangs is dropped (`lost`), and its question is sent to the next one; once
    none is left, the policy ends.
    """

    shares_time = True

    def __init__(
        self,
        servers: Sequence[ChatServer],
        tokens: Tokenizing,
        sampling: Sampling,
        concurrency: int = 64,
        lost: Callable[[ChatServer, str], None] = lambda server, why: None,
    ) -> None:
        self.clients = [CompletionClient(server, concurrency=concurrency) for server in servers]
        self.tokens, self.sampling, self.lost = tokens, sampling, lost
        self.so_far: dict[int, SoFar] = {}

    async def aclose(self) -> None:
        self.clients, closing = [], self.clients
        await asyncio.gather(*(client.aclose() for client in closing))

    def forget(self, key: int) -> None:
        self.so_far.pop(key, None)

    async def responds(self) -> bool:
        return bool(self.clients)

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
            messages,
            tools,
            self.so_far.get(key),
            seed=turn_seed(seed, messages),
            key=key,
            most=most,
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
        ids = self.tokens.prompt_ids(messages, tools, so_far)
        longest = (
            self.sampling.max_new_tokens
            if most is None
            else min(max(1, most), self.sampling.max_new_tokens)
        )
        body = completion_body(ids, self.sampling, self.tokens.stop_ids, seed, longest)
        client, answer, latency_ms = await self._ask(body, key)
        found = sampled_in(answer, ids, client.server.model, client.where)
        text = self.decode(found.ids)
        reply = Reply(
            message={"role": "assistant", "content": text},
            text=text,
            prompt_tokens=len(ids),
            output_tokens=len(found.ids),
            latency_ms=latency_ms,
            truncated=found.ids[-1] not in self.tokens.stop_ids,
            prompt_token_ids=ids,
            token_ids=found.ids,
            logprobs=found.logprobs,
            model=client.server.model,
        )
        return reply, SoFar(messages, tools, ids + found.ids, asked=len(ids))

    def decode(self, ids: list[int]) -> str:
        return self.tokens.tokenizer.decode(ids, skip_special_tokens=True)

    def count(self, messages: list[dict], tools: list[dict]) -> int:
        return len(self.tokens.prompt_ids(messages, tools))

    async def _ask(self, body: dict, key: int) -> tuple[CompletionClient, dict, float]:
        said = "The rollout servers are closed."
        while self.clients:
            client = self.clients[key % len(self.clients)]
            try:
                return client, *await client.ask(body)
            except ChatError as error:
                if error.limit in EPISODES_FAULT:
                    raise PolicyError(str(error), limit=error.limit) from error
                said = str(error)
            if client in self.clients:  # otherwise another episode has already dropped it
                self.clients.remove(client)
                self.lost(client.server, said)
        raise PolicyError(said, final=True)
