"""What models runs used, and the cost of those that came before their model had a price."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from django.db import connection, transaction
from django.db.models import Q, QuerySet, Sum
from django.utils import timezone

from apps.core import outbox
from apps.core.bus import on
from apps.core.models import Project
from apps.registry.model_prices import ModelsUsed, ModelUse, PriceEntered
from apps.registry.prices import PriceBook, prices_of
from apps.trajectories import costs, digest
from apps.trajectories.actions import store
from apps.trajectories.ids import floor_of
from apps.trajectories.models import (
    Arrival,
    Content,
    CostBasis,
    MetricCell,
    Trajectory,
    with_content,
)
from apps.trajectories.rollups import Counts
from workers.lib.prices import COMPLETE
from workers.lib.token_usage import TOKENS, Usage

TASK, EXPIRES_S = "trajectories.price_runs", 3600
LAST = timedelta(days=90)
AT_ONCE = 200
SUMMED = ("runs", "unpriced", "input_tokens", "output_tokens", "cost_usd")


@on(ModelsUsed)
def models_used(question: ModelsUsed) -> list[ModelUse]:
    days = MetricCell.objects.filter(
        project=question.project,
        unit="day",
        dimension="model",
        at__gte=timezone.now() - LAST,
        runs__gt=0,
    )
    sums = days.exclude(value="").values("value").annotate(**{n: Sum(n) for n in SUMMED})
    return [
        ModelUse(model=row["value"], **{name: row[name] for name in SUMMED})
        for row in sums.order_by("value")
        if row["input_tokens"] or row["output_tokens"] or row["cost_usd"]
    ]


@on(PriceEntered)
def price_soon(event: PriceEntered) -> None:
    """The message may be lost: entering the price again sends another."""
    transaction.on_commit(
        lambda: outbox.post(TASK, event.project.pk, event.model, expires_s=EXPIRES_S)
    )


def price_runs(project: Project, model: str) -> int:
    """Prices the runs of the last 90 days that have no complete cost and may have used the model.
    Returns how many have a new one.
    """
    prices, changed = prices_of(project), 0
    for pks in _chunks(_unpriced(project, model)):
        changed += _price(project, pks, prices)
    return changed


def _unpriced(project: Project, model: str) -> QuerySet[Trajectory]:
    of_model = Q(terms__contains=[f"model:{model}"]) & ~Q(cost_basis__in=CostBasis.values)
    rows = project.trajectories.filter(of_model | Q(cost_basis=CostBasis.AT_LEAST))
    return rows.filter(pk__gte=floor_of(timezone.now() - LAST)).order_by("pk")


def _chunks(rows: QuerySet[Trajectory]) -> Iterator[list[Any]]:
    pks = list(rows.values_list("pk", flat=True)[:AT_ONCE])
    while pks:
        yield pks
        pks = list(rows.filter(pk__gt=pks[-1]).values_list("pk", flat=True)[:AT_ONCE])


@transaction.atomic
def _price(project: Project, pks: list[Any], prices: PriceBook) -> int:
    counts, changed = Counts(), 0
    locked = Trajectory.objects.filter(pk__in=pks).select_for_update().order_by("pk")
    for row in with_content([row for row in locked if row.cost_basis not in COMPLETE]):
        metadata = costs.with_costs(row.metadata, prices, row.started_at)
        cost = costs.cost_of_stored(
            metadata,
            Usage(*(getattr(row, name) for name in TOKENS)),
            row.model,
            row.started_at,
            sum(message.get("role") == "assistant" for message in row.content["messages"]),
            prices,
        )
        if cost.usd is None or (cost.usd, cost.basis) == (row.cost_usd, row.cost_basis):
            continue
        counts.add(row.pk, {name: getattr(row, name) for name in store.SENT}, -1)
        row.cost_usd, row.cost_basis = cost.usd, cost.basis
        counts.add(row.pk, {name: getattr(row, name) for name in store.SENT})
        row.save(update_fields=["cost_usd", "cost_basis"])
        if metadata != row.metadata:
            row.content = row.content | {"metadata": metadata}
            Content.objects.filter(trajectory_id=row.pk).delete()
            with connection.cursor() as cursor:
                store.copy_content(cursor, [(row.pk, row.content)])
        changed += 1
    if changed:
        Arrival.objects.create(project=project, trajectories=[], counts=counts.as_json())
        transaction.on_commit(digest.wake)
    return changed
