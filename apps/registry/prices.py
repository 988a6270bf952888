"""What models cost in a project: a server's own prices come first, then those entered for the
project, then the list prices of providers (`workers.lib.prices`). Without any, it is unknown.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime

from apps.core.models import Project
from apps.registry.models import ModelPrice, Server
from workers.lib.prices import Price, list_price

MOST_PRICES, LARGEST = 200, 100_000.0
REMEMBERED_S = 10.0  # a price that is entered holds for runs from then on
CACHED = ("cached", "write")  # as the lines of a server's form call the prices of cached tokens


def price_at(server: Server, model: str) -> Price | None:
    """None if unknown. “*” in a server's own prices applies to all models without their own."""
    if own := server.prices.get(model) or server.prices.get("*"):
        return _own(own, f"server {server.name}")
    entered = ModelPrice.objects.filter(project=server.project_id, model=model).first()
    return entered.as_price if entered else list_price(model, base_url=server.base_url)


def price_for(project: Project, model: str, base_url: str) -> Price | None:
    """At an address that need not be that of a server of the project; None if unknown."""
    server = Server.objects.filter(project=project, base_url=base_url).first()
    return price_at(server or Server(project=project, base_url=base_url), model)


class PriceBook:
    """The prices of a project's runs (`workers.lib.prices.PriceOf`), which name no server: those
    entered for the project, those of its servers (the highest if they differ), list prices.
    """

    def __init__(self, own: Mapping[str, Price]) -> None:
        self.own = own

    def __call__(
        self, names: Sequence[str], provider: str, at: datetime | None, service_tier: str
    ) -> Price | None:
        known = [name for name in names if name]
        entered = (self.own[name] for name in known if name in self.own)
        listed = (
            price
            for name in known
            if (price := list_price(name, provider=provider, at=at, service_tier=service_tier))
        )
        return next(entered, None) or next(listed, None)


_books: dict[int, tuple[float, PriceBook]] = {}


def prices_of(project: Project) -> PriceBook:
    now = time.monotonic()
    read_at, book = _books.get(project.pk, (-REMEMBERED_S, None))
    if book is None or now - read_at >= REMEMBERED_S:
        book = PriceBook(_entered(project))
        _books[project.pk] = now, book
    return book


def forget_prices(project: Project) -> None:
    _books.pop(project.pk, None)


def _entered(project: Project) -> dict[str, Price]:
    own: dict[str, Price] = {}
    for server in Server.objects.filter(project=project).only("name", "prices"):
        for model, numbers in server.prices.items():
            price = _own(numbers, f"server {server.name}")
            own[model] = _highest(price, own[model]) if model in own else price
    own.pop("*", None)
    entered = ModelPrice.objects.filter(project=project)
    return own | {row.model: row.as_price for row in entered}


def _own(numbers: Sequence[float | None], source: str) -> Price:
    """`numbers`: input, output, and, if they have prices of their own, cached read and write."""
    return Price(*numbers[:4], source=source)


def _highest(one: Price, other: Price) -> Price:
    def of(name: str) -> float | None:
        known = [n for price in (one, other) if (n := getattr(price, name)) is not None]
        return max(known, default=None)

    source = one.source if one.source == other.source else f"{other.source}, {one.source}"
    return Price(of("input"), of("output"), of("cache_read"), of("cache_write"), source=source)


def read_prices(text: str) -> dict[str, list[float | None]]:
    """Lines of “model input output”, and “cached=…” and “write=…” where cached tokens have prices
    of their own. Raises ValueError with a sentence.
    """
    prices: dict[str, list[float | None]] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            model, numbers = _read_line(line)
        except ValueError as error:
            raise ValueError(
                f"Line {number}: write a model's name and two prices, for instance “gpt-4o-mini"
                " 0.15 0.60”, and “cached=0.075” or “write=0.19” behind them for cached tokens."
            ) from error
        prices[model] = numbers
    if len(prices) > MOST_PRICES:
        raise ValueError(f"{len(prices)} prices; {MOST_PRICES} is the most.")
    return prices


def _read_line(line: str) -> tuple[str, list[float | None]]:
    words = line.split()
    cached: dict[str, float] = {}
    while words and words[-1].partition("=")[0] in CACHED and "=" in words[-1]:
        name, _, price = words.pop().partition("=")
        cached[name] = float(price)
    model, *prices = " ".join(words).rsplit(maxsplit=2)
    numbers = [float(price) for price in prices]
    given = [*numbers, *cached.values()]
    if len(numbers) != 2 or not all(0 <= price <= LARGEST for price in given):
        raise ValueError(line)
    return model.strip(), numbers + ([cached.get(name) for name in CACHED] if cached else [])


def write_prices(prices: Mapping[str, Sequence[float | None]]) -> str:
    """Lines in the format that `read_prices` parses."""
    return "\n".join(_written(model, price) for model, price in sorted(prices.items()))


def _written(model: str, price: Sequence[float | None]) -> str:
    cached = (
        f" {name}={number:g}"
        for name, number in zip(CACHED, price[2:], strict=False)
        if number is not None
    )
    return f"{model} {price[0]:g} {price[1]:g}" + "".join(cached)
