"""Floor 3: what the agent did in production."""

from __future__ import annotations

import uuid
from typing import Self

from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.indexes import GinIndex
from django.db import models
from django.utils import timezone

from apps.core.models import Project


class Outcome(models.TextChoices):
    SUCCESS = "success"
    FAILURE = "failure"
    UNKNOWN = "unknown"


class TrajectoryQuerySet(models.QuerySet["Trajectory"]):
    def failed(self) -> Self:
        return self.filter(outcome_status=Outcome.FAILURE)

    def light(self) -> Self:
        """For lists: without the columns that may be megabytes."""
        return self.defer("messages", "tools", "interventions", "metadata")


class Trajectory(models.Model):
    """One run of an agent, in OpenAI chat form: `messages` with tool calls and tool replies, and `tools`.

    `external_id` is the client's id and the idempotency key; `content_digest` tells a duplicate from an update.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    project = models.ForeignKey(Project, models.CASCADE, related_name="trajectories")
    external_id = models.CharField(max_length=200)
    content_digest = models.CharField(max_length=64)
    agent_name = models.CharField(max_length=120, blank=True)
    agent_version = models.CharField(max_length=120, blank=True)
    model = models.CharField(max_length=200, blank=True)
    workload = models.CharField(max_length=120, blank=True)
    session_id = models.CharField(max_length=200, blank=True)
    user_id = models.CharField(max_length=200, blank=True)
    started_at = models.DateTimeField(default=timezone.now)
    ended_at = models.DateTimeField(null=True)
    received_at = models.DateTimeField(auto_now_add=True)
    messages = models.JSONField(default=list)
    tools = models.JSONField(default=list)
    outcome_status = models.CharField(max_length=10, choices=Outcome, default=Outcome.UNKNOWN)
    outcome_reward = models.FloatField(null=True)
    outcome_label = models.CharField(max_length=120, blank=True)
    outcome_reason = models.TextField(blank=True)
    interventions = models.JSONField(default=list)
    input_tokens = models.PositiveIntegerField(null=True)
    output_tokens = models.PositiveIntegerField(null=True)
    cost_usd = models.DecimalField(max_digits=14, decimal_places=8, null=True)
    latency_ms = models.FloatField(null=True)
    tags = ArrayField(models.CharField(max_length=80), default=list)
    metadata = models.JSONField(default=dict)
    tool_names = ArrayField(models.CharField(max_length=120), default=list, help_text="Tools called, derived")
    preview = models.CharField(max_length=240, blank=True, help_text="First user message, shortened, derived")

    objects = TrajectoryQuerySet.as_manager()

    class Meta:
        ordering = ("-started_at", "-id")
        verbose_name_plural = "trajectories"
        constraints = [models.UniqueConstraint(fields=["project", "external_id"], name="one_row_per_client_id")]
        indexes = [
            models.Index(fields=["project", "-started_at", "-id"], name="trajectory_by_time"),
            models.Index(fields=["project", "outcome_status", "-started_at"], name="trajectory_by_outcome"),
            GinIndex(fields=["tool_names"], name="trajectory_by_tool"),
            GinIndex(fields=["tags"], name="trajectory_by_tag"),
        ]

    def __str__(self) -> str:
        return self.external_id


class TrajectoryRevision(models.Model):
    """What a trajectory said before an update of it arrived."""

    trajectory = models.ForeignKey(Trajectory, models.CASCADE, related_name="revisions")
    content_digest = models.CharField(max_length=64)
    content = models.JSONField()
    cause = models.CharField(max_length=20, default="resent", help_text="resent or feedback")
    replaced_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ("-replaced_at", "-id")

    def __str__(self) -> str:
        return f"{self.trajectory_id} until {self.replaced_at:%F %T}"
