"""Tokens and money: what a question may cost, what it did cost, and a limit shared by many
concurrent questions. Light.

The failures' judge and evaluations on servers both count with it.
"""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec.structs import replace

from workers.lib.prices import Price
from workers.lib.token_usage import Usage, parse

FEWEST = 10  # a count of less than a tenth of what the text suggests is a placeholder
BYTES_PER_TOKEN = 3  # fewer than real text has, so that estimates are rather too high


NOTHING = Usage(0, 0)


def estimate(*texts: Any) -> int:
    """An estimate of the tokens in texts, rather too high."""
    return sum(len(str(text).encode(errors="replace")) // BYTES_PER_TOKEN + 8 for text in texts)


def usage_of(given: Any, *, asked: int, text: str) -> Usage:
    """The usage reported by the server, or an estimate if there is none, so that limits always
    apply. `asked`: an estimate for the question; `text`: what the model wrote.
    """
    used = parse(given)
    sent, made = _reported(used, text)
    estimated = len(text.encode(errors="replace")) // BYTES_PER_TOKEN + 1
    return replace(
        used,
        input_tokens=asked if sent is None else sent,
        output_tokens=estimated if made is None else made,
        unread={},
    )


def is_counted(given: Any, text: str) -> bool:
    """Whether the server counts the tokens of both question and answer."""
    return None not in _reported(parse(given), text)


def _reported(used: Usage, text: str) -> tuple[int | None, int | None]:
    written = estimate(text) if text else 0
    return counted(used.input_tokens, used.output_tokens, written=written)


def counted(asked: int | None, made: int | None, *, written: int) -> tuple[int | None, int | None]:
    """What a server reports of question and answer, None for what it does not count: such servers
    report 0, or hardly anything. `written`: an estimate of the tokens of the answer's text.
    """
    answer = made if made is not None and FEWEST * made >= written else None
    return asked or None, answer if asked or answer else None


class Spent(Exception):
    """The limit allows no further question; the message says which limit, and how much is used."""


class Account:
    """The usage that a job may have; 0 means no limit. A question is reserved with its maximum cost
    before it is asked, so that concurrent questions cannot exceed the limit together, and settled
    with its actual cost. Questions at different prices may share an account.
    """

    def __init__(self, *, most_tokens: int = 0, most_usd: float = 0.0) -> None:
        self.most_tokens, self.most_usd = most_tokens, most_usd
        self.used, self.booked, self.open = NOTHING, NOTHING, 0
        self.used_usd = self.booked_usd = 0.0
        self.waiting: list[
            asyncio.Future[None]
        ] = []  # of the current event loop: a job may run several, one after the other

    async def book(self, most: Usage, usd: float) -> None:
        """Reserve a question. Waits for open questions if they may turn out cheaper than reserved.
        Raises Spent.
        """
        while problem := self._exceeded(
            self.used + self.booked + most, self.used_usd + self.booked_usd + usd
        ):
            if not self.open:
                raise Spent(problem)
            self.waiting.append(asyncio.get_running_loop().create_future())
            await self.waiting[-1]
        self.booked, self.booked_usd, self.open = (
            self.booked + most,
            self.booked_usd + usd,
            self.open + 1,
        )

    def settle(self, most: Usage, most_usd: float, used: Usage, usd: float) -> None:
        self.booked, self.used, self.open = self.booked - most, self.used + used, self.open - 1
        # Summing floats leaves a remainder that would refuse the last affordable question.
        self.booked_usd = max(0.0, self.booked_usd - most_usd) if self.open else 0.0
        self.used_usd += usd
        waiting, self.waiting = self.waiting, []
        for one in waiting:
            if not one.done():
                one.set_result(None)

    def _exceeded(self, usage: Usage, usd: float) -> str:
        if self.most_tokens and usage.tokens > self.most_tokens:
            return (
                f"The limit of {self.most_tokens:,} tokens allows no further question;"
                f" {self.used.tokens:,} are used."
            )
        if self.most_usd and usd > self.most_usd * (
            1 + 1e-9
        ):  # three times $0.1 is more than $0.3 in floats
            return (
                f"The limit of ${self.most_usd:g} allows no further question; ${self.used_usd:.4f}"
                " is spent."
            )
        return ""


class Meter:
    """Questions at one price, on their own account or a shared one."""

    def __init__(
        self,
        price: Price,
        *,
        most_tokens: int = 0,
        most_usd: float = 0.0,
        account: Account | None = None,
    ) -> None:
        self.price, self.account = (
            price,
            account or Account(most_tokens=most_tokens, most_usd=most_usd),
        )

    async def book(self, most: Usage) -> None:
        """Raises Spent."""
        await self.account.book(most, self.price.most(most))

    def settle(self, most: Usage, used: Usage) -> None:
        self.account.settle(most, self.price.most(most), used, self.price.of(used))
