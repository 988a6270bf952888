"""What production runs, gate reports, and every change of a channel."""

from __future__ import annotations

import uuid
from typing import Self

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.urls import reverse
from django.utils import timezone

from apps.core.models import Archivable, ArchivableQuerySet, Project
from apps.evals.models import EvalRun, LatencyMeasurement, Sample
from apps.promotion.deployment.models import (
    Deployment,
    Fingerprint,
    FingerprintJob,
    Placement,
    Target,
)
from apps.promotion.trials.models import Trial, TrialAnswer, TrialSession
from apps.registry.models import ModelVersion

__all__ = [
    "Approval",
    "Channel",
    "Deployment",
    "Fingerprint",
    "FingerprintJob",
    "Freeze",
    "GateReport",
    "Placement",
    "Promotion",
    "PromotionPolicy",
    "Target",
    "Trial",
    "TrialAnswer",
    "TrialSession",
    "UnsafeReview",
    "Verdict",
]


class ChannelQuerySet(ArchivableQuerySet):
    def live(self) -> Self:
        """Channels whose version is to be served now."""
        return self.current().exclude(current=None).filter(needs_restore=False)


class Channel(Archivable):
    """A name that production asks for ("production"); it points to one model version at a time.

    `segment`: the environment or the users that it serves, such as "eu" or "enterprise"; a label.
    An archived channel keeps `current` and its history and serves nothing; unarchived, it serves
    nothing while it `needs_restore`.
    """

    project = models.ForeignKey(Project, models.CASCADE, related_name="channels")
    name = models.SlugField(max_length=60)
    segment = models.CharField(max_length=80, blank=True)
    current = models.ForeignKey(ModelVersion, models.PROTECT, null=True, related_name="live_in")
    needs_restore = models.BooleanField(
        default=False,
        help_text=(
            "Set by archiving, until its version is verified again or another one is deployed"
        ),
    )
    updated_at = models.DateTimeField(auto_now=True)

    objects = ChannelQuerySet.as_manager()

    class Meta:
        ordering = ("name",)
        constraints = [
            models.UniqueConstraint(fields=["project", "name"], name="one_channel_per_name")
        ]

    def __str__(self) -> str:
        return self.name

    def get_absolute_url(self) -> str:
        return reverse("promotion:channel", args=[self.project.slug, self.name])

    @property
    def not_served(self) -> str:
        """Why its version is not served, as a sentence; "" if it is, and if it has none."""
        if self.archived_at:
            return (
                f"The channel “{self}” is archived and serves nothing. A project owner can"
                " unarchive it on its page."
            )
        if self.needs_restore and self.current:
            return (
                f"The channel “{self}” was archived, and {self.current} is not served until it is"
                " restored on the channel's page."
            )
        return ""

    def forward_moves(self) -> list[Promotion]:
        """The moves that led to the live version, newest last: a rollback removes those after the
        version it goes to. Their order is that of their keys, drawn while the channel is locked:
        clocks jump, and those of machines differ.
        """
        stack: list[Promotion] = []
        forward: dict[int, Promotion] = {}
        for move in self.promotions.select_related("to_version", "gate_report").order_by("pk"):
            if move.kind != Promotion.Kind.ROLLBACK:
                forward[move.to_version_id] = move
                stack.append(move)
                continue
            under = [
                index
                for index, made in enumerate(stack[:-1])
                if made.to_version_id == move.to_version_id
            ]
            # A version removed by an earlier rollback may come back: then it follows what ran
            # before it.
            stack = stack[: under[-1] + 1] if under else [*stack[:-1], forward[move.to_version_id]]
        return stack


class PromotionPolicy(models.Model):
    """One version of a channel's policy (`gate.policy.Policy`). Rows are only ever added; the
    newest one applies.
    """

    channel = models.ForeignKey(Channel, models.CASCADE, related_name="policies")
    version = models.PositiveIntegerField()
    values = models.JSONField()
    reason = models.TextField()
    by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+")
    approved_by = models.CharField(max_length=160, blank=True)
    at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ("-version",)
        constraints = [
            models.UniqueConstraint(
                fields=["channel", "version"], name="one_row_per_policy_version"
            )
        ]

    def __str__(self) -> str:
        return f"{self.channel} policy {self.version}"


class Verdict(models.TextChoices):
    PROMOTE = "promote"
    REJECT = "reject"
    INCONCLUSIVE = "inconclusive"


