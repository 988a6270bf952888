"""Actions of webhooks: operators create and change webhooks, other actions announce events.

Webhooks are for operators: an address may carry a password of its receiver.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.core.serializers.json import DjangoJSONEncoder
from django.db import transaction
from django.db.models import ProtectedError
from django.db.models.functions import Now
from django.http import HttpRequest
from django.urls import reverse
from django.utils import timezone

from apps.core import outbox
from apps.core.actions import audit
from apps.core.errors import Rejected
from apps.core.models import Project, Role
from apps.core.operations import Page, Rest, operation
from apps.webhooks import schema, signing, slack
from apps.webhooks.models import TEST, Delivery, DeliveryState, Event, Format, Webhook
from apps.webhooks.schema import Description, Events, FormatName, Url
from workers.lib.outgoing import RefusedAddress, check_url

MOST = 20  # webhooks of a project
OLD_SECRET_FOR = timedelta(hours=24)
SEND = "webhooks.send_due"


class WebhookError(Rejected):
    """Something that may not be done; a sentence for the page. `field`: what it is about."""


def announce(*, project: Project, event: Event, subject: str, data: dict[str, Any]) -> int:
    """Queues an event for every webhook that is told of it, in the caller's transaction: what is
    committed is delivered.

    `data` holds ids, names, verdicts and numbers, never what is held out. Says how many webhooks
    there are.
    """
    hooks = list(Webhook.objects.filter(project=project).told_of(event))
    if hooks:
        content = {"project": project.slug} | data
        body = _body(event, content)
        chat = slack.body(
            event.label, subject, project.name, content.get("page", project.get_absolute_url())
        )
        Delivery.objects.bulk_create(
            Delivery(
                webhook=hook,
                event=event,
                subject=subject[:200],
                body=chat if hook.format == Format.SLACK else body,
            )
            for hook in hooks
        )
        transaction.on_commit(wake)
    return len(hooks)


def send_to(*, hook: Webhook, event: Event, subject: str, data: dict[str, Any]) -> Delivery:
    """Queues an event for one webhook, whatever it has chosen, in the caller's transaction."""
    body = _body(event, {"project": hook.project.slug} | data)
    row = Delivery.objects.create(webhook=hook, event=event, subject=subject[:200], body=body)
    transaction.on_commit(wake)
    return row


def _body(event: str, data: dict[str, Any]) -> str:
    """Minified JSON: what is signed is what is sent, byte for byte."""
    content = {"type": event, "timestamp": timezone.now(), "data": data}
    return json.dumps(
        content, cls=DjangoJSONEncoder, allow_nan=False, ensure_ascii=False, separators=(",", ":")
    )


def wake() -> None:
    """Has a worker send what is due. Beat does it, too."""
    outbox.post(SEND, expires_s=60)


def checked_url(url: str) -> str:
    """The address as it is stored. Raises WebhookError if this installation may not call it."""
    try:
        return str(check_url(url, allow_private=settings.FLYWHEEL_ALLOW_PRIVATE_URLS))
    except RefusedAddress as error:
        raise WebhookError(str(error), "url") from error


def listed(project: Project) -> dict[str, Any]:
    hooks = project.webhooks.all()
    return {"hooks": hooks, "disabled": [hook for hook in hooks if hook.disabled_reason]}


def page_with_secret(request: HttpRequest, returned: Webhook) -> str:
    """The page of the webhook, which shows its new secret once."""
    request.session["new_secret"] = [str(returned.pk), returned.secret]
    return returned.get_absolute_url()


