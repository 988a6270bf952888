"""Webhooks: addresses of other systems that are notified of events, and every delivery attempt."""

from __future__ import annotations

import uuid
from typing import Self

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now
from django.urls import reverse
from django.utils import timezone

from apps.core.encryption import EncryptedText
from apps.core.models import Project


class Event(models.TextChoices):
    EVALUATION_FINISHED = (
        "evaluation.finished",
        "An evaluation has ended: it succeeded, failed or was cancelled",
    )
    GATE_REPORT_MADE = "gate_report.made", "The gate has compared two evaluations"
    PROMOTION_MADE = "promotion.made", "A channel was moved to another model version"
    ROLLBACK_MADE = "rollback.made", "A channel was rolled back to an earlier version"
    PROMOTION_PROPOSED = "promotion.proposed", "A promotion needs a second person's approval"
    POLICY_PROPOSED = (
        "policy.proposed",
        "Loosening a two-person rule needs a second person's approval",
    )
    DEPLOYMENT_REQUESTED = (
        "deployment.requested",
        "A channel with this webhook as target deploys a version; 2xx acknowledges it",
    )
    DEPLOYMENT_WITHDRAWN = (
        "deployment.withdrawn",
        "A deployment that this webhook acknowledged was undone",
    )
    DEPLOYMENT_FAILED = (
        "deployment.failed",
        "A deployment failed; the previous version is still serving",
    )
    CHANNEL_FROZEN = "channel.frozen", "A channel was frozen or unfrozen"
    CHANNEL_ARCHIVED = "channel.archived", "A channel was archived or unarchived"
    TRIAL_STARTED = "trial.started", "A canary or shadow of a candidate has started in a channel"
    TRIAL_ADVANCED = "trial.advanced", "A canary advanced to its next share, or passed the last one"
    TRIAL_ENDED = (
        "trial.ended",
        "A canary or shadow has ended: promoted, rolled back, stopped, undecided or failed",
    )
    FLOW_WAITING = "flow.waiting", "A flow is waiting for a decision or a review"
    FLOW_ENDED = "flow.ended", "A run of a flow has ended: it succeeded, failed or was cancelled"
    COMMENT_ADDED = "comment.added", "Someone has commented on something"
    OVERRIDE_USED = (
        "override.used",
        "An owner overrode the gate or a training lock, or waived a probe",
    )
    SERVER_DOWN = "server.down", "A model server stopped answering"
    ALERT_FIRED = "alert.fired", "An alert over runs, steps or scores fired"
    ALERT_RECOVERED = "alert.recovered", "An alert recovered"
    ALERT_NO_DATA = "alert.no_data", "An alert that fired has nothing more to measure"


class Format(models.TextChoices):
    STANDARD = "standard", "Standard Webhooks (signed JSON)"
    SLACK = "slack", "Slack message"


TEST = "webhook.test"
TRIES = 10  # of one delivery, over about a day
EXCERPT = 1000  # characters that are kept of a response


class WebhookQuerySet(models.QuerySet["Webhook"]):
    def enabled(self) -> Self:
        return self.filter(disabled_at=None)

    def told_of(self, event: str) -> Self:
        return self.enabled().filter(events__contains=[event])


class Webhook(models.Model):
    """An address that is sent chosen events of a project, signed with a secret of its own.

    The secret is not stored: it is made from `salt` and the server's key (`signing`); `fingerprint`
    tells whether that key is still the same. After a change of the secret the old one signs, too,
    until `old_until`.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    project = models.ForeignKey(Project, models.CASCADE, related_name="webhooks")
    url = EncryptedText(max_length=500)  # a chat's is a secret: whoever knows it may post
    description = models.CharField(max_length=120, blank=True)
    events = ArrayField(models.CharField(max_length=40))
    format = models.CharField(max_length=10, choices=Format, default=Format.STANDARD)
    salt = models.CharField(max_length=64)
    fingerprint = models.CharField(max_length=16)
    old_salt = models.CharField(max_length=64, blank=True)
    old_fingerprint = models.CharField(max_length=16, blank=True)
    old_until = models.DateTimeField(null=True)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+"
    )
    created_at = models.DateTimeField(default=timezone.now)
    failing_since = models.DateTimeField(
        null=True, help_text="The first failed attempt since the last good one"
    )
    disabled_at = models.DateTimeField(null=True)
    disabled_reason = models.CharField(
        max_length=300, blank=True, help_text="Empty where a person disabled it"
    )

    objects = WebhookQuerySet.as_manager()
    secret = ""  # of one whose secret has just been made; not stored

    class Meta:
        ordering = ("created_at", "pk")
        constraints = [
            models.CheckConstraint(
                name="webhook_has_known_events",
                condition=Q(events__len__gte=1) & Q(events__contained_by=Event.values),
            )
        ]

    def __str__(self) -> str:
        return self.description or self.url

    def get_absolute_url(self) -> str:
        return reverse("webhooks:detail", args=[self.project.slug, self.pk])

    @property
    def enabled(self) -> bool:
        return self.disabled_at is None

    @property
    def state(self) -> str:
        return "disabled" if self.disabled_at else "failing" if self.failing_since else "enabled"


class DeliveryState(models.TextChoices):
    WAITING = "waiting", "Waiting"
    DELIVERED = "delivered", "Delivered"
    FAILED = "failed", "Failed"


class DeliveryQuerySet(models.QuerySet["Delivery"]):
    def due(self) -> Self:
        """By the database's clock. A disabled webhook is sent nothing but test events."""
        enabled = Q(webhook__disabled_at=None) | Q(event=TEST)
        return self.filter(enabled, state=DeliveryState.WAITING, due_at__lte=Now())

    def held_by(self, row: Delivery) -> Self:
        """The row, if this attempt is still the last one: whoever sends it writes through here."""
        return self.filter(pk=row.pk, state=DeliveryState.WAITING, attempt=row.attempt)


