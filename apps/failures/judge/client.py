"""One question to a judge on an OpenAI-compatible server, and what it costs. Reads no setting and no database."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from apps.failures.judge.prompt import clean
from workers.lib.chat_client import ChatClient, ChatError, ChatServer
from workers.lib.keys import RefusedKey, checked_key

MAX_OUTPUT = 800  # tokens of an answer
BYTES_PER_TOKEN = 3  # fewer than text has, so that an estimate is rather too dear
DROPPABLE = ("seed", "temperature", "response_format")


@dataclass(frozen=True)
class Server(ChatServer):
    """A judge's server and its prices."""

    usd_per_million_input: float = 0.0
    usd_per_million_output: float = 0.0
    key_hosts: dict[str, str] = field(default_factory=dict)  # never None: this process has variables of its own
    name: str = "judge's server"
    droppable: tuple[str, ...] = DROPPABLE

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


def estimate(chat: list[dict]) -> int:
    """Tokens of a chat, rather too many."""
    return sum(len(str(message["content"]).encode(errors="replace")) // BYTES_PER_TOKEN + 8 for message in chat)


def complete(
    server: Server, chat: list[dict[str, str]], sleep: Callable[[float], None] = time.sleep, *, temperature: float = 0,
    seed: int | None = None,
) -> Completion:  # fmt: skip
    """The answer to a chat. Raises ServerError. A busy or broken server is asked again, with growing waits."""
    body: dict[str, Any] = {
        "messages": chat,
        "temperature": temperature,
        "max_tokens": MAX_OUTPUT,
        "response_format": {"type": "json_object"},
    } | ({} if seed is None else {"seed": seed})
    answer = ask(server, body, sleep)
    choice = answer["choices"][0]
    text = choice["message"].get("content") or ""
    if not isinstance(text, str):
        raise ServerError(f"The {server.name} answered with something that is not a chat completion.", _paid(chat))
    return Completion(clean(text), usage_of(answer.get("usage"), chat, text), choice.get("finish_reason") == "length")


def ask(server: Server, body: dict[str, Any], sleep: Callable[[float], None] = time.sleep) -> dict:
    """The whole answer to a request. Raises ServerError."""
    try:
        with ChatClient(server, sleep=sleep) as client:
            return client.ask(body)
    except ChatError as error:
        usage = _paid(body["messages"]) if error.paid else Usage()
        raise ServerError(clean(str(error)), usage, error.final) from error


def _paid(chat: list[dict]) -> Usage:
    """What a question without an answer may cost."""
    return Usage(estimate(chat), 0)


def key_of(server: Server, host: str) -> str:
    """The API key, from the environment; "" where none is named. Raises ServerError, never with the key in it."""
    try:
        return checked_key(server.key_variable, host, server.key_hosts)
    except RefusedKey as error:
        raise ServerError(str(error), final=True) from error


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
