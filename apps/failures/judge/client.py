"""One question to an OpenAI-compatible server over /chat/completions. Reads no setting and no database.

Request: {model, messages, temperature, max_tokens, response_format}. Answer: {choices: [{message: {content},
finish_reason}], usage: {prompt_tokens, completion_tokens}}; an error: {error: {message}} with its HTTP status. (OpenAI's
API reference, “Create chat completion”.)
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

from apps.core import outgoing_keys
from apps.failures.judge.prompt import clean
from workers.lib.keys import RefusedKey, bearer, hidden
from workers.lib.outgoing import RefusedAddress, check_url
from workers.lib.outgoing import client as guarded

MAX_OUTPUT = 800  # tokens of an answer
MAX_BYTES = 2 * 1024 * 1024  # of a response
BYTES_PER_TOKEN = 3  # fewer than text has, so that an estimate is rather too dear
TRIES, FIRST_WAIT_S, LONGEST_WAIT_S = 4, 0.5, 30.0
MAX_SAID = 300
BUSY = (408, 409, 429)


@dataclass(frozen=True)
class Server:
    """Whom to ask. `key_hosts` maps the variables that may be read to the hosts their key may go to ("" is any)."""

    base_url: str
    model: str
    key_variable: str = ""
    usd_per_million_input: float = 0.0
    usd_per_million_output: float = 0.0
    timeout_s: float = 60.0
    tries: int = TRIES
    allow_private: bool = False
    key_hosts: dict[str, str] = field(default_factory=dict)

    def cost(self, usage: Usage) -> float:
        """In USD."""
        return (
            usage.input_tokens * self.usd_per_million_input + usage.output_tokens * self.usd_per_million_output
        ) / 1e6

    def dearest(self, chat: list[dict[str, str]]) -> float:
        """More than an answer to this, and a second one after a mistake, is likely to cost, in USD."""
        first = estimate(chat)
        again = first + 2 * MAX_OUTPUT
        return self.cost(Usage(first + again, 2 * MAX_OUTPUT))


@dataclass(frozen=True)
class Usage:
    """Tokens that are paid for."""

    input_tokens: int = 0
    output_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(self.input_tokens + other.input_tokens, self.output_tokens + other.output_tokens)


@dataclass(frozen=True)
class Completion:
    text: str
    usage: Usage
    truncated: bool = False


class ServerError(Exception):
    """No answer; the sentence says why. `usage` is what may have to be paid all the same.

    `final`: asking about another run would end the same (a wrong address, a refused key).
    """

    def __init__(self, sentence: str, usage: Usage | None = None, final: bool = False) -> None:
        super().__init__(sentence)
        self.usage, self.final = usage or Usage(), final


def estimate(chat: list[dict[str, str]]) -> int:
    """Tokens of a chat, rather too many."""
    return sum(len(message["content"].encode()) // BYTES_PER_TOKEN + 8 for message in chat)


def complete(
    server: Server, chat: list[dict[str, str]], sleep: Callable[[float], None] = time.sleep, *, temperature: float = 0,
    seed: int | None = None,
) -> Completion:  # fmt: skip
    """The answer to a chat. Raises ServerError. A busy or broken server is asked again, with growing waits."""
    try:
        url = check_url(server.base_url, allow_private=server.allow_private)
        key = key_of(server, url.host)
        with guarded(allow_private=server.allow_private, headers=bearer(key), timeout=_timeout(server)) as client:
            return _Call(
                server, client, f"{str(url).rstrip('/')}/chat/completions", key, chat, sleep, temperature, seed
            ).run()
    except RefusedAddress as error:
        raise ServerError(str(error), final=True) from error


def key_of(server: Server, host: str) -> str:
    """The API key, from the environment; "" where none is named. Raises ServerError, never with the key in it."""
    try:
        return outgoing_keys.key_of(server.key_variable, host, server.key_hosts)
    except RefusedKey as error:
        raise ServerError(str(error), final=True) from error


def _timeout(server: Server) -> httpx.Timeout:
    return httpx.Timeout(server.timeout_s, connect=min(10.0, server.timeout_s))


@dataclass
class _Call:
    server: Server
    client: httpx.Client
    url: str
    key: str
    chat: list[dict[str, str]]
    sleep: Callable[[float], None]
    temperature: float = 0
    seed: int | None = None

    @property
    def where(self) -> str:
        return f"The judge's server at {httpx.URL(self.url).netloc.decode()}"

    def run(self) -> Completion:
        body: dict[str, Any] = {
            "model": self.server.model,
            "messages": self.chat,
            "temperature": self.temperature,
            "max_tokens": MAX_OUTPUT,
            "response_format": {"type": "json_object"},
        }
        if self.seed is not None:
            body["seed"] = self.seed
        attempt = 0
        while True:
            status, headers, data, problem = self._post(body)
            if status == 200:
                return self._completion(data)
            if status in (400, 422) and (milder := relaxed(body, data)):
                body = milder
                continue
            if status and status not in BUSY and status < 500:
                raise ServerError(self._refusal(status, data), final=status in (401, 403, 404) or status < 400)
            attempt += 1
            wait = wait_s(attempt, headers.get("retry-after", ""))
            if attempt >= self.server.tries or wait > LONGEST_WAIT_S:
                asked = f"; it wants {wait:.0f} s of rest" if wait > LONGEST_WAIT_S else ""
                raise ServerError(f"{self.where} gave no answer in {attempt} tries ({problem}{asked}).")
            self.sleep(wait)

    def _post(self, body: dict[str, Any]) -> tuple[int, httpx.Headers, bytes, str]:
        """(status, 0 where there is none; headers; content; the problem). Raises ServerError when time is over."""
        try:
            with self.client.stream("POST", self.url, json=body) as response:
                data = self._read(response)
                return response.status_code, response.headers, data, f"HTTP {response.status_code}"
        except (httpx.ReadTimeout, httpx.WriteTimeout) as error:
            raise self._too_slow() from error
        except httpx.TransportError as error:
            return 0, httpx.Headers(), b"", self.hidden(str(error) or type(error).__name__)
        except (httpx.DecodingError, UnicodeError) as error:
            raise ServerError(f"{self.where} sent what cannot be read: {self.hidden(str(error))}") from error

    def _read(self, response: httpx.Response) -> bytes:
        """The content, unless it is endless in length or time: a read timeout only sees a pause."""
        ends, data = time.monotonic() + self.server.timeout_s, bytearray()
        for chunk in response.iter_bytes():
            data += chunk
            if len(data) > MAX_BYTES:
                raise ServerError(f"{self.where} sent more than {MAX_BYTES // 1024 // 1024} MB.", self._asked())
            if time.monotonic() > ends:
                raise self._too_slow()
        return bytes(data)

    def _too_slow(self) -> ServerError:
        return ServerError(f"{self.where} gave no answer within {self.server.timeout_s:g} s.", self._asked())

    def _asked(self) -> Usage:
        """What a question without an answer may cost."""
        return Usage(estimate(self.chat), 0)

    def _completion(self, data: bytes) -> Completion:
        try:
            answer = json.loads(data)
            choice = answer["choices"][0]
            text = choice["message"].get("content") or ""
            usage = usage_of(answer.get("usage"), self.chat, text)
            return Completion(self.hidden(text), usage, choice.get("finish_reason") == "length")
        except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
            sentence = f"{self.where} answered with something that is no chat completion."
            raise ServerError(sentence, self._asked()) from error

    def _refusal(self, status: int, data: bytes) -> str:
        if status in (401, 403):
            return f"{self.where} refused the key (HTTP {status})."
        if 300 <= status < 400:
            return f"{self.where} redirects elsewhere (HTTP {status}); give the final address."
        if status == 404:
            return f"{self.where} has no model “{self.server.model}”, or the address is not its /v1 (HTTP 404)."
        return (
            f"{self.where} refused the request (HTTP {status}): {self.hidden(data.decode(errors='replace'))[:MAX_SAID]}"
        )

    def hidden(self, text: str) -> str:
        """A text of the server without our key, should it say it."""
        return clean(hidden(text, self.key))


def relaxed(body: dict[str, Any], answer: bytes) -> dict[str, Any] | None:
    """The body without what this server refuses; None where nothing is left to drop.

    Newer models of OpenAI want `max_completion_tokens` and no temperature; small servers know no `response_format`.
    """
    said, rest = answer.decode(errors="replace"), dict(body)
    if "max_tokens" in said and "max_tokens" in rest:
        rest["max_completion_tokens"] = rest.pop("max_tokens")
        return rest
    for name in ("seed", "temperature", "response_format"):
        if name in rest and (name in said or name == "response_format"):
            del rest[name]
            return rest
    return None


def usage_of(given: Any, chat: list[dict[str, str]], text: str) -> Usage:
    """As the server counts it; estimated where it does not, so that a budget is not for nothing."""
    counts = given if isinstance(given, dict) else {}
    used, made = (counts.get(name) for name in ("prompt_tokens", "completion_tokens"))
    return Usage(
        used if _is_count(used) else estimate(chat),
        made if _is_count(made) else len(text.encode(errors="replace")) // BYTES_PER_TOKEN + 1,
    )


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


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
