"""What a run used and what it cost: summed over its model calls, each at the price of its model.
Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

import msgspec

from apps.trajectories.schema import BASES, MAX_COST_USD, ModelCall, Parsed
from workers.lib import token_usage
from workers.lib.prices import COMPLETE, SENT, Cost, Price, PriceOf, cost_of, total_cost
from workers.lib.token_usage import Usage, parse
from workers.lib.typed import know

LARGEST = MAX_COST_USD - 1


def no_price(names: tuple[str, ...], provider: str, at: datetime | None, tier: str) -> None:
    """Of a project without prices."""


def usage_of_calls(calls: list[dict[str, Any]]) -> dict[str, Any]:
    """A row's usage from its model calls, each `{usage, model, …}`. Its cost is theirs only where
    each call says what it cost.
    """
    summed = token_usage.total(parse(call["usage"]) for call in calls).counts
    if not all("cost_usd" in call["usage"] and "cost_basis" not in call["usage"] for call in calls):
        summed.pop("cost_usd", None)
    return summed | {"calls": calls} if calls else {}


def columns_of(parsed: Parsed, price_of: PriceOf) -> dict[str, Any]:
    """The columns of a run that count tokens and money."""
    cost = cost_of_run(parsed, price_of)
    counted = {name: getattr(parsed.used, name) for name in token_usage.TOKENS}
    usd = None if cost.usd is None else min(cost.usd, LARGEST)
    return counted | {"cost_usd": usd, "cost_basis": cost.basis}


def cost_of_run(parsed: Parsed, price_of: PriceOf) -> Cost:
    """A cost that was sent for the whole run wins over those of its calls."""
    row = parsed.row
    if row.usage.cost_usd is not None:
        return Cost(row.usage.cost_usd, row.usage.cost_basis or SENT)
    if row.usage.calls:
        return _cost_of_calls(row.usage.calls, row.model, row.started_at, price_of)
    calls = sum(message.role == "assistant" for message in row.messages)
    used = parsed.used
    return _priced(used, (row.model,), "", row.started_at, price_of, calls=max(calls, 1))


def _cost_of_calls(
    calls: Iterable[ModelCall], model: str, at: datetime | None, price_of: PriceOf
) -> Cost:
    return total_cost(
        _cost(
            call.usage,
            tuple(filter(None, (call.model, call.request_model))) or (model,),
            call.provider,
            call.at or at,
            price_of,
        )
        for call in calls
    )


def metadata_of(parsed: Parsed, cost_basis: str, price_of: PriceOf) -> dict[str, Any]:
    """As it is stored: with the cost of each model step. Where the cost is not complete and no step
    says what was counted, the calls of the usage are kept, each to be priced later.
    """
    metadata = with_costs(parsed.metadata, price_of, parsed.row.started_at)
    calls, usage = parsed.row.usage.calls, metadata.get("usage", {})
    if cost_basis in COMPLETE or not calls or _counted_steps(metadata):
        return metadata
    if not isinstance(usage, dict):
        return metadata
    return metadata | {"usage": usage | {"calls": msgspec.to_builtins(calls)}}


def _counted_steps(metadata: dict[str, Any]) -> list[dict]:
    steps = metadata.get("steps")
    return [
        step
        for step in (steps if isinstance(steps, list) else [])
        if isinstance(step, dict)
        and step.get("kind") == "model"
        and parse(token_usage.counting(step)).is_known
    ]


def _kept_calls(metadata: dict[str, Any]) -> list[ModelCall]:
    usage = metadata.get("usage")
    know(ModelCall)
    try:
        return msgspec.convert(usage["calls"], list[ModelCall]) if usage else []
    except (LookupError, TypeError, msgspec.ValidationError):  # metadata may hold anything
        return []


def with_costs(metadata: dict[str, Any], price_of: PriceOf, at: datetime | None) -> dict[str, Any]:
    """The metadata, whose model steps also have what they cost where their sender did not say."""
    steps = metadata.get("steps")
    if not isinstance(steps, list):
        return metadata
    return metadata | {"steps": [_step(step, price_of, at) for step in steps]}


def cost_of_stored(
    metadata: dict[str, Any],
    used: Usage,
    model: str,
    at: datetime | None,
    answers: int,
    price_of: PriceOf,
) -> Cost:
    """Of a run that is stored: of its model steps, whose `metadata` has been given `with_costs`,
    else of the calls that were kept, else of its counts. `answers`: messages of the model.
    """
    counted = _counted_steps(metadata)
    if not counted and (calls := _kept_calls(metadata)):
        return _cost_of_calls(calls, model, at, price_of)
    if not counted:
        return _priced(used, (model,), "", at, price_of, calls=max(answers, 1))
    unknown = metadata.get("uncounted_calls") or metadata.get("steps_omitted")
    known = [Cost(step.get("cost_usd"), step.get("cost_basis") or SENT) for step in counted]
    known = [cost if cost.usd is not None else Cost() for cost in known]
    return total_cost([*known, *([Cost()] if unknown else [])])


def _step(step: Any, price_of: PriceOf, at: datetime | None) -> Any:
    if not isinstance(step, dict) or step.get("kind") != "model" or "cost_usd" in step:
        return step
    names = [step.get(name) for name in ("model", "request_model")]
    names = tuple(name for name in names if isinstance(name, str))
    provider = step.get("provider")
    cost = _cost(step, names, provider if isinstance(provider, str) else "", at, price_of)
    return step if cost.usd is None else step | {"cost_usd": cost.usd, "cost_basis": cost.basis}


def _cost(
    sent: dict[str, Any],
    names: tuple[str, ...],
    provider: str,
    at: datetime | None,
    price_of: PriceOf,
) -> Cost:
    used = parse(token_usage.counting(sent))
    if used.cost_usd is not None:
        basis = sent.get("cost_basis")
        return Cost(used.cost_usd, basis if basis in BASES and basis else SENT)
    return _priced(used, names, provider, at, price_of)


def _priced(
    used: Usage,
    names: tuple[str, ...],
    provider: str,
    at: datetime | None,
    price_of: PriceOf,
    *,
    calls: int = 1,
) -> Cost:
    if not used.is_known:
        return Cost()

    def price_of_model(model: str) -> Price | None:
        return price_of((model,), provider, at, used.service_tier)

    price = price_of(names, provider, at, used.service_tier)
    return cost_of(used, price, calls=calls, price_of_model=price_of_model)
