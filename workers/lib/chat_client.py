"""Requests to any OpenAI-compatible server: the single client for policies, judges, graders and
embeddings. Light: no torch.

Requests are sent with `posts` rather than the `openai` package, which took more of a rollout's time
than everything else; a test compares the two. A read timeout is retried only where nothing is
billed (`patient`), and nothing from this process's environment is sent to a server that a user
entered.

A request is the body of OpenAI's “Create chat completion”, without `model`. An answer is only
checked for containing a message. A server with the protocol “responses” gets the same request as
“Create a model response”, and its answer is converted to a chat completion; one with “generate”
gets a completion's request as SGLang's own (`workers.lib.sglang`). To see an answer while it is
generated, stream it; a server that cannot stream answers all at once.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Literal

import msgspec
from httpx2 import URL

from workers.lib import sglang
from workers.lib.addresses import PrivateNetworks
from workers.lib.clocks import current
from workers.lib.errors import JobError
from workers.lib.keys import RefusedKey, bearer, checked_key, hidden, refusal
from workers.lib.loop_thread import LoopThread
from workers.lib.messages import ItemError, as_completion, error_text, failure_of, from_chat_request
from workers.lib.outgoing import Bounds, RefusedAddress, TooMuch, check_url
from workers.lib.posts import NoAnswer, Posts, TooLate
from workers.lib.streamed import Show, StreamReader

MAX_BYTES = 2 * 1024 * 1024  # of an answer
TRIES, FIRST_WAIT_S, LONGEST_WAIT_S = 4, 0.5, 30.0
RESPONDS_S = 30.0  # for an answer of a few tokens
REST_S = 900.0  # for a server to finish what it was asked before
FEW_TOKENS = 16  # OpenAI's Responses API accepts no smaller limit
MAX_SAID = 300
BUSY = (408, 409, 429)
NO_STREAM = {"stream": "", "stream_options": ""}
ALTERABLE = (
    400,
    422,
    501,
)  # statuses after which a rejected parameter may be sent under another name
STREAM = {
    "chat": {"stream": True, "stream_options": {"include_usage": True}},
    "responses": {"stream": True},
}
DEFAULTS = {"temperature": 1, "top_p": 1}
SENT = {"Accept": "application/json", "Content-Type": "application/json", "User-Agent": "Flywheel"}


@dataclass(frozen=True)
class ChatServer:
    """The server to ask, and how patiently. `key_hosts` maps the variables that may be read to the
    hosts that their key may be sent to ("" is any); None if this process was only given variables
    that it may read. `name` is how errors refer to the server, `droppable` lists parameters that
    may be left out for a server that does not support them. `adapter`: its name on a server with
    the protocol “generate”, "" for the base.
    """

    base_url: str
    model: str
    key_variable: str = ""
    timeout_s: float = 60.0
    tries: int = TRIES
    allow_private: PrivateNetworks = False
    key_hosts: dict[str, str] | None = None
    name: str = "model server"
    droppable: tuple[str, ...] = ("seed",)
    protocol: Literal["chat", "responses", "generate"] = "chat"
    adapter: str = ""


TRIES_ALONE = 2  # of a question that took too long without others beside it
RAISED_AFTER = 4  # rounds of answers in time
HOPELESS = 3  # questions without an answer in time, before any was in time
NOT_IN_TIME = "gave no answer within"
NOTHING_IN_TIME = "No question was answered in time"
HOPELESS_SERVER = (
    f"{NOTHING_IN_TIME}, so nothing can be measured there. Use a faster server, a "
    "higher max_seconds or fewer max_new_tokens in the environment."
)


class ChatError(JobError):
    """No answer; the sentence says why, never including the key. `final`: other questions would
    fail in the same way (a wrong address, a rejected key). `paid`: the question may have been
    processed although no answer arrived. `limit`: what this question or its answer exceeded, while
    the server works: time, size, context, or refused because of its content; otherwise "".
    `status`: the HTTP status of a refusal, otherwise 0.
    """

    def __init__(
        self,
        sentence: str,
        *,
        final: bool = False,
        paid: bool = False,
        limit: str = "",
        status: int = 0,
    ) -> None:
        super().__init__(sentence)
        self.final, self.paid, self.limit, self.status = final, paid, limit, status


@dataclass(frozen=True)
class _Answered:
    """The response to one request; status 0 if there was none. `paid`: the response was an answer
    that reports a failure.
    """

    status: int = 0
    data: bytes = b""
    retry_after: str = ""
    problem: str = ""
    paid: bool = False


class _Chats:
    """The common part of all clients. Raises ChatError if the server may not be called at all."""

    path, wanted, max_bytes = "/chat/completions", "a chat completion", MAX_BYTES
    alterable: tuple[int, ...] = ALTERABLE

    def __init__(self, server: ChatServer) -> None:
        self.server = server
        if server.protocol == "responses":
            self.path, self.wanted = "/responses", "an answer of the Responses API"
        if server.protocol == "generate":
            self.path, self.wanted = sglang.PATH, "an answer of SGLang's /generate"
        try:
            self.url = check_url(server.base_url, allow_private=server.allow_private)
            self.key = checked_key(server.key_variable, self.url.host, server.key_hosts)
        except (RefusedAddress, RefusedKey) as error:
            raise ChatError(str(error), final=True) from error
        self.where = f"The {server.name} at {self.url.netloc.decode()}"
        self.changes: dict[
            str, str
        ] = {}  # {name that this server does not support: name to use instead}
        self.posts = Posts(
            self._address(),
            allow_private=server.allow_private,
            bounds=Bounds(self.max_bytes, server.timeout_s),
            headers=SENT | bearer(self.key),
        )

    def _address(self) -> URL:
        """The base URL with our path appended to its own; its query (`?api-version=…`) stays at the
        end.
        """
        path, mark, query = self.url.raw_path.partition(b"?")
        path = path.rstrip(b"/")
        if self.server.protocol == "generate":
            path = path.removesuffix(b"/v1")
        return self.url.copy_with(raw_path=path + self.path.encode() + mark + query)

    def hidden(self, text: str) -> str:
        """The server's text, without our key if it contains it."""
        return hidden(text, self.key)

    def _hidden_in(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {self.hidden(name): self._hidden_in(item) for name, item in value.items()}
        if isinstance(value, list):
            return [self._hidden_in(item) for item in value]
        return self.hidden(value) if isinstance(value, str) else value

    def exchange(
        self, body: dict[str, Any]
    ) -> Generator[dict[str, Any] | float, _Answered | None, dict]:
        """One question: yields a body to send, for which it gets the response, or seconds to wait;
        returns the answer.

        A busy or broken server is retried, with growing waits. Raises ChatError.
        """
        attempt = 0
        while True:
            sent = self._known({"model": self.server.model} | body)
            came = yield self._translated(sent)
            assert came is not None
            if came.status == 200:
                answer = self._answer(came.data)
                if isinstance(answer, dict):
                    return answer
                came = answer
            if came.status in self.alterable and (
                change := refused_name(sent, came.data, self.server.droppable)
            ):
                self.changes |= change
                continue
            if came.status and came.status not in BUSY and came.status < 500:
                final = came.status in (401, 403, 404) or came.status < 400
                raise ChatError(
                    self._refusal(came),
                    final=final,
                    paid=came.paid,
                    limit=refused_for(came),
                    status=came.status,
                )
            attempt += 1
            wait = wait_s(attempt, came.retry_after)
            if attempt >= self.server.tries or wait > LONGEST_WAIT_S:
                asked = f"; it wants {wait:.0f} s of rest" if wait > LONGEST_WAIT_S else ""
                said = f"{self.where} gave no answer in {attempt} tries ({came.problem}{asked})."
                raise ChatError(said, paid=came.paid)
            yield wait

    def _known(self, body: dict[str, Any]) -> dict[str, Any]:
        named = {self.changes.get(name, name): value for name, value in body.items()}
        return {name: value for name, value in named.items() if name}

    def _translated(self, sent: dict[str, Any]) -> dict[str, Any]:
        if self.server.protocol == "responses":
            return from_chat_request(sent)
        if self.server.protocol == "generate":
            return sglang.request_of(sent, self.server.adapter)
        return sent

    async def send(self, body: dict[str, Any], show: Show | None = None) -> _Answered:
        """The response to one request. Raises ChatError if it should not be retried."""
        reader = (
            StreamReader(self.server.protocol, self.max_bytes, self._shown(show)) if show else None
        )
        try:
            found = await self.posts.post(encoded(body), reader)
        except RefusedAddress as error:
            raise ChatError(str(error), final=True) from error
        except TooMuch as error:
            if error.limit == "time" and (found := _complete(reader)):
                return found
            raise ChatError(f"{self.where} sent {error}.", paid=True, limit=error.limit) from error
        except TooLate as error:
            said = f"{self.where} {NOT_IN_TIME} {self.server.timeout_s:g} s."
            raise ChatError(said, paid=True, limit="time") from error
        except NoAnswer as error:
            return _complete(reader) or _Answered(problem=self.hidden(str(error)))
        if reader and reader.begun:
            whole = reader.whole()
            return (
                _Answered(problem="it ended its stream within the answer")
                if whole is None
                else _Answered(200, encoded(whole))
            )
        after = found.headers.get("retry-after", "")
        return _Answered(found.status, found.body, after, f"HTTP {found.status}")

    def _shown(self, show: Show) -> Show:
        """Remove our key from what is shown, even if only a part of it has arrived."""
        return (
            (lambda read: show(lambda: read().changed(self._hidden_to_the_end)))
            if self.key
            else show
        )

    def _hidden_to_the_end(self, text: str) -> str:
        text = self.hidden(text)
        begun = next((n for n in range(len(self.key) - 1, 0, -1) if text.endswith(self.key[:n])), 0)
        return text[: len(text) - begun]

    def _answer(self, data: bytes) -> dict | _Answered:
        """The answer or, if it reports a failure, what another server would have sent with an HTTP
        status.
        """
        why = ""
        try:
            answer = json.loads(data)
            if self.key:
                answer = self._hidden_in(answer)
            if self.server.protocol == "responses":
                return self._failed(answer) or as_completion(answer)
            if isinstance(answer, dict) and answer.get("error"):
                said = error_text(answer["error"]).rstrip(".")
                raise ChatError(f"{self.where} answered with an error: {said}.", paid=True)
            if self.server.protocol == "generate":
                answer = sglang.as_completion(answer, self.server.model)
            if self.is_answer(answer):
                return answer
        except ItemError as error:
            why = f" ({error.text})"
        except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
            pass
        raise ChatError(
            f"{self.where} answered with something that is not {self.wanted}{why}.", paid=True
        )

    def _failed(self, answer: Any) -> _Answered | None:
        if (failure := failure_of(answer)) is None:
            return None
        status, said = failure
        return _Answered(
            status, said.encode(), problem=f"HTTP 200 with an error: {said}", paid=True
        )

    def is_answer(self, answer: Any) -> bool:
        """May raise any error of accessing JSON with another structure."""
        return isinstance(answer["choices"][0]["message"], dict)

    def _refusal(self, came: _Answered) -> str:
        status = came.status
        if came.paid:
            return f"{self.where} refused the request ({came.problem})."
        if status in (401, 403):
            return f"{self.where} {refusal(self.key)} (HTTP {status})."
        if 300 <= status < 400:
            return f"{self.where} redirects elsewhere (HTTP {status}); give the final address."
        said = self.hidden(came.data.decode(errors="replace")).strip()[:MAX_SAID]
        if status == 404:
            without = ", no Responses API" if self.server.protocol == "responses" else ""
            return (
                f"{self.where} has no model “{self.server.model}”{without}, or the address is not"
                f" its /v1 (HTTP 404){f': {said}' if said and said[0] != '<' else '.'}"
            )
        return f"{self.where} refused the request (HTTP {status}): {said}"


def _complete(reader: StreamReader | None) -> _Answered | None:
    """A complete answer, if only the end of its stream is missing."""
    whole = reader.whole() if reader and reader.begun else None
    return _Answered(200, encoded(whole)) if whole else None


class ChatClient(_Chats):
    """Can be used from any thread. Close it, or use it with `with`."""

    def __init__(self, server: ChatServer, *, sleep: Callable[[float], None] = time.sleep) -> None:
        super().__init__(server)
        self.sleep, self.loop = sleep, LoopThread("chat client")

    def __enter__(self) -> ChatClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.loop.close(self.posts.aclose)

    def ask(self, body: dict[str, Any]) -> dict:
        """The answer, as JSON. Raises ChatError."""
        steps, came = self.exchange(body), None
        while True:
            try:
                step = steps.send(came)
            except StopIteration as done:
                return done.value
            came = self.loop.run(self.send(step)) if isinstance(step, dict) else self.sleep(step)


class _Turns:
    """Lets at most `most` questions run at a time, and fewer once a server is too slow for so many.

    After many answers in time one more is let in, so that a single question without an end does
    not slow down all others for good.
    """

    def __init__(self, most: int) -> None:
        self.first = self.most = most
        self.running = self.lowered = self.in_time = self.late = 0
        self.has_answered = False
        self.free = asyncio.Condition()

    async def take(self) -> None:
        async with self.free:
            await self.free.wait_for(lambda: self.running < self.most)
            self.running += 1

    async def release(self) -> None:
        async with self.free:
            self.running -= 1
            self.free.notify_all()

    def answered(self) -> None:
        self.has_answered, self.late, self.in_time = True, 0, self.in_time + 1
        if self.in_time >= RAISED_AFTER * self.most and self.most < self.first:
            self.most, self.in_time = self.most + 1, 0

    def lower(self, since: int) -> bool:
        """Halves the number, once for all questions that began when it had been lowered `since`
        times. False at 1.
        """
        if since == self.lowered and self.most > 1:
            self.most, self.lowered = self.most // 2, self.lowered + 1
            self.late = self.in_time = 0
        return since < self.lowered

    def is_hopeless(self) -> bool:
        """Counts a question that was late for good: whether too many were, and none in time."""
        self.late += 1
        return not self.has_answered and self.late >= max(HOPELESS, self.most)


class AsyncChatClient(_Chats):
    """The same for asyncio, with at most `concurrency` questions at a time.

    `patient`: a question that took too long is asked again, with half as many others beside it,
    since the server may have worked on those. Not for servers that charge, which may bill each try.
    Waiting for a turn, and tries that are repeated, do not count as the agent's time.
    """

    def __init__(self, server: ChatServer, *, concurrency: int = 64, patient: bool = False) -> None:
        super().__init__(server)
        self.sleep, self.patient = asyncio.sleep, patient
        self.turns, self.resting, self.rested_at = _Turns(concurrency), asyncio.Lock(), 0.0

    async def aclose(self) -> None:
        await self.posts.aclose()

    async def ask(self, body: dict[str, Any], show: Show | None = None) -> tuple[dict, float]:
        """(the answer as JSON, milliseconds of the request that was answered). `show` is called
        while it is generated. Raises ChatError.
        """
        body = body | STREAM[self.server.protocol] if show else body
        steps, came, latency_ms = self.exchange(body), None, 0.0
        while True:
            try:
                step = steps.send(came)
            except StopIteration as done:
                return done.value, latency_ms
            if isinstance(step, dict):
                came, latency_ms = await self._sent(step, show)
            else:
                came = await self.sleep(step)

    async def _sent(self, body: dict[str, Any], show: Show | None) -> tuple[_Answered, float]:
        """The response and its milliseconds."""
        alone = 0  # tries without others beside it
        while True:
            with current().stopped():
                await self.turns.take()
            lowered, others = self.turns.lowered, self.turns.running - 1
            try:
                came, seconds = await self._timed(body, show)
                self.turns.answered()
                return came, seconds * 1000
            except ChatError as error:
                if error.limit != "time":
                    raise
                late, others = error, max(others, self.turns.running - 1)
            finally:
                await self.turns.release()
            alone += not others
            fewer = others and self.turns.lower(lowered)
            again = self.patient and (fewer or (self.turns.lowered and alone < TRIES_ALONE))
            with current().stopped():
                if again and await self._has_rested(time.monotonic()):
                    continue
            if self.turns.is_hopeless():
                raise ChatError(f"{late} {HOPELESS_SERVER}", final=True, paid=True) from late
            raise late

    async def _has_rested(self, since: float) -> bool:
        """Waits until the server answers again, which may still work on questions that were given
        up. False if it does not; one that has answered before is given more time.
        """
        async with self.resting:
            if self.rested_at > since:
                return True
            patience, wait = REST_S if self.turns.has_answered else RESPONDS_S, FIRST_WAIT_S
            while not await self.responds():
                if patience <= 0:
                    return False
                await self.sleep(wait)
                patience, wait = patience - wait, min(2 * wait, LONGEST_WAIT_S)
            self.rested_at = time.monotonic()
            return True

    async def _timed(self, body: dict[str, Any], show: Show | None) -> tuple[_Answered, float]:
        """The response and its seconds. A patient client counts only those of a response, and
        raises ChatError where the episode's time runs out, so that it can ask again.
        """
        clock, began = current(), time.perf_counter()
        if not self.patient:
            return await self.send(body, show), time.perf_counter() - began
        with clock.stopped():
            try:
                async with asyncio.timeout(clock.left) as limit:
                    came = await self.send(body, show)
            except TimeoutError:
                if not limit.expired():
                    raise
                said = f"{self.where} {NOT_IN_TIME} {clock.left:.3g} s."
                raise ChatError(said, paid=True, limit="time") from None
            seconds = time.perf_counter() - began
            clock.spend(seconds)
            return came, seconds

    async def responds(self) -> bool:
        """Whether the server currently answers a question of a few tokens. If so, a slow answer to
        another question is not its fault.
        """
        steps = self.exchange(
            {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": FEW_TOKENS}
        )
        came: _Answered | None = None
        try:
            async with asyncio.timeout(RESPONDS_S):
                while not isinstance(step := steps.send(came), float):
                    came = await self.send(step)
        except StopIteration:
            return True
        except (ChatError, TimeoutError):
            return False
        return False  # the server is busy


def encoded(body: dict[str, Any]) -> bytes:
    """As JSON. msgspec is ten times as fast, but supports neither lone surrogates, which UTF-8
    cannot encode, nor subclasses of str.
    """
    try:
        return msgspec.json.encode(body)
    except (UnicodeEncodeError, TypeError):
        return json.dumps(body).encode()


TOO_LONG = (
    b"context",
    b"max_model_len",
    b"maximum model length",
)  # phrases with which servers say that a prompt does not fit


def refused_for(came: _Answered) -> str:
    """Why a question was refused: "context" (too long for the model), "refused" (its content),
    otherwise "".
    """
    if came.status not in (400, 413, 422):
        return ""
    said = came.data.lower()
    return (
        "context" if came.status == 413 or any(words in said for words in TOO_LONG) else "refused"
    )


def refused_name(body: dict[str, Any], answer: bytes, droppable: tuple[str, ...]) -> dict[str, str]:
    """What to send instead of a parameter that this server refuses ("": nothing); {} if the whole
    request is refused.

    Newer OpenAI models want `max_completion_tokens` and no temperature; small servers do not
    support `response_format`. A parameter with the API's default value is omitted from all requests
    if it is refused by name.
    """
    said = answer.decode(errors="replace")
    if body.get("stream") and "stream" in said.lower():
        return (
            {"stream_options": ""}
            if "stream_options" in body and "stream_options" in said
            else NO_STREAM
        )
    if "max_tokens" in said and "max_tokens" in body:
        return {"max_tokens": "max_completion_tokens"}
    for name in droppable:
        if name in body and (name in said or name == "response_format"):
            return {name: ""}
    name = _refused_parameter(answer)
    return {name: ""} if name in DEFAULTS and body.get(name) == DEFAULTS[name] else {}


def _refused_parameter(answer: bytes) -> str:
    """The `param` of an error in OpenAI's format; "" if none is named."""
    try:
        found = json.loads(answer)["error"]["param"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
    return found if isinstance(found, str) else ""


def wait_s(attempt: int, asked: str) -> float:
    """Seconds before a retry: what the server asks for (in seconds, or as a date), otherwise
    doubled each time.
    """
    asked = asked.strip()
    if asked.isascii() and asked.replace(".", "", 1).isdigit():
        return float(asked[:9])
    if asked:
        try:
            return max(0.0, (parsedate_to_datetime(asked) - datetime.now(UTC)).total_seconds())
        except (TypeError, ValueError, OverflowError):
            pass
    return FIRST_WAIT_S * 2 ** (attempt - 1)
