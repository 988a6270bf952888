"""Comments on objects, their assignees, and changes that wait for a second person. The objects
belong to higher layers (`targets`, `proposals`).
"""

from __future__ import annotations

import uuid
from typing import Self

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils import timezone

from apps.core.models import Project

LONGEST = 4000  # characters of a comment


class AboutQuerySet(models.QuerySet[models.Model]):
    def about(self, target: models.Model) -> Self:
        return self.filter(target_type=target._meta.label_lower, target_id=str(target.pk))


class Comment(models.Model):
    """Plain text about one object. A deleted one leaves its place and its author, not its text."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    project = models.ForeignKey(Project, models.CASCADE, related_name="comments")
    target_type = models.CharField(max_length=60)
    target_id = models.CharField(max_length=60)
    by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+")
    text = models.TextField()
    mentions = models.ManyToManyField(settings.AUTH_USER_MODEL, related_name="+")
    created_at = models.DateTimeField(default=timezone.now)
    edited_at = models.DateTimeField(null=True)
    deleted_at = models.DateTimeField(null=True)

    objects = AboutQuerySet.as_manager()

    class Meta:
        ordering = ("created_at", "pk")
        constraints = [
            models.CheckConstraint(
                name="comment_has_text_until_deleted",
                condition=Q(deleted_at__isnull=True) & ~Q(text="")
                | Q(deleted_at__isnull=False, text=""),
            )
        ]
        indexes = [
            models.Index(
                fields=["project", "target_type", "target_id", "created_at"],
                name="comment_by_target",
            ),
            models.Index(fields=["project", "-created_at"], name="comment_by_project"),
        ]

    def __str__(self) -> str:
        return f"comment by {self.by or 'a deleted user'}"


class Assignment(models.Model):
    """An object that is somebody's to work on. Failures keep their own: it is one of the things
    that triage can undo.
    """

    project = models.ForeignKey(Project, models.CASCADE, related_name="assignments")
    target_type = models.CharField(max_length=60)
    target_id = models.CharField(max_length=60)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="assignments")
    by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+")
    created_at = models.DateTimeField(default=timezone.now)

    objects = AboutQuerySet.as_manager()

    class Meta:
        ordering = ("created_at", "pk")
        constraints = [
            models.UniqueConstraint(
                fields=["project", "target_type", "target_id", "user"],
                name="one_assignment_per_person_and_object",
            )
        ]
        indexes = [models.Index(fields=["user", "target_type"], name="assignment_by_user")]

    def __str__(self) -> str:
        return f"{self.target_type} {self.target_id} for {self.user}"


class Proposal(models.Model):
    """A change that loosens a two-person rule: it applies once a second person approves it
    (`proposals`). `target` is what the rule belongs to; `values` are the whole changed rule.
    """

    project = models.ForeignKey(Project, models.CASCADE, related_name="proposals")
    target_type = models.CharField(max_length=60)
    target_id = models.CharField(max_length=60)
    values = models.JSONField()
    reason = models.TextField()
    by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+")
    by_name = models.CharField(max_length=160)
    at = models.DateTimeField(default=timezone.now)
    closed_at = models.DateTimeField(
        null=True, help_text="Approved, withdrawn, or replaced by another version or proposal"
    )

    objects = AboutQuerySet.as_manager()

    class Meta:
        ordering = ("-at", "-pk")
        constraints = [
            models.UniqueConstraint(
                fields=["project", "target_type", "target_id"],
                condition=Q(closed_at=None),
                name="one_open_proposal_per_object",
            )
        ]

    def __str__(self) -> str:
        return f"proposal of {self.by_name}"
