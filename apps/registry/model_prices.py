"""Prices that a project enters for models, and which of the models that its runs used have none."""

from __future__ import annotations

from typing import Annotated, Any

from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone
from msgspec import Meta, Struct
from msgspec.structs import asdict

from apps.core.actions import audit
from apps.core.bus import Event, Question, ask, publish
from apps.core.errors import Rejected
from apps.core.models import Project
from apps.core.openapi import LINE, sent
from apps.core.operations import Page, Rest, operation
from apps.registry.models import ModelPrice
from apps.registry.prices import LARGEST, forget_prices, prices_of
from workers.lib.prices import Price

MOST = 500  # prices of a project
Dollars = Annotated[float, Meta(ge=0, le=LARGEST)]


def dollars(title: str, description: str = "") -> Any:
    return Annotated[Dollars, Meta(title=title, description=description or None)]


class PriceEntered(Event):
    """From now on a model has a price in this project."""

    project: Project
    model: str


class ModelUse(Struct, kw_only=True):
    """What a project's runs of the last 90 days used of a model. `unpriced` are those whose cost
    is unknown or not complete.
    """

    model: str
    runs: int
    unpriced: int
    input_tokens: int
    output_tokens: int
    cost_usd: float


class ModelsUsed(Question[list[ModelUse]]):
    project: Project


class TooManyPrices(Rejected):
    """A project has as many prices as it may have."""


class NewPrice(Struct, forbid_unknown_fields=True, kw_only=True):
    """In USD per million tokens."""

    model: Annotated[
        str,
        Meta(
            title="Model",
            min_length=1,
            max_length=200,
            pattern=LINE,
            description="As runs name it",
            examples=["qwen3-32b"],
        ),
    ]
    input: dollars("Input", "USD per million tokens")  # type: ignore[valid-type]
    output: dollars("Output", "USD per million tokens")  # type: ignore[valid-type]
    cache_read: (
        dollars("Cached input", "Read from a cache. If empty, as input") | None  # type: ignore[valid-type]
    ) = None
    cache_write: (
        dollars("Cache write", "Written to a cache. If empty, as input") | None  # type: ignore[valid-type]
    ) = None


class PriceOut(NewPrice):
    id: int


class PriceInUse(Struct, kw_only=True):
    """`source` is whose price it is: the project's, a server's, or a provider's list price."""

    input: float
    output: float
    cache_read: float | None
    cache_write: float | None
    source: str


class ModelUseOut(ModelUse):
    price: PriceInUse | None


@operation(
    "model_prices_list",
    rest=Rest("GET", "model-prices/", "model_prices"),
    gives=list[PriceOut],
)
def model_prices(*, project: Project) -> QuerySet[ModelPrice]:
    """The prices that were entered for this project, in USD per million tokens."""
    return project.model_prices.all()


@operation(
    "model_prices_used",
    rest=Rest("GET", "model-prices/used/", "model_prices_used"),
    gives=list[ModelUseOut],
)
def models_used(*, project: Project) -> list[ModelUseOut]:
    """The models that runs of the last 90 days used, with their prices; those without a known cost
    come first.
    """
    prices, now = prices_of(project), timezone.now()
    used = [use for uses in ask(ModelsUsed(project)) for use in uses]
    rows = [
        ModelUseOut(**asdict(use), price=_in_use(prices((use.model,), "", now, ""))) for use in used
    ]
    return sorted(rows, key=lambda row: (row.price is not None, not row.unpriced, -row.runs))


def _in_use(price: Price | None) -> PriceInUse | None:
    return price and PriceInUse(
        **{name: getattr(price, name) for name in PriceInUse.__struct_fields__}
    )


@operation(
    "model_prices_set",
    rest=Rest("POST", "model-prices/", "model_prices", 201),
    page=Page(
        "prices/set/",
        "price_set",
        template="registry/price_form.html",
        then="registry:prices",
        done="The price of {returned} is saved. Runs whose cost was unknown get theirs in the"
        " background.",
    ),
    gives=PriceOut,
    examples=(sent("Set", {"model": "qwen3-32b", "input": 0.3, "output": 0.9}),),
    says={"model_price.set": "set the price of {model}[ to ${input} in, ${output} out]"},
)
@transaction.atomic
def set_price(*, project: Project, by: Any, given: NewPrice) -> ModelPrice:
    """Enters the price of a model, or replaces it. It holds for runs that arrive from now on, and
    for those whose cost is not known; a cost that runs have stays.

    Raises TooManyPrices.
    """
    Project.objects.select_for_update().get(pk=project.pk)
    others = project.model_prices.exclude(model=given.model)
    if others.count() >= MOST:
        raise TooManyPrices(f"{project} has {MOST} prices, which is the most. Remove one first.")
    fields = asdict(given)
    row, _ = ModelPrice.objects.update_or_create(
        project=project, model=fields.pop("model"), defaults=fields
    )
    audit(
        "model_price.set",
        project=project,
        by=by,
        model=row.model,
        input=f"{row.input:g}",
        output=f"{row.output:g}",
    )
    forget_prices(project)
    publish(PriceEntered(project, row.model))
    return row


@operation(
    "model_prices_remove",
    rest=Rest("DELETE", "model-prices/<int:pk>/", "model_price"),
    page=Page(
        "prices/<int:pk>/remove/",
        "price_remove",
        then="registry:prices",
        done="The price of {target} is removed.",
    ),
    says={"model_price.removed": "removed the price of {model}"},
)
@transaction.atomic
def remove_price(*, price: ModelPrice, by: Any) -> None:
    """Removes a price that was entered. Costs that runs have stay."""
    audit("model_price.removed", project=price.project, by=by, model=price.model)
    price.delete()
    forget_prices(price.project)