@operation(
    "webhooks_add",
    rest=Rest("POST", "webhooks/", "webhooks", 201),
    page=Page("", "list", template="webhooks/list.html", context=listed, then=page_with_secret),
    gives=schema.NewWebhookOut,
    role=Role.OPERATOR,
    examples=(schema.NEW_EXAMPLE, schema.MADE_EXAMPLE),
    says={"webhook.created": "added the webhook {host@}[ for {events}]"},
)
@transaction.atomic
def create_webhook(
    *,
    project: Project,
    by: Any,
    url: Url,
    format: FormatName = Format.STANDARD,
    description: Description = "",
    events: Events = tuple(Event.values),
) -> Webhook:
    """Adds a URL that receives events. The response contains the signing secret, which is shown
    only once.

    Raises WebhookError.
    """
    Project.objects.select_for_update().get(pk=project.pk)
    if project.webhooks.count() >= MOST:
        raise WebhookError(f"{project} has {MOST} webhooks, which is the limit. Delete one first.")
    made = signing.new_secret()
    hook = Webhook.objects.create(
        project=project,
        url=checked_url(url),
        description=description,
        events=_ordered(events),
        format=format,
        created_by=by,
        salt=made.salt,
        fingerprint=made.fingerprint,
    )
    _audit("created", hook, by, events=hook.events)
    hook.secret = made.secret
    return hook


def _ordered(events: Iterable[str]) -> list[str]:
    return [event for event in Event.values if event in set(events)]


def _audit(what: str, hook: Webhook, by: Any, **detail: Any) -> None:
    """With the host only: an address may carry a password of the receiver."""
    audit(
        f"webhook.{what}",
        project=hook.project,
        by=by,
        target=hook,
        host=urlsplit(hook.url).hostname,
        **detail,
    )


@operation(
    "webhooks_edit",
    rest=Rest("PATCH", "webhooks/<uuid:pk>/", "webhook"),
    page=Page(
        "<uuid:pk>/edit/",
        "edit",
        template="webhooks/edit.html",
        without=("enabled",),
    ),
    gives=schema.WebhookOut,
    role=Role.OPERATOR,
    partial=True,
    says={"webhook.edited": "edited the webhook {host@}[: {changed}]"},
)
@transaction.atomic
def edit_webhook(
    *,
    hook: Webhook,
    by: Any,
    url: Url,
    format: FormatName,
    description: Description,
    events: Events,
    enabled: bool,
) -> None:
    """Changes the fields that are sent.

    Raises WebhookError.
    """
    fields = {
        "url": checked_url(url),
        "events": _ordered(events),
        "description": description,
        "format": format,
    }
    changed = sorted(name for name, value in fields.items() if getattr(hook, name) != value)
    if "url" in changed:
        fields |= {"failing_since": None}
    for name, value in fields.items():
        setattr(hook, name, value)
    if changed:
        hook.save(update_fields=list(fields))
        _audit("edited", hook, by, changed=changed)
    if enabled != hook.enabled:
        switch(hook=hook, by=by)


@operation(
    "webhooks_delete",
    rest=Rest("DELETE", "webhooks/<uuid:pk>/", "webhook"),
    page=Page(
        "<uuid:pk>/delete/",
        "delete",
        then="webhooks:list",
        done="The webhook “{target}” and its log are deleted.",
    ),
    role=Role.OPERATOR,
    says={"webhook.deleted": "deleted the webhook {host}"},
)
@transaction.atomic
def delete_webhook(*, hook: Webhook, by: Any) -> None:
    """Deletes it with its log.

    Raises WebhookError if something depends on it.
    """
    _audit("deleted", hook, by)
    try:
        with transaction.atomic():
            hook.delete()
    except ProtectedError as error:
        used = ", ".join(
            sorted({str(row.channel) for row in error.protected_objects if hasattr(row, "channel")})
        )
        raise WebhookError(
            f"Deployments of {used or 'a channel'} go to this webhook. Remove it from the targets"
            " first."
        ) from error


@operation(
    "webhooks_new_secret",
    rest=Rest("POST", "webhooks/<uuid:pk>/secret/", "secret"),
    page=Page("<uuid:pk>/secret/", "rotate", then=page_with_secret),
    gives=schema.RotatedOut,
    role=Role.OPERATOR,
    says={"webhook.secret_rotated": "rotated the signing secret of the webhook {host@}"},
)
@transaction.atomic
def rotate_secret(*, hook: Webhook, by: Any) -> Webhook:
    """Creates a new signing secret, returned only here. Requests are also signed with the old one
    for 24 hours.
    """
    row = Webhook.objects.select_for_update().get(pk=hook.pk)
    made = signing.new_secret()
    row.old_salt, row.old_fingerprint, row.old_until = (
        row.salt,
        row.fingerprint,
        timezone.now() + OLD_SECRET_FOR,
    )
    row.salt, row.fingerprint = made.salt, made.fingerprint
    row.save(update_fields=["salt", "fingerprint", "old_salt", "old_fingerprint", "old_until"])
    _audit("secret_rotated", row, by)
    row.secret = made.secret
    return row


