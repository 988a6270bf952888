"""Flows: automation up to the point where a person decides."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Any, Self

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now
from django.urls import reverse
from django.utils import timezone

from apps.automation.specs import FlowError, FlowSpec, Step, read
from apps.core.models import Project, Stage


class FlowQuerySet(models.QuerySet["Flow"]):
    def watched(self) -> Self:
        return self.filter(enabled=True, project__stage=Stage.ACTIVE)


class Flow(models.Model):
    """Steps that run automatically once something triggers them. They are defined by the flow's
    newest version.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    project = models.ForeignKey(Project, models.CASCADE, related_name="flows")
    name = models.CharField(max_length=80)
    enabled = models.BooleanField(default=True)
    next_run_at = models.DateTimeField(
        null=True, help_text="By its schedules; None if it has none or is off"
    )
    looked_at = models.DateTimeField(
        default=timezone.now, help_text="When its other triggers were last checked"
    )
    seen = models.JSONField(
        default=list, help_text="Versions and models that have started it or existed before it"
    )
    secret_digest = models.CharField(
        max_length=64, blank=True, help_text="SHA-256 of the secret that a webhook sends"
    )
    created_at = models.DateTimeField(auto_now_add=True)

    objects = FlowQuerySet.as_manager()

    class Meta:
        ordering = ("name",)
        constraints = [
            models.UniqueConstraint(fields=["project", "name"], name="one_flow_per_name")
        ]
        indexes = [
            models.Index(fields=["next_run_at"], condition=Q(enabled=True), name="flow_by_clock"),
            models.Index(fields=["looked_at"], condition=Q(enabled=True), name="flow_by_look"),
        ]

    def __str__(self) -> str:
        return self.name

    def get_absolute_url(self) -> str:
        return reverse("automation:flow", args=[self.project.slug, self.pk])

    @property
    def version(self) -> FlowVersion:
        """The newest version. Pages that list flows prefetch it as `newest`."""
        newest: list[FlowVersion] | None = getattr(self, "newest", None)
        return (
            newest[0]
            if newest
            else self.versions.select_related("created_by").order_by("-number")[0]
        )


class FlowVersion(models.Model):
    """The definition of a flow, which acts on behalf of whoever saved it. Append-only."""

    flow = models.ForeignKey(Flow, models.CASCADE, related_name="versions")
    number = models.PositiveIntegerField()
    spec = models.JSONField(help_text="See `specs.FlowSpec`")
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+"
    )
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ("-number",)
        constraints = [
            models.UniqueConstraint(fields=["flow", "number"], name="one_flow_version_per_number")
        ]

    def __str__(self) -> str:
        return f"{self.flow} v{self.number}"

    @property
    def form(self) -> FlowSpec:
        """Raises FlowError if an older version of Flywheel saved it and it can no longer be
        read.
        """
        return read(self.spec)

    @property
    def readable(self) -> FlowSpec | None:
        try:
            return self.form
        except FlowError:
            return None


class RunState(models.TextChoices):
    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting", "Waiting for a person"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


OPEN_STATES = (RunState.QUEUED, RunState.RUNNING, RunState.WAITING)
ENDED_STATES = (RunState.SUCCEEDED, RunState.FAILED, RunState.CANCELLED)


class FlowRunQuerySet(models.QuerySet["FlowRun"]):
    def open(self) -> Self:
        return self.filter(state__in=OPEN_STATES)


class FlowRun(models.Model):
    """One run of a flow. The runs of a project take turns: one is running, the others are queued. A
    run that waits for a person lets others go.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    project = models.ForeignKey(Project, models.CASCADE, related_name="flow_runs")
    version = models.ForeignKey(FlowVersion, models.CASCADE, related_name="runs")
    cause = models.JSONField(help_text="{by: cron, …, person; sentence; what was seen}")
    state = models.CharField(max_length=10, choices=RunState, default=RunState.QUEUED)
    error = models.TextField(blank=True)
    note = models.CharField(
        max_length=300, blank=True, help_text="What it is waiting for, as a sentence"
    )
    not_before = models.DateTimeField(
        null=True, help_text="A queued run waits until then; others may go first"
    )
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+"
    )
    created_at = models.DateTimeField(default=timezone.now)
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    cancel_requested_at = models.DateTimeField(null=True)

    objects = FlowRunQuerySet.as_manager()

    class Meta:
        ordering = ("-created_at",)
        indexes = [models.Index(fields=["project", "state"], name="flowrun_by_state")]
        constraints = [
            models.UniqueConstraint(
                fields=["project"], condition=Q(state="running"), name="one_flow_runs_in_a_project"
            ),
            models.UniqueConstraint(
                fields=["version"],
                condition=Q(state="queued"),
                name="one_queued_run_of_a_flow_version",
            ),
            models.CheckConstraint(
                name="flowrun_finished_iff_ended",
                condition=Q(state__in=ENDED_STATES, finished_at__isnull=False)
                | Q(state__in=OPEN_STATES, finished_at__isnull=True),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.version.flow}, {self.created_at:%F %H:%M} UTC"

    def get_absolute_url(self) -> str:
        return reverse("automation:run", args=[self.project.slug, self.pk])

    @property
    def audited_with(self) -> list[Flow]:
        return [self.version.flow]

    @property
    def is_open(self) -> bool:
        return self.state in OPEN_STATES

    def end(self, state: RunState, error: str = "") -> bool:
        """False if it has already ended."""
        rows = FlowRun.objects.open().filter(pk=self.pk)
        return bool(rows.update(state=state, error=error, note="", finished_at=Now()))


class StepState(models.TextChoices):
    PENDING = "pending"
    RUNNING = "running"
    WAITING = "waiting", "Waiting for a person"
    DONE = "done"
    SKIPPED = "skipped"
    FAILED = "failed"


class FlowStep(models.Model):
    """One step of a run. `jobs` maps the step's own names to the jobs it started. They are stored
    in the same transaction, so that a step that is repeated after its worker died starts no job
    twice.
    """

    run = models.ForeignKey(FlowRun, models.CASCADE, related_name="steps")
    position = models.PositiveIntegerField()
    key = models.CharField(max_length=40)
    kind = models.CharField(max_length=20)
    state = models.CharField(max_length=10, choices=StepState, default=StepState.PENDING)
    jobs = models.JSONField(default=dict, help_text="{name: [model label, id]}")
    outputs = models.JSONField(default=dict)
    said = models.TextField(
        blank=True, help_text="What it is doing, waiting for or has found, or why it failed"
    )
    attempt = models.PositiveIntegerField(
        default=0, help_text="Failed attempts since a person last resumed it"
    )
    failures = models.JSONField(
        default=list, help_text="[{at, said}] of the failed attempts, the newest last"
    )
    not_before = models.DateTimeField(null=True)
    seconds = models.FloatField(
        default=0, help_text="Compute time of its jobs, over all finished attempts"
    )
    usd = models.FloatField(
        default=0, help_text="Known cost of its jobs, over all finished attempts"
    )
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ("position",)
        constraints = [
            models.UniqueConstraint(fields=["run", "position"], name="one_step_per_position"),
            models.UniqueConstraint(fields=["run", "key"], name="one_step_per_key"),
        ]

    def __str__(self) -> str:
        return self.key

    @property
    def took(self) -> float | None:
        if self.started_at is None:
            return None
        end: datetime = self.finished_at or timezone.now()
        return (end - self.started_at).total_seconds()

    def asked(self, spec: FlowSpec) -> Step:
        step: Any = spec.steps[self.position]
        return step
