"""What tokens cost: the price of a model, and the cost of its calls. Pure; nothing is downloaded.

The list prices of providers come from the package genai-prices, which carries them as data, with
the prices of cached tokens, tiers of long inputs, and when a price began. Its updates over the
network are never switched on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Literal

from msgspec import Struct, convert, field, to_builtins
from msgspec.structs import replace

from workers.lib.token_usage import Usage
from workers.lib.typed import NotNegative

PER_MILLION, PER_THOUSAND = 1e6, 1e3
# What can have a price of its own, and what it is a part of: tokens of a part without a price cost
# what the whole costs. The deepest come first.
UNITS: dict[str, tuple[str, ...]] = {
    "cache_write_1h": ("cache_write", "input"),
    "cache_audio_read": ("cache_read", "input_audio", "input"),
    "cache_image_read": ("cache_read", "input_image", "input"),
    "cache_read": ("input",),
    "cache_write": ("input",),
    "input_audio": ("input",),
    "input_image": ("input",),
    "input_video": ("input",),
    "output_audio": ("output",),
    "output_image": ("output",),
    "output_video": ("output",),
    "output_reasoning": ("output",),
    "input": (),
    "output": (),
    "output_citation": (),
}
OF_A_CALL = ("requests", "web_searches")  # priced per thousand

Basis = Literal["", "sent", "priced", "at_least"]
UNKNOWN, SENT, PRICED, AT_LEAST = "", "sent", "priced", "at_least"
COMPLETE = (SENT, PRICED)


class Tier(Struct, frozen=True):
    """Prices of all tokens of a call whose input is longer than `above`."""

    above: int
    rates: dict[str, NotNegative]


class Price(Struct, frozen=True, omit_defaults=True):
    """USD per million tokens. Cached tokens without a price of their own cost what input costs.

    more:   further rates by the names of UNITS, and those OF_A_CALL per thousand
    tiers:  from the shortest input to the longest
    source: whose price it is, for pages
    """

    input: NotNegative = 0.0
    output: NotNegative = 0.0
    cache_read: NotNegative | None = None
    cache_write: NotNegative | None = None
    more: dict[str, NotNegative] = field(default_factory=dict)
    tiers: list[Tier] = field(default_factory=list)
    source: str = ""

    @property
    def is_free(self) -> bool:
        rates = (self.rates(0), *(tier.rates for tier in self.tiers))
        return not any(any(each.values()) for each in rates)

    @property
    def base(self) -> Price:
        """That of short inputs."""
        return replace(self, tiers=[])

    def of(self, usage: Usage) -> float:
        """The price in USD of one call."""
        rates = self.rates(usage.input_tokens or 0)
        counts = _counts(usage)
        left: dict[str, int] = {}
        for unit in UNITS:
            if unit not in rates:
                continue
            inside = sum(n for other, n in left.items() if unit in UNITS[other])
            left[unit] = max(counts.get(unit, 0) - inside, 0)
        tokens = sum(rates[unit] * n for unit, n in left.items()) / PER_MILLION
        calls = {"requests": 1, "web_searches": usage.parts.get("web_searches", 0)}
        return tokens + sum(rates.get(unit, 0.0) * n for unit, n in calls.items()) / PER_THOUSAND

    def most(self, usage: Usage) -> float:
        """Of a call that has at most these tokens, whether or not they are written to a cache."""
        cached = replace(usage, cache_write_tokens=usage.input_tokens)
        return max(self.of(usage), self.of(cached))

    def rates(self, input_tokens: int) -> dict[str, float]:
        """The rates of a call with so many input tokens, by unit."""
        rates = {"input": self.input, "output": self.output} | self.more
        rates |= {"cache_read": self.cache_read} if self.cache_read is not None else {}
        rates |= {"cache_write": self.cache_write} if self.cache_write is not None else {}
        for tier in self.tiers:
            if input_tokens > tier.above:
                rates |= tier.rates
        return rates

    def is_by_call(self, input_tokens: int) -> bool:
        """Whether the price of several calls together depends on how they are cut: one may have
        crossed a tier, or each costs something.
        """
        return "requests" in self.more or any(input_tokens > tier.above for tier in self.tiers)


def price_as_json(price: Price | None) -> dict[str, Any] | None:
    """As specs keep it."""
    return to_builtins(price) if price else None


def price_from_json(kept: Any) -> Price | None:
    return convert(kept, Price) if kept is not None else None


class Cost(Struct, frozen=True):
    """What calls cost. `basis`: reported by who sent it, computed from a price, or only what is
    known of it (at least); with an unknown cost `usd` is None.
    """

    usd: float | None = None
    basis: Basis = UNKNOWN

    @property
    def is_complete(self) -> bool:
        return self.basis in COMPLETE


# The price of a model: its names (as it answered, as it was asked for), its provider, when, and the
# service tier. None is unknown.
PriceOf = Callable[[tuple[str, ...], str, datetime | None, str], Price | None]


def cost_of(
    usage: Usage,
    price: Price | None,
    *,
    calls: int = 1,
    price_of_model: Callable[[str], Price | None] = lambda model: None,
) -> Cost:
    """A cost that was sent wins. Of several calls counted together whose price depends on each,
    the least is known. `price_of_model`: of requests that name another model than their call.
    """
    if usage.cost_usd is not None:
        return Cost(usage.cost_usd, SENT)
    if usage.billed:
        return total_cost(
            cost_of(each, price_of_model(model) if model else price) for model, each in usage.billed
        )
    if price is None or usage.input_tokens is None or usage.output_tokens is None:
        return Cost()
    if calls == 1 or not price.is_by_call(usage.input_tokens):
        return Cost(price.of(usage), PRICED)
    return Cost(price.base.of(usage), AT_LEAST)


def total_cost(costs: Iterable[Cost]) -> Cost:
    """Several together: at least what is known if not all of them are, unknown if none is."""
    costs = list(costs)
    known = [cost.usd for cost in costs if cost.usd is not None]
    if not known:
        return Cost()
    bases = {cost.basis for cost in costs}
    basis: Basis = SENT if bases == {SENT} else PRICED if bases <= {SENT, PRICED} else AT_LEAST
    return Cost(sum(known), basis)


def list_price(
    model: str,
    *,
    provider: str = "",
    base_url: str = "",
    at: datetime | None = None,
    service_tier: str = "",
) -> Price | None:
    """The provider's price of a model, or None if it is not known. Without a provider or the
    address of its API the model's name decides; one that is named but unknown serves models at
    prices of its own.
    """
    if not model or len(model) > 200:
        return None
    at = at or datetime.now(UTC)
    in_utc = at if at.tzinfo is UTC else at.astimezone(UTC)
    minute = in_utc.replace(second=0, microsecond=0)
    return _list_price(model, provider, base_url, minute, service_tier)


@lru_cache(4_096)
def _list_price(
    model: str, provider: str, base_url: str, at: datetime, service_tier: str
) -> Price | None:
    from genai_prices import Usage as NoUsage  # a second and 30 MB
    from genai_prices import calc_price

    context = dict.fromkeys(CONTEXT, service_tier.lower()) if service_tier else None
    for name, where in _places(model, provider, base_url):
        try:
            found = calc_price(
                NoUsage(), name, genai_request_timestamp=at, price_context=context, **where
            )
        except (LookupError, ValueError):
            continue
        return _price(vars(found.model_price), f"{found.provider.name} list price")
    return None


CONTEXT = ("service_tier", "processing", "speed")  # where the package says what a tier's name means
DATED = re.compile(r"-(20\d\d-\d\d-\d\d|20\d{6})$")
# As OpenTelemetry and SDKs name providers that the package knows by another name.
PROVIDERS = {
    "azure.ai.openai": "azure",
    "azure.ai.inference": "azure",
    "az": "azure",  # the first part of the names of a cloud's services
    "gcp": "google",
}

# That name themselves as the provider: whose the model is, its name says.
FRAMEWORKS = frozenset(
    (
        "agno",
        "autogen",
        "crewai",
        "langchain",
        "langgraph",
        "microsoft.agent_framework",
        "semantic_kernel",
        "smolagents",
        "strands-agents",
    )
)


def _places(model: str, provider: str, base_url: str) -> list[tuple[str, dict[str, Any]]]:
    """Where to look for the model, and by which name: a version whose date is not listed costs what
    the model does. Its own provider's name before it and the kind of request after it, as in
    `openai/gpt-x:chat`, change no price; those of another may (OpenRouter's `:free`).
    """
    models = dict.fromkeys((model, DATED.sub("", model)))
    if provider and model.startswith(f"{provider}/"):
        bare = model.removeprefix(f"{provider}/").partition(":")[0]
        models |= dict.fromkeys((bare, DATED.sub("", bare)))
    if base_url:
        return [(name, {"provider_api_url": base_url}) for name in models]
    if provider and provider not in FRAMEWORKS:
        return [(name, {"provider_id": each}) for name in models for each in _ids_of(provider)]
    places: list[tuple[str, dict[str, Any]]] = [(name, {}) for name in models]
    for mark in "/:":
        owner, _, name = model.partition(mark)
        names = filter(None, (name, name.partition(":")[2]))  # `openai:chat:gpt-x`
        places += [(each, {"provider_id": one}) for each in names for one in _ids_of(owner)]
    return places


def _ids_of(provider: str) -> list[str]:
    """What the package may call a provider."""
    names = (provider, provider.partition(".")[0])
    ids = [PROVIDERS.get(name, name) for name in names]
    ids += [known for name in names if (known := _provider_ids().get(_letters(name)))]
    return list(dict.fromkeys(ids))


@lru_cache(1)
def _provider_ids() -> dict[str, str]:
    """The package's ids of providers by their letters, also with the “AI” that some add."""
    from genai_prices.data import providers

    ids = {_letters(provider.id): provider.id for provider in providers}
    return {f"{letters}ai": known for letters, known in ids.items()} | ids


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _price(prices: dict[str, Any], source: str) -> Price | None:
    """A price of the package's. None if it is of no tokens."""
    rates: dict[str, float] = {}
    tiers: dict[int, dict[str, float]] = {}
    for key, value in prices.items():
        unit = UNIT_OF.get(key)
        if unit is None or value is None:
            continue
        rates[unit] = float(getattr(value, "base", value))
        for tier in getattr(value, "tiers", ()):
            tiers.setdefault(tier.start, {})[unit] = float(tier.price)
    if "input" not in rates:
        return None
    return Price(
        rates.pop("input"),
        rates.pop("output", 0.0),
        rates.pop("cache_read", None),
        rates.pop("cache_write", None),
        rates,
        [Tier(start, tiers[start]) for start in sorted(tiers)],
        source,
    )


UNIT_OF = {f"{unit}_mtok": unit for unit in UNITS} | {f"{unit}_kcount": unit for unit in OF_A_CALL}


def _counts(usage: Usage) -> dict[str, int]:
    return usage.parts | {
        "input": usage.input_tokens or 0,
        "output": usage.output_tokens or 0,
        "cache_read": usage.cache_read_tokens or 0,
        "cache_write": usage.cache_write_tokens or 0,
        "output_reasoning": usage.reasoning_tokens or 0,
    }
