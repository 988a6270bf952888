"""One question to a judge on an OpenAI-compatible server, and its cost. Reads no settings and no
database.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from workers.lib import spending
from workers.lib.chat_client import ChatClient, ChatError, ChatServer
from workers.lib.keys import RefusedKey, checked_key
from workers.lib.prices import Price
from workers.lib.spending import NOTHING, Usage, usage_of
from workers.lib.storable import storable

MAX_OUTPUT = 800  # tokens of an answer
DROPPABLE = ("seed", "temperature", "response_format")


@dataclass(frozen=True)
class Server(ChatServer):
    """A judge's server and the price of its model, which is 0 where it is not known."""

    price: Price = field(default_factory=Price)
    is_priced: bool = True
    key_hosts: dict[str, str] = field(
        default_factory=dict
    )  # never None: this process has its own variables
    name: str = "judge's server"
    droppable: tuple[str, ...] = DROPPABLE
    max_output: int = MAX_OUTPUT

    def cost(self, usage: Usage) -> float:
        """In USD."""
        return self.price.of(usage)

    def max_cost(self, chat: list[dict[str, str]]) -> float:
        """An upper estimate of the cost of an answer to this, and a second one after an error, in
        USD.
        """
        first = estimate(chat)
        again = first + 2 * self.max_output
        return self.price.most(Usage(first + again, 2 * self.max_output))


@dataclass(frozen=True)
class Completion:
    text: str
    usage: Usage
    truncated: bool = False


class ServerError(Exception):
    """No answer; the sentence says why. `usage` may have to be paid all the same.

    `final`: asking about another run would fail in the same way (a wrong address, a refused key).
    `is_servers`: the server is down or busy, whatever it was asked.
    """

    def __init__(
        self,
        sentence: str,
        usage: Usage | None = None,
        final: bool = False,
        is_servers: bool = False,
    ) -> None:
        super().__init__(sentence)
        self.usage, self.final, self.is_servers = usage or NOTHING, final, is_servers or final


def estimate(chat: list[dict]) -> int:
    """An upper estimate of a chat's tokens."""
    return spending.estimate(*(message["content"] for message in chat))


def complete(
    server: Server,
    chat: list[dict[str, str]],
    sleep: Callable[[float], None] = time.sleep,
    *,
    temperature: float = 0,
    seed: int | None = None,
) -> Completion:
    """The answer to a chat. Raises ServerError. A busy or broken server is retried, with growing
    waits.
    """
    body: dict[str, Any] = {
        "messages": chat,
        "temperature": temperature,
        "max_tokens": server.max_output,
        "response_format": {"type": "json_object"},
    } | ({} if seed is None else {"seed": seed})
    answer = ask(server, body, sleep)
    choice = answer["choices"][0]
    text = choice["message"].get("content") or ""
    if not isinstance(text, str):
        raise ServerError(
            f"The {server.name} answered with something that is not a chat completion.", _paid(chat)
        )
    return Completion(
        storable(text),
        usage_of(answer.get("usage"), asked=estimate(chat), text=text),
        choice.get("finish_reason") == "length",
    )


def ask(server: Server, body: dict[str, Any], sleep: Callable[[float], None] = time.sleep) -> dict:
    """The complete answer to a request. Raises ServerError."""
    try:
        with ChatClient(server, sleep=sleep) as client:
            return client.ask(body)
    except ChatError as error:
        usage = _paid(body["messages"]) if error.paid else NOTHING
        is_down = not error.limit and not error.status
        raise ServerError(storable(str(error)), usage, error.final, is_down) from error


def _paid(chat: list[dict]) -> Usage:
    """The possible cost of a question without an answer."""
    return Usage(estimate(chat), 0)


def key_of(server: Server, host: str) -> str:
    """The API key, from the environment; "" if none is named. Raises ServerError, never with the
    key in it.
    """
    try:
        return checked_key(server.key_variable, host, server.key_hosts)
    except RefusedKey as error:
        raise ServerError(str(error), final=True) from error
