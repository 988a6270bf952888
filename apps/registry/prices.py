"""Prices of providers' models. A server's own prices, edited on its page, take precedence.

List prices in USD per million tokens of input and output, as known to the authors in 2025: good
enough for limits, not for invoices.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from apps.core.models import Project
from apps.registry.models import Server

PRICES: dict[str, dict[str, tuple[float, float]]] = {
    "api.openai.com": {
        "gpt-4o": (2.5, 10.0),
        "gpt-4o-mini": (0.15, 0.6),
        "gpt-4.1": (2.0, 8.0),
        "gpt-4.1-mini": (0.4, 1.6),
        "gpt-4.1-nano": (0.1, 0.4),
        "gpt-5": (1.25, 10.0),
        "gpt-5-mini": (0.25, 2.0),
        "gpt-5-nano": (0.05, 0.4),
    },
}
MOST_PRICES, LARGEST = 200, 100_000.0


def price_of(server: Server, model: str) -> tuple[float, float] | None:
    """(input, output), or None if unknown. “*” in a server's own prices applies to all models
    without their own.
    """
    own = server.prices.get(model) or server.prices.get("*")
    if own:
        return own[0], own[1]
    return PRICES.get(urlsplit(server.base_url).hostname or "", {}).get(model)


def known_prices(project: Project) -> dict[str, tuple[float, float]]:
    """{model: (input, output)} for agents, which name a model but no server: the prices entered for
    the project's servers (the highest if they differ), otherwise the list price.
    """
    entered: dict[str, tuple[float, float]] = {}
    for server in Server.objects.filter(project=project):
        for model, (asked, answered) in server.prices.items():
            other = entered.get(model, (0.0, 0.0))
            entered[model] = max(asked, other[0]), max(answered, other[1])
    entered.pop("*", None)
    return {
        model: price for of_host in PRICES.values() for model, price in of_host.items()
    } | entered


def read_prices(text: str) -> dict[str, list[float]]:
    """Lines of “model input output”. Raises ValueError with a sentence."""
    found: dict[str, list[float]] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            model, *given = line.rsplit(maxsplit=2)
            prices = [float(price) for price in given]
        except ValueError:
            model, prices = "", []
        if (
            not model.strip()
            or len(prices) != 2
            or not all(0 <= price <= LARGEST for price in prices)
        ):
            raise ValueError(
                f"Line {number}: write a model's name and two prices, for instance “gpt-4o-mini"
                " 0.15 0.60”."
            )
        found[model.strip()] = prices
    if len(found) > MOST_PRICES:
        raise ValueError(f"{len(found)} prices; {MOST_PRICES} is the most.")
    return found


def write_prices(prices: dict[str, list[float]]) -> str:
    """Lines in the format that `read_prices` parses."""
    return "\n".join(
        f"{model} {price[0]:g} {price[1]:g}" for model, price in sorted(prices.items())
    )
