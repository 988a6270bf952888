"""Floor 4: which trajectories failed, how, at which step, and who says so."""

from __future__ import annotations

from typing import Self

from django.conf import settings
from django.db import models
from django.utils import timezone

from apps.core.models import Project
from apps.trajectories.models import Trajectory


class Severity(models.TextChoices):
    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"


class FailureMode(models.Model):
    """A bucket. The guide's seven are made with the project; projects add their own."""

    project = models.ForeignKey(Project, models.CASCADE, related_name="failure_modes")
    slug = models.SlugField(max_length=60)
    name = models.CharField(max_length=80)
    definition = models.TextField(blank=True)
    severity = models.CharField(max_length=10, choices=Severity, default=Severity.MEDIUM)
    safety_relevant = models.BooleanField(default=False)
    position = models.PositiveSmallIntegerField(default=0)

    class Meta:
        ordering = ("position", "id")
        constraints = [models.UniqueConstraint(fields=["project", "slug"], name="one_mode_per_slug")]

    def __str__(self) -> str:
        return self.name


class FailureState(models.TextChoices):
    OPEN = "open"
    CONFIRMED = "confirmed"
    DISMISSED = "dismissed"


class Source(models.TextChoices):
    RULE = "rule"
    JUDGE = "judge"
    PERSON = "person"


class FailureQuerySet(models.QuerySet["Failure"]):
    def standing(self) -> Self:
        """Failures that count: found and not dismissed."""
        return self.exclude(state=FailureState.DISMISSED)


class Failure(models.Model):
    """The diagnosis of one failed trajectory. A person's word is never overwritten by a layer."""

    project = models.ForeignKey(Project, models.CASCADE, related_name="failures")
    trajectory = models.OneToOneField(Trajectory, models.CASCADE, related_name="failure")
    mode = models.ForeignKey(FailureMode, models.PROTECT, related_name="failures")
    state = models.CharField(max_length=10, choices=FailureState, default=FailureState.OPEN)
    source = models.CharField(max_length=10, choices=Source, default=Source.RULE)
    blamed_message = models.PositiveIntegerField(null=True, help_text="Index into the trajectory's messages")
    evidence = models.JSONField(default=list, help_text="[{rule, message_index, text}]")
    decided_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+")
    decided_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField(auto_now_add=True)

    objects = FailureQuerySet.as_manager()

    class Meta:
        ordering = ("-trajectory_id",)
        indexes = [models.Index(fields=["project", "mode", "state"], name="failure_by_mode")]

    def __str__(self) -> str:
        return f"{self.mode} in {self.trajectory_id}"


class FailureDecision(models.Model):
    """One decision of a person on a failure, so that it can be undone and measured against the layers."""

    failure = models.ForeignKey(Failure, models.CASCADE, related_name="decisions")
    by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+")
    before = models.JSONField()
    after = models.JSONField()
    at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ("-at", "-id")

    def __str__(self) -> str:
        return f"{self.before} → {self.after}"