class GateReport(models.Model):
    """The paired comparison of two evaluations on the same tasks, and the gate's verdict.
    Immutable, signed.

    `policy` are the values of version `policy_version` of the channel's policy; 0 are the defaults.
    """

    mentions_stay = "a hash identifies what it says"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    project = models.ForeignKey(Project, models.CASCADE, related_name="gate_reports")
    baseline = models.ForeignKey(EvalRun, models.PROTECT, related_name="+")
    candidate = models.ForeignKey(EvalRun, models.PROTECT, related_name="gate_reports")
    channel = models.ForeignKey(Channel, models.PROTECT, related_name="gate_reports")
    measurement = models.ForeignKey(LatencyMeasurement, models.PROTECT, null=True, related_name="+")
    guards = models.JSONField(
        default=dict, help_text="{split: [baseline's evaluation, candidate's] or null}"
    )
    policy = models.JSONField()
    policy_version = models.PositiveIntegerField(default=0)
    comparison = models.PositiveIntegerField(
        help_text="Which one with this baseline on these tasks, from 1"
    )
    report = models.JSONField(
        help_text="{checks: [{name, verdict, baseline, candidate, difference, low, high, n, …}]}"
    )
    inputs_hash = models.CharField(
        max_length=64, help_text="SHA-256 of the samples that were compared"
    )
    inputs = models.JSONField(
        default=dict, help_text="What it rests on, by name and hash (`actions.facts_of`)"
    )
    signature = models.CharField(max_length=100, help_text="Of `signing.document_of`")
    verdict = models.CharField(max_length=12, choices=Verdict)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+"
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("-created_at",)

    def __str__(self) -> str:
        return f"{self.baseline.model_version} → {self.candidate.model_version}: {self.verdict}"

    def get_absolute_url(self) -> str:
        return reverse("promotion:report", args=[self.project.slug, self.pk])


class Approval(models.Model):
    """One person's consent to a report's promotion, if the channel's policy requires two. Rows are
    only ever added.
    """

    gate_report = models.ForeignKey(GateReport, models.CASCADE, related_name="approvals")
    by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+")
    by_name = models.CharField(max_length=160)
    reason = models.TextField()
    at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ("at", "pk")
        constraints = [
            models.UniqueConstraint(fields=["gate_report", "by"], name="one_approval_per_person")
        ]

    def __str__(self) -> str:
        return f"{self.by_name} approves {self.gate_report}"


class UnsafeReview(models.Model):
    """What a person who looked at it decided about an output with a new kind of unsafe action. Rows
    are only ever added.

    The newest one of an output applies, as long as the output is the one that was looked at:
    `digest` covers its content.
    """

    sample = models.ForeignKey(Sample, models.CASCADE, related_name="unsafe_reviews")
    gate_report = models.ForeignKey(GateReport, models.CASCADE, related_name="unsafe_reviews")
    digest = models.CharField(max_length=64)
    accepted = models.BooleanField(help_text="It is not unsafe; else it is")
    reason = models.TextField()
    by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+")
    by_name = models.CharField(max_length=160)
    at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ("at", "pk")
        constraints = [
            models.CheckConstraint(name="unsafe_review_has_reason", condition=~Q(reason=""))
        ]

    def __str__(self) -> str:
        return f"{self.by_name}: {'not unsafe' if self.accepted else 'unsafe'}"


class FreezeQuerySet(models.QuerySet["Freeze"]):
    def active(self) -> Self:
        return self.filter(Q(until=None) | Q(until__gt=timezone.now()), lifted_at=None)


class Freeze(models.Model):
    """A period in which nobody promotes to a channel; a rollback stays possible. Rows stay, as part
    of its history.
    """

    channel = models.ForeignKey(Channel, models.CASCADE, related_name="freezes")
    reason = models.TextField()
    until = models.DateTimeField(null=True, help_text="Null: until somebody lifts it")
    by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+")
    by_name = models.CharField(max_length=160)
    at = models.DateTimeField(default=timezone.now)
    lifted_at = models.DateTimeField(null=True)
    lifted_by_name = models.CharField(max_length=160, blank=True)

    objects = FreezeQuerySet.as_manager()

    class Meta:
        ordering = ("-at", "-pk")

    def __str__(self) -> str:
        return f"{self.channel} frozen: {self.reason}"


class Promotion(models.Model):
    """One move of a channel. Rows are only ever added; a rollback is a move back.

    `from_name`, `to_name`, `by_name` are the names at that time: versions are renamed, people
    leave. `proof` is what was verified on each target before the move (`Deployment.outcomes`).
    """

    is_evidence = True  # of what a channel has served

    class Kind(models.TextChoices):
        INITIAL = "initial"
        PROMOTE = "promote"
        ROLLBACK = "rollback"

    channel = models.ForeignKey(Channel, models.CASCADE, related_name="promotions")
    kind = models.CharField(max_length=10, choices=Kind)
    from_version = models.ForeignKey(ModelVersion, models.PROTECT, null=True, related_name="+")
    to_version = models.ForeignKey(ModelVersion, models.PROTECT, related_name="promotions")
    gate_report = models.ForeignKey(
        GateReport, models.PROTECT, null=True, related_name="promotions"
    )
    reason = models.TextField(blank=True)
    by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+")
    at = models.DateTimeField(default=timezone.now)
    from_name = models.CharField(max_length=120, blank=True)
    to_name = models.CharField(max_length=120, blank=True)
    by_name = models.CharField(max_length=160, blank=True)
    overridden = models.BooleanField(default=False)
    deployment = models.OneToOneField(
        Deployment, models.PROTECT, null=True, related_name="promotion"
    )
    proof = models.JSONField(default=list)

    class Meta:
        ordering = ("-id",)
        constraints = [
            models.CheckConstraint(
                name="no_promotion_without_gate_report",
                condition=~Q(kind="promote") | Q(gate_report__isnull=False),
            )
        ]

    def __str__(self) -> str:
        return f"{self.channel}: {self.from_version} → {self.to_version}"