@transaction.atomic
def disable(*, hook: Webhook, by: Any, reason: str = "") -> bool:
    """What still waits has failed, and can be sent again. `reason`: why it was disabled by itself.
    False if it was already.
    """
    done = (
        Webhook.objects.enabled()
        .filter(pk=hook.pk)
        .update(disabled_at=Now(), disabled_reason=reason[:300])
    )
    if done:
        waiting = Delivery.objects.filter(webhook=hook, state=DeliveryState.WAITING)
        waiting.update(state=DeliveryState.FAILED, finished_at=Now())
        _audit("disabled", hook, by, reason=reason)
    return bool(done)


@operation(
    "webhooks_switch",
    page=Page("<uuid:pk>/switch/", "switch"),
    role=Role.OPERATOR,
    says={
        "webhook.disabled": "disabled the webhook {host@}[: {reason}]",
        "webhook.enabled": "enabled the webhook {host@}",
    },
)
def switch(*, hook: Webhook, by: Any) -> bool:
    """Enables a webhook that is disabled, and the reverse."""
    return (disable if hook.enabled else enable)(hook=hook, by=by)


@transaction.atomic
def enable(*, hook: Webhook, by: Any) -> bool:
    done = Webhook.objects.filter(pk=hook.pk, disabled_at__isnull=False).update(
        disabled_at=None, disabled_reason="", failing_since=None
    )
    if done:
        _audit("enabled", hook, by)
    return bool(done)


@operation(
    "webhooks_test",
    rest=Rest("POST", "webhooks/<uuid:pk>/test/", "test", 202),
    page=Page("<uuid:pk>/test/", "test"),
    gives=schema.DeliveryOut,
    role=Role.OPERATOR,
    says={"webhook.tested": "sent a test to the webhook {host@}"},
)
@transaction.atomic
def send_test(*, hook: Webhook, by: Any) -> Delivery:
    """Sends `webhook.test` with a single attempt, even if the webhook is disabled. Poll the
    delivery for the outcome.
    """
    data = {
        "project": hook.project.slug,
        "webhook": str(hook.pk),
        "sent_by": by.get_username() if by else None,
    }
    page = reverse("webhooks:detail", args=[hook.project.slug, hook.pk])
    chat = slack.body("This is a test", f"Sent by {by}", hook.project.name, page)
    body = chat if hook.format == Format.SLACK else _body(TEST, data)
    row = Delivery.objects.create(webhook=hook, event=TEST, subject="test event", body=body)
    _audit("tested", hook, by)
    transaction.on_commit(wake)
    return row


@operation(
    "webhook_deliveries_send_again",
    rest=Rest("POST", "webhook-deliveries/<uuid:pk>/send-again/", "again", 202),
    page=Page("deliveries/<uuid:pk>/again/", "again"),
    gives=schema.DeliveryOut,
    role=Role.OPERATOR,
    within="webhook__project",
    says={"webhook.sent_again": "sent {event} to the webhook {host@} again"},
)
@transaction.atomic
def send_again(*, delivery: Delivery, by: Any) -> None:
    """Resends a finished delivery with the same `webhook-id` and body.

    Raises WebhookError.
    """
    hook = Webhook.objects.select_for_update().get(pk=delivery.webhook_id)
    if hook.disabled_at and delivery.event != TEST:
        raise WebhookError("The webhook is disabled. Enable it first.")
    ended = Delivery.objects.filter(pk=delivery.pk).exclude(state=DeliveryState.WAITING)
    if not ended.update(state=DeliveryState.WAITING, finished_at=None, tries=0, due_at=Now()):
        raise WebhookError("This delivery is still being retried.")
    _audit("sent_again", hook, by, delivery=str(delivery.pk), event=delivery.event)
    transaction.on_commit(wake)
