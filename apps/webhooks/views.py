"""The pages of webhooks. For operators: an address may carry a password of its receiver."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render

from apps.core.access import project_view
from apps.core.models import Project, Role
from apps.core.paging import page_of
from apps.core.query import PAGE_NUMBER
from apps.core.routes import TOTALS, WHEN_EVALUATED, shows
from apps.webhooks.models import TEST, Delivery, DeliveryState, Event, Webhook
from apps.webhooks.sending import request_headers

ROWS = 30


def _hook(project: Project, pk: UUID) -> Webhook:
    return get_object_or_404(
        Webhook.objects.select_related("project", "created_by"), project=project, pk=pk
    )


OF_LOG = {"state": DeliveryState.values, "event": (*Event.values, TEST), "page": PAGE_NUMBER}


@project_view(Role.OPERATOR, query=OF_LOG)
def detail(request: HttpRequest, project: Project, pk: UUID) -> HttpResponse:
    hook, shown = _hook(project, pk), None
    if (made := request.session.get("new_secret")) and made[0] == str(hook.pk):
        shown = request.session.pop("new_secret")[1]
    context = {"hook": hook, "secret": shown, "events": dict(Event.choices)} | _log(request, hook)
    return render(request, "webhooks/detail.html", context)


@project_view(Role.OPERATOR, query=OF_LOG)
def log(request: HttpRequest, project: Project, pk: UUID) -> HttpResponse:
    """The fragment that asks for itself while something waits."""
    hook = _hook(project, pk)
    return render(request, "webhooks/_log.html", {"hook": hook} | _log(request, hook))


def _log(request: HttpRequest, hook: Webhook) -> dict[str, Any]:
    rows = hook.deliveries.defer("body")
    state, event = request.GET.get("state"), request.GET.get("event")
    if state in DeliveryState.values:
        rows = rows.filter(state=state)
    if event in (*Event.values, TEST):
        rows = rows.filter(event=event)
    page = page_of(request, rows, ROWS)
    return {
        "page": page,
        "states": DeliveryState.choices,
        "kinds": [*Event.values, TEST],
        "filtered": state in DeliveryState.values or event in (*Event.values, TEST),
        "busy": any(row.state == DeliveryState.WAITING for row in page),
    }


@shows(TOTALS, WHEN_EVALUATED)
@project_view(Role.OPERATOR)
def delivery(request: HttpRequest, project: Project, pk: UUID) -> HttpResponse:
    row = _delivery(project, pk)
    context = {
        "row": row,
        "hook": row.webhook,
        "attempts": row.attempts.all(),
        "headers": request_headers(row),
    }
    return render(request, "webhooks/delivery.html", context)


def _delivery(project: Project, pk: UUID) -> Delivery:
    return get_object_or_404(
        Delivery.objects.select_related("webhook__project"), webhook__project=project, pk=pk
    )
