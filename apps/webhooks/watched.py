"""What can be wrong with what others are sent (`core.watching`)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from django.db.models import Count, Min
from django.db.models.functions import Now
from django.utils import timezone

from apps.core.watching.conditions import Finding, Severity, condition
from apps.core.watching.measures import Values, measured
from apps.webhooks.models import Delivery, DeliveryState, Webhook

LATE = timedelta(minutes=5)
FAILING = timedelta(minutes=30)


@condition(
    "webhooks_late",
    "Webhooks are not sent",
    todo="Look whether beat and the workers of the queue “default” run: they send what is due.",
    severity=Severity.WARNING,
)
def late() -> Iterator[Finding]:
    due = Delivery.objects.due().filter(due_at__lt=Now() - LATE)
    oldest = due.order_by("due_at").values_list("due_at", flat=True).first()
    if oldest is not None:
        yield Finding("Deliveries that are due have not been tried.", since=oldest)


@condition(
    "webhook_failing",
    "A webhook is refused",
    todo="Its receiver is down or refuses what it is sent: read the answers on the webhook's page.",
    severity=Severity.WARNING,
    for_operators=True,
)
def failing() -> Iterator[Finding]:
    hooks = Webhook.objects.enabled().filter(failing_since__lt=Now() - FAILING)
    for hook in hooks.select_related("project"):
        yield Finding(
            f"A webhook of the project {hook.project.slug} has failed since then.",
            f"{hook.project.slug}/{hook.pk}",
            hook.failing_since,
            hook.get_absolute_url(),
        )


@measured("flywheel_webhook_deliveries", "Deliveries of the last day by state", ["state"])
def deliveries() -> Values:
    recent = Delivery.objects.filter(created_at__gt=Now() - timedelta(days=1)).order_by()
    found = dict(recent.values_list("state").annotate(count=Count("pk")))
    return {(state,): found.get(state, 0) for state in DeliveryState.values}


@measured("flywheel_webhook_due", "Deliveries that are due and have not been sent")
def due() -> Values:
    return {(): Delivery.objects.due().count()}


@measured("flywheel_webhook_oldest_seconds", "How long the oldest delivery has been due")
def oldest_due() -> Values:
    since = Delivery.objects.due().aggregate(since=Min("due_at"))["since"]
    return {(): max(0.0, (timezone.now() - since).total_seconds()) if since else 0.0}


@measured("flywheel_webhooks", "Webhooks by state", ["state"])
def webhooks() -> Values:
    enabled = Webhook.objects.enabled()
    failing = enabled.exclude(failing_since=None).count()
    working = enabled.count() - failing
    disabled = Webhook.objects.exclude(disabled_at=None).count()
    return {("enabled",): working, ("failing",): failing, ("disabled",): disabled}
