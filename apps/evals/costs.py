"""The cost of an evaluation's answers, by the prices of its engine when it was started."""

from __future__ import annotations

import math

from django.db.models import Sum

from apps.evals.models import EvalRun
from workers.lib.prices import PER_MILLION, Price, price_from_json
from workers.lib.token_usage import Usage


def price_of(run: EvalRun) -> Price | None:
    """None if unknown. That of short inputs: a sample does not say into which calls its tokens are
    cut, nor which of them were cached.
    """
    price = price_from_json((run.spec.get("engine") or {}).get("price"))
    return price.base if price else None


def cost(price: Price | None, tokens_in: int | None, tokens_out: int | None) -> float | None:
    """In USD; None without a price or a count."""
    if price is None or tokens_in is None or tokens_out is None:
        return None
    return price.of(Usage(tokens_in, tokens_out))


def rates_of(price: Price | None) -> tuple[float, float]:
    """USD per token of input and output, for sums of many; not a number without a price."""
    if price is None:
        return math.nan, math.nan
    return price.input / PER_MILLION, price.output / PER_MILLION


def used_in_words(run: EvalRun) -> str:
    """How much of its limits a called agent has used; "" if it has none."""
    spent, engine = run.result.get("spent"), run.spec.get("engine") or {}
    if not spent:
        return ""
    said = []
    if most := engine.get("most_tokens"):
        silent = f" ({spent['without_tokens']:,} reported none: {engine['tokens_per_call']:,} each)"
        said.append(
            f"{spent['tokens']:,} of {most:,} tokens{silent if spent['without_tokens'] else ''}"
        )
    if most := engine.get("most_usd"):
        silent = f" ({spent['without_cost']:,} reported none: ${engine['usd_per_call']:g} each)"
        said.append(f"${spent['usd']:,.4f} of ${most:g}{silent if spent['without_cost'] else ''}")
    return f"{spent['calls']:,} calls: {', '.join(said)}"


def total_cost(run: EvalRun) -> float | None:
    """Of all its samples with known tokens; None without a price."""
    price = price_of(run)
    if price is None:
        return None
    found = run.samples.aggregate(tokens_in=Sum("input_tokens"), tokens_out=Sum("output_tokens"))
    return cost(price, found["tokens_in"] or 0, found["tokens_out"] or 0)
