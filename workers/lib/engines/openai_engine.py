"""Generation by any OpenAI-compatible server (vLLM, SGLang, a provider) over /chat/completions. Light: no torch."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any

import httpx

from workers.lib.engines import Output
from workers.lib.engines import Sampling as Unseeded
from workers.lib.keys import RefusedKey, bearer, key_in
from workers.lib.spec import JobError, SpecError, check_field

Conversation = list[dict]
TRIES = 6
LONGEST_WAIT_S = 30.0


@dataclass(frozen=True)
class Sampling(Unseeded):
    seed: int = 0


class OpenAIEngine:
    """`concurrency` requests at a time, each for one answer, so that it works where the server does not know `n`.

    Token ids and log-probabilities stay empty: the protocol does not give the ids.
    """

    def __init__(self, engine: dict) -> None:
        check_field({"engine": engine}, "engine.base_url", str)
        check_field({"engine": engine}, "engine.model", str)
        url = httpx.URL(engine["base_url"].rstrip("/"))
        if url.scheme not in ("http", "https") or not url.host:
            raise SpecError("The spec's “engine.base_url” must begin with http:// or https://.")
        self.model, self.concurrency = engine["model"], engine.get("concurrency", 8)
        self.first_wait_s = 0.5
        self.where = f"The model server at {url.host}" + (f":{url.port}" if url.port else "")
        self.client = httpx.Client(
            base_url=url,
            headers=authorization(engine.get("api_key_env")),
            timeout=httpx.Timeout(engine.get("timeout_s", 120.0), connect=10.0),
            limits=httpx.Limits(max_connections=self.concurrency),
        )

    def generate(
        self, conversations: list[Conversation], sampling: Sampling, n: int = 1
    ) -> Iterator[tuple[int, list[Output]]]:
        """A conversation is given when its n outputs are there. Raises JobError; what is not begun is then dropped."""
        found: list[dict[int, Output]] = [{} for _ in conversations]
        pool = ThreadPoolExecutor(self.concurrency)
        try:
            asked: dict[Future, tuple[int, int]] = {}
            for index, conversation in enumerate(conversations):
                for sample in range(n):
                    seed = seed_of(sampling.seed, index, sample)
                    asked[pool.submit(self._answer, conversation, sampling, seed)] = (index, sample)
            for future in as_completed(asked):
                index, sample = asked[future]
                found[index][sample] = future.result()
                if len(found[index]) == n:
                    yield index, [found[index][sample] for sample in range(n)]
        finally:
            pool.shutdown(cancel_futures=True)

    def _answer(self, conversation: Conversation, sampling: Sampling, seed: int) -> Output:
        body = {
            "model": self.model,
            "messages": conversation,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_tokens": sampling.max_new_tokens,
            "seed": seed,
        }
        response, latency_ms = self._post(body)
        try:
            answer = response.json()
            choice, usage = answer["choices"][0], answer.get("usage") or {}
            return Output(
                text=choice["message"].get("content") or "",
                token_ids=[],
                logprobs=[],
                prompt_tokens=int(usage.get("prompt_tokens") or 0),
                output_tokens=int(usage.get("completion_tokens") or 0),
                latency_ms=latency_ms,
                truncated=choice.get("finish_reason") == "length",
            )
        except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
            raise JobError(f"{self.where} answered with something that is no chat completion.") from error

    def _post(self, body: dict[str, Any]) -> tuple[httpx.Response, float]:
        """(a good response, its latency). A busy or broken server is tried again, with growing waits."""
        problem = ""
        for attempt in range(TRIES):
            began, response = time.perf_counter(), None
            try:
                response = self.client.post("chat/completions", json=body)
                problem = f"HTTP {response.status_code}"
            except httpx.TransportError as error:
                problem = str(error) or type(error).__name__
            if response is not None and response.status_code == 200:
                return response, (time.perf_counter() - began) * 1000
            if response is not None and response.status_code not in (408, 409, 429) and response.status_code < 500:
                raise JobError(self._refusal(response))
            if attempt + 1 < TRIES:
                time.sleep(self._wait_s(attempt, response))
        raise JobError(f"{self.where} gave no answer in {TRIES} tries ({problem}).")

    def _wait_s(self, attempt: int, response: httpx.Response | None) -> float:
        """What the server asks for, else twice as long each time."""
        asked = response.headers.get("retry-after", "") if response is not None else ""
        seconds = float(asked) if asked.isdecimal() else self.first_wait_s * 2**attempt
        return min(LONGEST_WAIT_S, seconds)

    def _refusal(self, response: httpx.Response) -> str:
        status = response.status_code
        if status in (401, 403):
            return f"{self.where} refused the API key (HTTP {status})."
        if 300 <= status < 400:
            return f"{self.where} redirects elsewhere (HTTP {status}); give the final address as base_url."
        if status == 404:
            return f"{self.where} has no model “{self.model}”, or base_url is not its /v1 address (HTTP 404)."
        return f"{self.where} refused the request (HTTP {status}): {response.text[:300]}"


def authorization(variable: str | None) -> dict[str, str]:
    """The header with the key in that environment variable; none where the server wants no key. Raises JobError."""
    try:
        return bearer(key_in(variable or ""))
    except RefusedKey as error:
        raise JobError(str(error)) from error


def seed_of(seed: int, index: int, sample: int) -> int:
    """One for each answer, in the 31 bits that every server takes."""
    return (seed * 1_000_003 + index * 1_009 + sample) % 2**31
