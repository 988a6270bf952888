"""A policy on vLLM servers, token in and token out: ids are sent to /completions, and ids with log-probabilities come back.

The trainer's own tokenizer and template make the ids, so a row is what was sampled and never text that was tokenised again.
An answer whose tokens cannot be trusted ends the run: training on it would be training on something else. Light: no torch.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from workers.lib.chat_client import AsyncChatClient, ChatError, ChatServer
from workers.lib.engines import Sampling, SoFar
from workers.lib.policies import PolicyError, Reply, seed_of

EPISODES_FAULT = ("context", "size")  # limits that an episode exceeded, while the server works
MAX_BYTES = 32 * 1024 * 1024  # of an answer: ids and log-probabilities of a long one
SLACK = 1e-3  # above 0 that a log-probability may be, by rounding


class CompletionClient(AsyncChatClient):
    """Asks for completions of token ids."""

    path, wanted, max_bytes = "/completions", "a completion", MAX_BYTES
    alterable = ()  # with other parameters than these the tokens would be of another distribution

    def is_answer(self, answer: Any) -> bool:
        return isinstance(answer["choices"][0], dict)


class Tokenizing(Protocol):
    """What an engine of this process knows about tokens."""

    stop_ids: list[int]
    tokenizer: Any

    def prompt_ids(
        self, messages: list[dict], tools: list[dict] | None = None, so_far: SoFar | None = None
    ) -> list[int]: ...


@dataclass(frozen=True)
class Sampled:
    """The tokens of an answer, the one that ended it included, and what the sampler gave each."""

    ids: list[int]
    logprobs: list[float]


class Untrusted(PolicyError):
    """An answer whose tokens may not be trained on."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence, final=True)


def sampled_in(answer: dict, prompt: Sequence[int], model: str, where: str, asks: str = "Rollouts need") -> Sampled:
    """Of an answer to /completions with `return_token_ids` and `logprobs`. Raises Untrusted."""

    def wrong(what: str) -> Untrusted:
        return Untrusted(f"{where} {what}. {asks} a vLLM server that returns exact tokens (0.10.2 or later).")

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
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value <= SLACK


def completion_body(ids: Sequence[int], sampling: Sampling, stop_ids: list[int], seed: int, most: int) -> dict:
    """`logprobs` 0: of the sampled token alone. The other fields of sampling are given too, since a server may have defaults."""
    return {
        "prompt": list(ids), "max_tokens": most, "temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": 0,
        "min_p": 0.0, "repetition_penalty": 1.0, "seed": seed, "stop_token_ids": stop_ids, "logprobs": 0,
        "return_token_ids": True, "add_special_tokens": False,
    }  # fmt: skip


class TokenPolicy:
    """Episodes on one or several servers, that have the adapter of `servers` loaded under the model's name; an episode stays with
    its server as long as that answers. To be closed with `aclose`. Raises ChatError.

    A server that fails or hangs is left out (`lost`), and its question asked of the next; with none left the policy ends.
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
        self, messages: list[dict], tools: list[dict], *, seed: int, key: int = 0, most: int | None = None
    ) -> Reply:
        turn = sum(message["role"] == "assistant" for message in messages)
        ids = self.tokens.prompt_ids(messages, tools, self.so_far.get(key))
        longest = self.sampling.max_new_tokens if most is None else min(max(1, most), self.sampling.max_new_tokens)
        body = completion_body(ids, self.sampling, self.tokens.stop_ids, seed_of(seed, turn, 0), longest)
        client, answer, latency_ms = await self._ask(body, key)
        found = sampled_in(answer, ids, client.server.model, client.where)
        text = self.tokens.tokenizer.decode(found.ids, skip_special_tokens=True)
        self.so_far[key] = SoFar(messages, tools, ids + found.ids, asked=len(ids))
        return Reply(
            message={"role": "assistant", "content": text},
            text=text,
            prompt_tokens=len(ids),
            output_tokens=len(found.ids),
            latency_ms=latency_ms,
            truncated=found.ids[-1] not in self.tokens.stop_ids,
            prompt_token_ids=ids,
            token_ids=found.ids,
            logprobs=found.logprobs,
        )

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
            if client in self.clients:  # else another episode was the first to find out
                self.clients.remove(client)
                self.lost(client.server, said)
        raise PolicyError(said, final=True)
