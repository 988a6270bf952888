"""Notifications in the app and by email, and each person's settings."""

from __future__ import annotations

import uuid
from typing import Any, Self

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now
from django.utils import timezone

from apps.core.models import Membership, Project, Role
from apps.notifications.catalogue import Topic


class Mail(models.TextChoices):
    NONE = "", "Not by email"
    WAITING = "waiting", "Waiting"
    SENT = "sent", "Sent"
    FAILED = "failed", "Failed"
    DROPPED = "dropped", "Dropped: the recipient no longer has access, or has no address"


class NotificationQuerySet(models.QuerySet["Notification"]):
    def visible_to(self, user: Any) -> Self:
        """Those of this person, of projects that they are a member of now, as far as their present
        role allows.
        """
        allowed = Q(pk=None)
        for membership in Membership.objects.filter(user=user, user__is_active=True):
            allowed |= Q(project=membership.project_id, role__in=membership.roles)
        return self.filter(allowed, user=user)

    def listed(self) -> Self:
        return self.filter(in_app=True)

    def unread(self) -> Self:
        return self.listed().filter(read_at=None)

    def mailable(self) -> Self:
        """What the next mail carries: all that has not been tried, and what was and is due
        again.
        """
        return self.filter(Q(mail_tries=0) | Q(mail_due_at__lte=Now()), mail=Mail.WAITING)


class Notification(models.Model):
    """One event, for one person. `role`: the lowest that may see it. `excerpt` never contains
    held-out content.

    `key` names what happened, so that it is notified once, however often it is reported.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    project = models.ForeignKey(Project, models.CASCADE, related_name="notifications")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="notifications")
    topic = models.CharField(max_length=40, choices=Topic)
    role = models.CharField(max_length=10, choices=Role)
    subject = models.CharField(max_length=300)
    excerpt = models.CharField(max_length=500, blank=True)
    page = models.CharField(max_length=500, help_text="Its path, without the host")
    actor = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+"
    )
    key = models.CharField(max_length=160)
    created_at = models.DateTimeField(default=timezone.now)
    in_app = models.BooleanField(default=True)
    read_at = models.DateTimeField(null=True)
    mail = models.CharField(max_length=10, choices=Mail, default=Mail.NONE, blank=True)
    mail_due_at = models.DateTimeField(
        null=True, help_text="Of a mail that is being sent: when it counts as lost"
    )
    mail_tries = models.PositiveSmallIntegerField(default=0)

    objects = NotificationQuerySet.as_manager()

    class Meta:
        ordering = ("-created_at", "-pk")
        constraints = [
            models.UniqueConstraint(
                fields=["user", "key"], name="one_notification_per_person_and_event"
            ),
            models.CheckConstraint(
                name="notification_mail_has_time",
                condition=~Q(mail=Mail.WAITING) | Q(mail_due_at__isnull=False),
            ),
        ]
        indexes = [
            models.Index(fields=["user", "-created_at"], name="notification_by_user"),
            models.Index(
                fields=["user"],
                name="notification_unread",
                condition=Q(read_at__isnull=True, in_app=True),
            ),
            models.Index(
                fields=["mail_due_at"], name="notification_mail_due", condition=Q(mail=Mail.WAITING)
            ),
            models.Index(fields=["key"], name="notification_by_key"),
            models.Index(fields=["created_at"], name="notification_by_age"),
        ]

    def __str__(self) -> str:
        return self.subject


class Preference(models.Model):
    """What somebody chose for one event; without a row its rule holds (`catalogue.RULES`)."""

    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.CASCADE, related_name="notification_preferences"
    )
    topic = models.CharField(max_length=40, choices=Topic)
    in_app = models.BooleanField()
    by_mail = models.BooleanField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["user", "topic"], name="one_preference_per_topic")
        ]

    def __str__(self) -> str:
        return f"{self.user}: {self.topic}"
