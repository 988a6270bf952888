"""The cost of an evaluation's answers, by the prices of its engine when it was started."""

from __future__ import annotations

from django.db.models import Sum

from apps.evals.models import EvalRun

PER = 1_000_000  # prices are in USD per this many tokens


def price_of(run: EvalRun) -> tuple[float, float] | None:
    """USD per million tokens of input and output; None if unknown."""
    given = (run.spec.get("engine") or {}).get("price")
    return (float(given[0]), float(given[1])) if given else None


def cost(
    price: tuple[float, float] | None, tokens_in: int | None, tokens_out: int | None
) -> float | None:
    """In USD; None without a price or a count."""
    if price is None or tokens_in is None or tokens_out is None:
        return None
    return (price[0] * tokens_in + price[1] * tokens_out) / PER


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
