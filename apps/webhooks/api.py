"""Webhooks over REST: for keys with `manage` whose creator is an operator, as the pages are: an
address may carry a password of its receiver."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.db import transaction
from drf_spectacular.utils import OpenApiParameter, extend_schema
from msgspec import UNSET
from rest_framework.decorators import api_view
from rest_framework.exceptions import NotFound
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core.openapi import JSON, described, page, results
from apps.core.paging import keyset
from apps.core.query import number_of, whole_number
from apps.webhooks import actions, schema
from apps.webhooks.models import Delivery, DeliveryState, Event, Webhook
from workers.lib.typed import convert

PAGE, MAX_PAGE = 50, 200


def _hook(request: Request, pk: UUID) -> Webhook:
    found = (
        Webhook.objects.filter(project=request.auth.project, pk=pk)
        .select_related("project")
        .first()
    )
    if found is None:
        raise NotFound("No webhook of this project has this id.")
    return found


def _delivery(request: Request, pk: UUID) -> Delivery:
    rows = Delivery.objects.filter(webhook__project=request.auth.project).select_related(
        "webhook__project"
    )
    found = rows.filter(pk=pk).first()
    if found is None:
        raise NotFound("No delivery of this project's webhooks has this id.")
    return found


@extend_schema(
    methods=["GET"],
    operation_id="v1_webhooks_list",
    responses=described({200: results(schema.WEBHOOK)}, 403),
    description="The project's webhooks.",
)
@extend_schema(
    methods=["POST"],
    operation_id="v1_webhooks_add",
    request={JSON: schema.NEW},
    responses=described({201: schema.NEW_WEBHOOK}, 400, 403, 409),
    examples=[schema.NEW_EXAMPLE, schema.MADE_EXAMPLE],
    description=(
        "Adds a URL that receives events. The response contains the signing secret, which is shown"
        " only once."
    ),
)
@api_view(["GET", "POST"])
def collection(request: Request) -> Response:
    project = request.auth.project
    if request.method == "GET":
        return Response({"results": [schema.webhook_json(hook) for hook in project.webhooks.all()]})
    given = convert(request.data, schema.NewWebhook)
    hook, secret = actions.create_webhook(
        project=project,
        url=given.url,
        events=given.events or Event.values,
        description=given.description,
        format=given.format,
        by=request.auth.created_by,
    )
    return Response(schema.webhook_json(hook) | {"secret": secret}, status=201)


@extend_schema(
    methods=["GET"],
    operation_id="v1_webhooks_read",
    responses=described({200: schema.WEBHOOK}, 403, 404),
    description="One webhook: whether it is enabled, failing or disabled, and why.",
)
@extend_schema(
    methods=["PATCH"],
    operation_id="v1_webhooks_edit",
    request={JSON: schema.CHANGES},
    responses=described({200: schema.WEBHOOK}, 400, 403, 404),
    description="Changes the fields that are sent.",
)
@extend_schema(
    methods=["DELETE"],
    operation_id="v1_webhooks_delete",
    responses=described({}, 403, 404) | {204: None},
    description="Deletes it with its log.",
)
@api_view(["GET", "PATCH", "DELETE"])
def item(request: Request, pk: UUID) -> Response:
    hook, by = _hook(request, pk), request.auth.created_by
    if request.method == "DELETE":
        actions.delete_webhook(hook=hook, by=by)
        return Response(status=204)
    if request.method == "PATCH":
        _change(hook, convert(request.data, schema.WebhookChanges), by)
        hook.refresh_from_db()
    return Response(schema.webhook_json(hook))


@transaction.atomic
def _change(hook: Webhook, given: schema.WebhookChanges, by: Any) -> None:
    """Raises WebhookError."""
    asked = {name: getattr(given, name) for name in ("url", "events", "description", "format")}
    changes = {name: value for name, value in asked.items() if value is not UNSET}
    if changes:
        old = {
            "url": hook.url,
            "events": hook.events,
            "description": hook.description,
            "format": hook.format,
        }
        actions.edit_webhook(hook=hook, by=by, **old | changes)
    if given.enabled is True:
        actions.enable(hook=hook, by=by)
    elif given.enabled is False:
        actions.disable(hook=hook, by=by)


@extend_schema(
    operation_id="v1_webhooks_new_secret",
    request=None,
    responses=described({200: schema.ROTATED}, 403, 404),
    description=(
        "Creates a new signing secret, returned only here. Requests are also signed with the old"
        " one for 24 hours."
    ),
)
@api_view(["POST"])
def secret(request: Request, pk: UUID) -> Response:
    hook = _hook(request, pk)
    made = actions.rotate_secret(hook=hook, by=request.auth.created_by)
    hook.refresh_from_db()
    return Response({"secret": made, "old_until": hook.old_until})


@extend_schema(
    operation_id="v1_webhooks_test",
    request=None,
    responses=described({202: schema.DELIVERY}, 403, 404),
    description=(
        "Sends `webhook.test` with a single attempt, even if the webhook is disabled. Poll the"
        " delivery for the outcome."
    ),
)
@api_view(["POST"])
def test(request: Request, pk: UUID) -> Response:
    row = actions.send_test(hook=_hook(request, pk), by=request.auth.created_by)
    row.refresh_from_db()
    return Response(schema.delivery_json(row), status=202)


@extend_schema(
    operation_id="v1_webhooks_deliveries",
    responses=described({200: page(schema.DELIVERY)}, 400, 403, 404),
    parameters=[
        OpenApiParameter("state", enum=DeliveryState.values),
        OpenApiParameter("cursor", description="`next` of the page before"),
        OpenApiParameter("limit", whole_number(1, MAX_PAGE, PAGE)),
    ],
    description="Deliveries, newest first; kept for 30 days.",
)
@api_view(["GET"])
def deliveries(request: Request, pk: UUID) -> Response:
    rows, query = _hook(request, pk).deliveries.defer("body"), request.query_params
    if "state" in query:
        rows = rows.filter(state=query["state"])
    found, following = keyset(rows, query.get("cursor", ""), number_of(request, "limit"))
    return Response({"results": [schema.delivery_json(row) for row in found], "next": following})


@extend_schema(
    operation_id="v1_webhook_deliveries_read",
    responses=described({200: schema.WHOLE_DELIVERY}, 403, 404),
    description="A delivery with its body and every attempt.",
)
@api_view(["GET"])
def delivery(request: Request, pk: UUID) -> Response:
    row = _delivery(request, pk)
    log = [schema.attempt_json(attempt) for attempt in row.attempts.all()]
    return Response(schema.delivery_json(row) | {"body": row.body, "log": log})


@extend_schema(
    operation_id="v1_webhook_deliveries_send_again",
    request=None,
    responses=described({202: schema.DELIVERY}, 403, 404, 409),
    description="Resends a finished delivery with the same `webhook-id` and body.",
)
@api_view(["POST"])
def again(request: Request, pk: UUID) -> Response:
    row = _delivery(request, pk)
    actions.send_again(delivery=row, by=request.auth.created_by)
    row.refresh_from_db()
    return Response(schema.delivery_json(row), status=202)
