"""Chat completions of any OpenAI-compatible server: the one client of policies, judges and graders. Light: no torch.

On the `openai` package, whose own retries, environment variables and headers are not used: a read timeout is not asked again
(the question may have to be paid), and nothing of this process's environment goes to a server that somebody typed in.

A request is the body of OpenAI's “Create chat completion”, without `model`. An answer is checked as far as to have a message.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import httpx2

from workers.lib.errors import JobError
from workers.lib.keys import RefusedKey, bearer, checked_key, hidden
from workers.lib.outgoing import Bounds, RefusedAddress, TooMuch, async_client, check_url, client

MAX_BYTES = 2 * 1024 * 1024  # of an answer
TRIES, FIRST_WAIT_S, LONGEST_WAIT_S = 4, 0.5, 30.0
CONNECT_S = 10.0
RESPONDS_S = 30.0  # for one token
MAX_SAID = 300
BUSY = (408, 409, 429)
NO_KEY = "none"  # the package wants one; see `_own_headers`
SENT = ("host", "accept", "accept-encoding", "connection", "content-length", "content-type", "user-agent")


@dataclass(frozen=True)
class ChatServer:
    """Whom to ask, and how patiently. `key_hosts` maps the variables that may be read to the hosts their key may go to (""
    is any); None where this process was given only the variables that it may read. `name` is how errors call the server,
    `droppable` what a request may do without where the server does not know it."""

    base_url: str
    model: str
    key_variable: str = ""
    timeout_s: float = 60.0
    tries: int = TRIES
    allow_private: bool = False
    key_hosts: dict[str, str] | None = None
    name: str = "model server"
    droppable: tuple[str, ...] = ("seed",)


class ChatError(JobError):
    """No answer; the sentence says why, never with the key in it. `final`: another question would end the same (a wrong
    address, a refused key). `paid`: the question may have been answered to nobody. `limit` names what this one question
    or its answer exceeded, while the server works: time, size, context, or refused for what it says; else ""."""

    def __init__(self, sentence: str, *, final: bool = False, paid: bool = False, limit: str = "") -> None:
        super().__init__(sentence)
        self.final, self.paid, self.limit = final, paid, limit


@dataclass(frozen=True)
class _Answered:
    """What came back to one request; status 0 where nothing did."""

    status: int = 0
    data: bytes = b""
    retry_after: str = ""
    problem: str = ""


class _Chats:
    """What both clients share. Raises ChatError where the server may not be asked at all."""

    def __init__(self, server: ChatServer) -> None:
        import openai  # takes long to load: only for who asks

        self.server, self.openai = server, openai
        try:
            self.url = check_url(server.base_url, allow_private=server.allow_private)
            self.key = checked_key(server.key_variable, self.url.host, server.key_hosts)
        except (RefusedAddress, RefusedKey) as error:
            raise ChatError(str(error), final=True) from error
        self.where = f"The {server.name} at {self.url.netloc.decode()}"
        self.changes: dict[str, str] = {}  # names that this server does not know, and those it knows instead

    def options(self) -> dict[str, Any]:
        """Of the HTTP client."""
        return {
            "allow_private": self.server.allow_private,
            "bounds": Bounds(MAX_BYTES, self.server.timeout_s),
            "timeout": httpx2.Timeout(self.server.timeout_s, connect=min(CONNECT_S, self.server.timeout_s)),
        }

    def package(self, http: Any) -> dict[str, Any]:
        """Of the package's client."""
        return {"api_key": NO_KEY, "base_url": self.url, "max_retries": 0, "timeout": http.timeout, "http_client": http}

    def own_headers(self, request: httpx2.Request) -> None:
        """Only what the protocol needs: the package adds what it knows of this machine and of its environment."""
        for name in [name for name in request.headers if name.lower() not in SENT]:
            del request.headers[name]
        request.headers.update(bearer(self.key))

    def hidden(self, text: str) -> str:
        """What the server said, without our key should it say it."""
        return hidden(text, self.key)

    def _hidden_in(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {self.hidden(name): self._hidden_in(item) for name, item in value.items()}
        if isinstance(value, list):
            return [self._hidden_in(item) for item in value]
        return self.hidden(value) if isinstance(value, str) else value

    def exchange(self, body: dict[str, Any]) -> Generator[dict[str, Any] | float, _Answered | None, dict]:
        """One question: yields a body to be sent, to which it gets what came back, or seconds to wait; returns the answer.

        A busy or broken server is asked again, with growing waits. Raises ChatError.
        """
        attempt = 0
        while True:
            sent = self._known({"model": self.server.model} | body)
            came = yield sent
            assert came is not None
            if came.status == 200:
                return self._completion(came.data)
            if came.status in (400, 422) and (change := refused_name(sent, came.data, self.server.droppable)):
                self.changes |= change
                continue
            if came.status and came.status not in BUSY and came.status < 500:
                final = came.status in (401, 403, 404) or came.status < 400
                raise ChatError(self._refusal(came.status, came.data), final=final, limit=refused_for(came))
            attempt += 1
            wait = wait_s(attempt, came.retry_after)
            if attempt >= self.server.tries or wait > LONGEST_WAIT_S:
                asked = f"; it wants {wait:.0f} s of rest" if wait > LONGEST_WAIT_S else ""
                raise ChatError(f"{self.where} gave no answer in {attempt} tries ({came.problem}{asked}).")
            yield wait

    def _known(self, body: dict[str, Any]) -> dict[str, Any]:
        named = {self.changes.get(name, name): value for name, value in body.items()}
        return {name: value for name, value in named.items() if name}

    def came_back(self, error: Exception) -> _Answered:
        """What an error of the package means for the question. Raises ChatError where it is not to be asked again."""
        if isinstance(error, self.openai.APIStatusError):
            response = error.response
            after = response.headers.get("retry-after", "")
            return _Answered(response.status_code, response.content, after, f"HTTP {response.status_code}")
        cause = error.__cause__ or error
        if isinstance(cause, RefusedAddress):
            raise ChatError(str(cause), final=True) from error
        if isinstance(cause, TooMuch):
            raise ChatError(f"{self.where} sent {cause}.", paid=True, limit=cause.limit) from error
        if isinstance(cause, httpx2.ReadTimeout | httpx2.WriteTimeout):
            said = f"{self.where} gave no answer within {self.server.timeout_s:g} s."
            raise ChatError(said, paid=True, limit="time") from error
        problem = self.hidden(str(cause) or type(cause).__name__)
        if isinstance(cause, httpx2.TransportError | OSError):
            return _Answered(problem=problem)
        raise ChatError(f"{self.where} sent what cannot be read: {problem}", paid=True) from error

    def _completion(self, data: bytes) -> dict:
        try:
            answer = json.loads(data)
            if isinstance(answer["choices"][0]["message"], dict):
                return self._hidden_in(answer) if self.key else answer
        except (ValueError, KeyError, IndexError, TypeError, RecursionError):
            pass
        raise ChatError(f"{self.where} answered with something that is not a chat completion.", paid=True)

    def _refusal(self, status: int, data: bytes) -> str:
        if status in (401, 403):
            return f"{self.where} refused the key (HTTP {status})."
        if 300 <= status < 400:
            return f"{self.where} redirects elsewhere (HTTP {status}); give the final address."
        if status == 404:
            return f"{self.where} has no model “{self.server.model}”, or the address is not its /v1 (HTTP 404)."
        said = self.hidden(data.decode(errors="replace"))[:MAX_SAID]
        return f"{self.where} refused the request (HTTP {status}): {said}"


class ChatClient(_Chats):
    """Asks from any thread. To be closed, or used with `with`."""

    def __init__(self, server: ChatServer, *, sleep: Callable[[float], None] = time.sleep) -> None:
        super().__init__(server)
        self.sleep = sleep
        self.http = client(**self.options(), event_hooks={"request": [self.own_headers]})
        self.api = self.openai.OpenAI(**self.package(self.http))

    def __enter__(self) -> ChatClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.http.close()

    def ask(self, body: dict[str, Any]) -> dict:
        """The answer, as JSON. Raises ChatError."""
        steps, came = self.exchange(body), None
        while True:
            try:
                step = steps.send(came)
            except StopIteration as done:
                return done.value
            came = self._post(step) if isinstance(step, dict) else self.sleep(step)

    def _post(self, body: dict[str, Any]) -> _Answered:
        try:
            response = self.api.post("/chat/completions", cast_to=httpx2.Response, body=body)
            return _Answered(response.status_code, response.content, problem=f"HTTP {response.status_code}")
        except (self.openai.OpenAIError, httpx2.HTTPError, RefusedAddress, OSError) as error:
            return self.came_back(error)


class AsyncChatClient(_Chats):
    """The same for asyncio: at most `concurrency` questions at a time."""

    def __init__(self, server: ChatServer, *, concurrency: int = 64) -> None:
        super().__init__(server)
        self.sleep = asyncio.sleep
        self.turn = asyncio.Semaphore(concurrency)
        self.http = async_client(**self.options(), event_hooks={"request": [self._hook]})
        self.api = self.openai.AsyncOpenAI(**self.package(self.http))

    async def _hook(self, request: httpx2.Request) -> None:
        self.own_headers(request)

    async def aclose(self) -> None:
        await self.http.aclose()

    async def ask(self, body: dict[str, Any]) -> tuple[dict, float]:
        """(the answer as JSON, the milliseconds of the request that it answered). Raises ChatError."""
        steps, came, latency_ms = self.exchange(body), None, 0.0
        while True:
            try:
                step = steps.send(came)
            except StopIteration as done:
                return done.value, latency_ms
            if isinstance(step, dict):
                async with self.turn:
                    began = time.perf_counter()
                    came = await self._post(step)
                    latency_ms = (time.perf_counter() - began) * 1000
            else:
                came = await self.sleep(step)

    async def responds(self) -> bool:
        """Whether the server answers a question of one token now: a slow answer to another is then not its fault."""
        steps = self.exchange({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1})
        came: _Answered | None = None
        try:
            async with asyncio.timeout(RESPONDS_S):
                while not isinstance(step := steps.send(came), float):
                    came = await self._post(step)
        except StopIteration:
            return True
        except (ChatError, TimeoutError):
            return False
        return False  # it is busy

    async def _post(self, body: dict[str, Any]) -> _Answered:
        try:
            response = await self.api.post("/chat/completions", cast_to=httpx2.Response, body=body)
            return _Answered(response.status_code, response.content, problem=f"HTTP {response.status_code}")
        except (self.openai.OpenAIError, httpx2.HTTPError, RefusedAddress, OSError) as error:
            return self.came_back(error)


def refused_for(came: _Answered) -> str:
    """What a refused question is at fault for: "context" (too long for the model), "refused" (what it says), else ""."""
    if came.status not in (400, 413, 422):
        return ""
    return "context" if came.status == 413 or b"context" in came.data.lower() else "refused"


def refused_name(body: dict[str, Any], answer: bytes, droppable: tuple[str, ...]) -> dict[str, str]:
    """What to write in place of a name that this server refuses ("": nothing); {} where the request is refused as such.

    Newer models of OpenAI want `max_completion_tokens` and no temperature; small servers know no `response_format`.
    """
    said = answer.decode(errors="replace")
    if "max_tokens" in said and "max_tokens" in body:
        return {"max_tokens": "max_completion_tokens"}
    for name in droppable:
        if name in body and (name in said or name == "response_format"):
            return {name: ""}
    return {}


def wait_s(attempt: int, asked: str) -> float:
    """What the server asks for (seconds, or a date), else twice as long each time."""
    asked = asked.strip()
    if asked.isascii() and asked.isdigit():
        return float(asked[:9])
    if asked:
        try:
            return max(0.0, (parsedate_to_datetime(asked) - datetime.now(UTC)).total_seconds())
        except (TypeError, ValueError, OverflowError):
            pass
    return FIRST_WAIT_S * 2 ** (attempt - 1)