class Delivery(models.Model):
    """One event for one webhook, in the words that are sent each time. It was inserted in the
    transaction of what happened.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    webhook = models.ForeignKey(Webhook, models.CASCADE, related_name="deliveries")
    event = models.CharField(max_length=40)
    subject = models.CharField(max_length=200, help_text="What it is about, for the log")
    body = models.TextField()
    state = models.CharField(max_length=10, choices=DeliveryState, default=DeliveryState.WAITING)
    attempt = models.PositiveIntegerField(default=0, help_text="Attempts so far")
    tries = models.PositiveSmallIntegerField(
        default=0, help_text="Attempts since it was queued or sent again"
    )
    due_at = models.DateTimeField(
        db_default=Now(), help_text="Of an attempt under way: when it counts as lost"
    )
    last_status = models.PositiveSmallIntegerField(null=True)
    created_at = models.DateTimeField(default=timezone.now)
    finished_at = models.DateTimeField(null=True)

    objects = DeliveryQuerySet.as_manager()

    class Meta:
        ordering = ("-created_at", "-pk")
        constraints = [
            models.CheckConstraint(
                name="delivery_finished_unless_waiting",
                condition=Q(state=DeliveryState.WAITING, finished_at__isnull=True)
                | (~Q(state=DeliveryState.WAITING) & Q(finished_at__isnull=False)),
            )
        ]
        indexes = [
            models.Index(
                fields=["due_at"], name="delivery_due", condition=Q(state=DeliveryState.WAITING)
            ),
            models.Index(fields=["webhook", "-created_at"], name="delivery_by_webhook"),
            models.Index(fields=["created_at"], name="delivery_by_age"),
        ]

    def __str__(self) -> str:
        return f"{self.event} to {self.webhook_id}"

    def get_absolute_url(self) -> str:
        return reverse("webhooks:delivery", args=[self.webhook.project.slug, self.pk])

    @property
    def message_id(self) -> str:
        """The header `webhook-id`: the same at each attempt, so that a receiver knows what it has
        seen.
        """
        return f"msg_{self.pk.hex}"

    @property
    def log(self) -> list[Attempt]:
        return list(self.attempts.all())

    @property
    def is_due(self) -> bool:
        return self.due_at <= timezone.now()

    @property
    def most_tries(self) -> int:
        return 1 if self.event == TEST else TRIES


class Attempt(models.Model):
    """One request. Without status and error it is under way, or its worker died and nobody knows
    how it ended.
    """

    delivery = models.ForeignKey(Delivery, models.CASCADE, related_name="attempts")
    number = models.PositiveIntegerField()
    at = models.DateTimeField(default=timezone.now)
    status = models.PositiveSmallIntegerField(null=True)
    latency_ms = models.FloatField(null=True)
    response = models.TextField(blank=True, help_text="Its beginning, as it came: untrusted text")
    error = models.CharField(max_length=300, blank=True)

    class Meta:
        ordering = ("-number",)
        constraints = [
            models.UniqueConstraint(
                fields=["delivery", "number"], name="one_row_per_delivery_attempt"
            )
        ]

    def __str__(self) -> str:
        return f"attempt {self.number}: {self.status or self.error}"

    @property
    def is_open(self) -> bool:
        return self.status is None and not self.error
