"""Floor 9: what production runs, what the gate said, and every change of it."""

from __future__ import annotations

import uuid

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.urls import reverse
from django.utils import timezone

from apps.core.models import Project
from apps.evals.models import EvalRun, LatencyMeasurement
from apps.registry.models import ModelVersion


class Channel(models.Model):
    """A name that production asks for ("production"); it points at one model version at a time."""

    project = models.ForeignKey(Project, models.CASCADE, related_name="channels")
    name = models.SlugField(max_length=60)
    current = models.ForeignKey(ModelVersion, models.PROTECT, null=True, related_name="live_in")
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ("name",)
        constraints = [models.UniqueConstraint(fields=["project", "name"], name="one_channel_per_name")]

    def __str__(self) -> str:
        return self.name

    def forward_moves(self) -> list[Promotion]:
        """Those that led to what runs now, the newest last: a rollback takes the last one off."""
        stack: list[Promotion] = []
        for move in self.promotions.select_related("to_version", "gate_report").order_by("at", "pk"):
            if move.kind == Promotion.Kind.ROLLBACK:
                stack.pop()
            else:
                stack.append(move)
        return stack


class PromotionPolicy(models.Model):
    """One version of a channel's policy (`gate.policy.Policy`). Rows are only ever added; the newest one applies."""

    channel = models.ForeignKey(Channel, models.CASCADE, related_name="policies")
    version = models.PositiveIntegerField()
    values = models.JSONField()
    reason = models.TextField()
    by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+")
    at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ("-version",)
        constraints = [models.UniqueConstraint(fields=["channel", "version"], name="one_row_per_policy_version")]

    def __str__(self) -> str:
        return f"{self.channel} policy {self.version}"


class Verdict(models.TextChoices):
    PROMOTE = "promote"
    REJECT = "reject"
    INCONCLUSIVE = "inconclusive"


class GateReport(models.Model):
    """The paired comparison of two evaluations on the same tasks, and what the gate says of it. Immutable, signed.

    `policy` are the values of version `policy_version` of the channel's policy; 0 are the defaults.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    project = models.ForeignKey(Project, models.CASCADE, related_name="gate_reports")
    baseline = models.ForeignKey(EvalRun, models.PROTECT, related_name="+")
    candidate = models.ForeignKey(EvalRun, models.PROTECT, related_name="gate_reports")
    channel = models.ForeignKey(Channel, models.PROTECT, related_name="gate_reports")
    measurement = models.ForeignKey(LatencyMeasurement, models.PROTECT, null=True, related_name="+")
    guards = models.JSONField(default=dict, help_text="{split: [baseline's evaluation, candidate's] or null}")
    policy = models.JSONField()
    policy_version = models.PositiveIntegerField(default=0)
    comparison = models.PositiveIntegerField(help_text="Which one with this baseline on these tasks, from 1")
    report = models.JSONField(help_text="{checks: [{name, verdict, baseline, candidate, difference, low, high, n, …}]}")
    inputs_hash = models.CharField(max_length=64, help_text="SHA-256 of the samples that were compared")
    inputs = models.JSONField(default=dict, help_text="What it rests on, by name and hash (`actions.facts_of`)")
    signature = models.CharField(max_length=100, help_text="Of `signing.document_of`")
    verdict = models.CharField(max_length=12, choices=Verdict)
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("-created_at",)

    def __str__(self) -> str:
        return f"{self.baseline.model_version} → {self.candidate.model_version}: {self.verdict}"

    def get_absolute_url(self) -> str:
        return reverse("promotion:report", args=[self.project.slug, self.pk])


class Promotion(models.Model):
    """One move of a channel. Rows are only ever added; a rollback is a move back."""

    class Kind(models.TextChoices):
        INITIAL = "initial"
        PROMOTE = "promote"
        ROLLBACK = "rollback"

    channel = models.ForeignKey(Channel, models.CASCADE, related_name="promotions")
    kind = models.CharField(max_length=10, choices=Kind)
    from_version = models.ForeignKey(ModelVersion, models.PROTECT, null=True, related_name="+")
    to_version = models.ForeignKey(ModelVersion, models.PROTECT, related_name="promotions")
    gate_report = models.ForeignKey(GateReport, models.PROTECT, null=True, related_name="promotions")
    reason = models.TextField(blank=True)
    by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+")
    at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ("-at", "-id")
        constraints = [
            models.CheckConstraint(
                name="no_promotion_without_gate_report",
                condition=~Q(kind="promote") | Q(gate_report__isnull=False),
            )
        ]

    def __str__(self) -> str:
        return f"{self.channel}: {self.from_version} → {self.to_version}"
