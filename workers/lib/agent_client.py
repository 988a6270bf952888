"""Calls an agent's own endpoint, which may take minutes: many requests in parallel, each with a
time limit, retried if the endpoint is busy or broken. Only through the guarded transport. Light: no
torch.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import httpx2

from workers.lib.agent_shapes import (
    AgentFault,
    Said,
    Silent,
    read_answer,
    reported_in,
    request_of,
    url_of,
    version_of,
)
from workers.lib.chat_client import wait_s
from workers.lib.errors import JobError
from workers.lib.harness.addressed import Address
from workers.lib.keys import bearer, hidden, key_in, refusal
from workers.lib.messages import Message
from workers.lib.outgoing import Bounds, RefusedAddress, TooMuch, async_client, check_url
from workers.lib.policies import SPENT
from workers.lib.specs.engines import AgentEndpoint
from workers.lib.spending import NOTHING, Account, Spent, Usage

MAX_BYTES = 4 * 1024 * 1024  # per answer
TRIES, LONGEST_WAIT_S = 4, 60.0
CONNECT_S = 10.0
MAX_SAID = 300
AWAY = (
    408,
    409,
    425,
    429,
    502,
    503,
)  # statuses of an endpoint that is busy, or unreachable behind its proxy
WRONG = (401, 403, 404, 405)  # statuses that every other request would get too
REFUSED_WORK = (
    425,
    429,
    503,
)  # statuses with which the agent has not started to work, and used nothing


class AgentError(JobError):
    """No answer; the sentence says why. `final`: no other question would get one. `limit`: the
    reason why this sample failed (a stop reason of rollouts); "" if the agent was not reached,
    which says nothing about it. `is_silent`: it answered, and said nothing.
    """

    def __init__(
        self, sentence: str, *, final: bool = False, limit: str = "", is_silent: bool = False
    ) -> None:
        super().__init__(sentence)
        self.final, self.limit, self.is_silent = final, limit, is_silent


@dataclass(frozen=True)
class Answer:
    """`seconds`: the duration of the request that was answered."""

    said: Said
    seconds: float


@dataclass(frozen=True)
class _Came:
    """The response to a request. status 0: none arrived, where `reached` says whether there was a
    connection.
    """

    status: int = 0
    text: str = ""
    data: Any = None  # the same as JSON; None if it is not JSON
    headers: dict[str, str] | None = None
    problem: str = ""
    reached: bool = True


class AgentClient:
    """Close it with `aclose`. Raises AgentError, or RefusedKey if the agent may not be called at
    all.

    Each request is reserved on `account` with the user's declared maximum per call, or with the
    highest usage so far if that is more; it then counts with the usage that the agent reports, or
    else the declared one. So calls that report nothing never exceed a limit, and others only by the
    calls in flight.
    """

    def __init__(
        self, agent: AgentEndpoint, *, sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep
    ) -> None:
        self.agent, self.sleep = agent, sleep
        try:
            self.url = check_url(url_of(agent), allow_private=agent.allow_private)
        except RefusedAddress as error:
            raise AgentError(str(error), final=True) from error
        self.key = key_in(agent.api_key_env or "")
        self.where = f"The agent at {self.url.netloc.decode()}"
        self.turn = asyncio.Semaphore(agent.concurrency)
        self.account = Account(most_tokens=agent.most_tokens, most_usd=agent.most_usd)
        self.most, self.most_usd = Usage(0, agent.tokens_per_call), agent.usd_per_call  # per call
        self.calls = self.without_tokens = self.without_cost = 0
        self.http = async_client(
            allow_private=agent.allow_private,
            headers=bearer(self.key),
            timeout=httpx2.Timeout(None, connect=CONNECT_S),
            bounds=Bounds(MAX_BYTES, agent.timeout_s),
        )

    async def aclose(self) -> None:
        await self.http.aclose()

    @property
    def spent(self) -> dict[str, float]:
        """Usage so far. Calls without reported tokens or cost count with what the user declared."""
        return {
            "calls": self.calls,
            "tokens": self.account.used.tokens,
            "usd": self.account.used_usd,
            "without_tokens": self.without_tokens,
            "without_cost": self.without_cost,
        }

    async def ask(
        self,
        messages: list[Message],
        tools: list[dict],
        *,
        seed: int,
        name: str,
        seconds: float,
        address: Address | None = None,
        again: Callable[[], bool] = lambda: True,
    ) -> Answer:
        """The agent's answer to a conversation, within `seconds` of the agent's own time. `name` is
        the same for the same question, so that an agent that is asked again after an answer was
        lost can return it again. At `address` it may call the tools itself. `again`: whether it
        may be asked once more. Raises AgentError.
        """
        body = request_of(self.agent, messages, tools, seed, address)
        headers = {"Idempotency-Key": name}
        if address:
            headers |= {"X-Flywheel-MCP": address.mcp, "X-Flywheel-Tools": address.tools}
        if address and address.model:
            headers |= {"X-Flywheel-Model-URL": address.model}
        for attempt in range(1, TRIES + 1):
            async with self.turn:
                came, took = await self._paid(body, headers, seconds)
            if came.status == 200:
                return Answer(self._read(came, messages), took)
            if came.status in WRONG or 300 <= came.status < 400:
                raise AgentError(self._refusal(came), final=True)
            if came.status and came.status not in AWAY and came.status < 500:
                raise AgentError(self._refusal(came), limit="agent error")
            wait = wait_s(attempt, (came.headers or {}).get("retry-after", ""))
            if attempt == TRIES or wait > LONGEST_WAIT_S or not again():
                away = came.status in AWAY or not came.reached
                said = f"{self.where} gave no answer in {attempt} tries ({came.problem})."
                raise AgentError(said, limit="" if away else "agent error")
            await self.sleep(wait)
        raise AssertionError("unreachable")

    async def _paid(
        self, body: dict[str, Any], headers: dict[str, str], seconds: float
    ) -> tuple[_Came, float]:
        """Send a request on the account; return the response and its duration in seconds. Raises
        AgentError.
        """
        booked, booked_usd = self.most, self.most_usd
        try:
            await self.account.book(booked, booked_usd)
        except Spent as error:
            raise AgentError(
                f"{error}{self._assumed()} The samples so far are kept.", final=True, limit=SPENT
            ) from error
        came, began = None, time.monotonic()
        try:
            came = await self._post(body, headers, seconds)
            return came, time.monotonic() - began
        finally:  # also after a timeout or a cancellation
            self.account.settle(booked, booked_usd, *self._used(came))

    def _used(self, came: _Came | None) -> tuple[Usage, float]:
        """The usage that a call counts with. `came` is None if it timed out or its answer was too
        large.
        """
        reported = reported_in(came.data if came else None)
        tokens, usd = reported.tokens, reported.cost(self.agent.prices)
        if came and (not came.reached or came.status in REFUSED_WORK):
            return tokens or NOTHING, usd or 0.0
        self.calls += 1
        self.without_tokens += tokens is None
        self.without_cost += usd is None
        tokens = Usage(0, self.agent.tokens_per_call) if tokens is None else tokens
        usd = self.agent.usd_per_call if usd is None else usd
        self.most, self.most_usd = (
            max(self.most, tokens, key=lambda used: used.tokens),
            max(self.most_usd, usd),
        )
        return tokens, usd

    def _assumed(self) -> str:
        """The part of the limit's sentence about what the user declared."""
        said = ""
        if self.agent.most_tokens and self.without_tokens:
            said += (
                f" {self.without_tokens:,} of {self.calls:,} calls reported no tokens: each counts"
                f" as {self.agent.tokens_per_call:,}."
            )
        if self.agent.most_usd and self.without_cost:
            said += (
                f" {self.without_cost:,} of {self.calls:,} calls reported no cost: each counts as"
                f" ${self.agent.usd_per_call:g}."
            )
        return said

    async def _post(self, body: dict[str, Any], headers: dict[str, str], seconds: float) -> _Came:
        """Raises AgentError if it should not be retried."""
        try:
            async with asyncio.timeout(seconds):
                response = await self.http.post(self.url, json=body, headers=headers)
        except TimeoutError as error:
            raise AgentError(
                f"{self.where} gave no answer within {seconds:g} s.", limit="time"
            ) from error
        except RefusedAddress as error:
            raise AgentError(str(error), final=True) from error
        except TooMuch as error:
            raise AgentError(
                f"{self.where} sent {error}.", limit=error.limit or "agent error"
            ) from error
        except (httpx2.ConnectError, httpx2.ConnectTimeout, OSError) as error:
            return _Came(
                problem=f"no connection: {self._hidden(str(error) or type(error).__name__)}",
                reached=False,
            )
        except httpx2.HTTPError as error:
            return _Came(
                problem=f"its answer broke off: {self._hidden(str(error) or type(error).__name__)}"
            )
        text = self._hidden(response.content.decode(errors="replace"))
        given = {name.lower(): value for name, value in response.headers.items()}
        return _Came(response.status_code, text, _json(text), given, f"HTTP {response.status_code}")

    def _read(self, came: _Came, asked: list[Message]) -> Said:
        if (version := version_of(came.data, came.headers or {})) and version != self.agent.version:
            raise AgentError(
                f"{self.where} says that it is version “{self._hidden(version)[:80]}”, and this"
                f" evaluation is of {self.agent.name} “{self.agent.version}”. An agent's version"
                " must not change during an evaluation, so it was stopped; the samples so far are"
                " kept. Register the new version and evaluate that.",
                final=True,
            )
        try:
            return read_answer(came.data, asked)
        except AgentFault as fault:
            silent = isinstance(fault, Silent)
            sentence = f"{self.where} {fault}."
            raise AgentError(sentence, limit="agent error", is_silent=silent) from fault

    def _refusal(self, came: _Came) -> str:
        if came.status in (401, 403):
            return f"{self.where} {refusal(self.key)} (HTTP {came.status})."
        if 300 <= came.status < 400:
            return (
                f"{self.where} redirects elsewhere (HTTP {came.status}); register it with the final"
                " address."
            )
        if came.status in WRONG:
            return (
                f"{self.where} does not take POST {self.url.path} (HTTP {came.status}); check its"
                " address and protocol."
            )
        return f"{self.where} refused the request (HTTP {came.status}): {came.text[:MAX_SAID]}"

    def _hidden(self, text: str) -> str:
        return hidden(text, self.key)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
