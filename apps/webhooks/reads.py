"""What is read of webhooks."""

from __future__ import annotations

from typing import Literal

from django.db.models import QuerySet

from apps.core.models import Project, Role
from apps.core.operations import Paged, Rest, operation
from apps.core.routes import SHOWS_TOTALS
from apps.core.scopes import Scope
from apps.webhooks import schema
from apps.webhooks.models import Delivery, DeliveryState, Webhook

StateName = Literal[tuple(DeliveryState.values)]  # type: ignore[valid-type]


@operation(
    "webhooks_list",
    rest=Rest("GET", "webhooks/", "webhooks"),
    gives=list[schema.WebhookOut],
    role=Role.OPERATOR,
    scope=Scope.MANAGE,
)
def webhooks(*, project: Project) -> QuerySet[Webhook]:
    """The project's webhooks."""
    return project.webhooks.all()


@operation(
    "webhooks_read",
    rest=Rest("GET", "webhooks/<uuid:pk>/", "webhook"),
    gives=schema.WebhookOut,
    role=Role.OPERATOR,
    scope=Scope.MANAGE,
)
def webhook(*, hook: Webhook) -> Webhook:
    """One webhook: whether it is enabled, failing or disabled, and why."""
    return hook


@operation(
    "webhooks_deliveries",
    rest=Rest("GET", "webhooks/<uuid:pk>/deliveries/", "deliveries"),
    gives=Paged(schema.DeliveryOut),
    role=Role.OPERATOR,
    scope=Scope.MANAGE,
)
def deliveries(*, hook: Webhook, state: StateName | None = None) -> QuerySet[Delivery]:
    """Deliveries, newest first; kept for 30 days."""
    rows = hook.deliveries.defer("body")
    return rows.filter(state=state) if state else rows


@operation(
    "webhook_deliveries_read",
    rest=Rest("GET", "webhook-deliveries/<uuid:pk>/", "delivery"),
    gives=schema.WholeDeliveryOut,
    role=Role.OPERATOR,
    scope=Scope.MANAGE,
    within="webhook__project",
    shows=SHOWS_TOTALS,
)
def delivery(*, row: Delivery) -> Delivery:
    """A delivery with its body and every attempt."""
    return row
