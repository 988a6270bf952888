"""A candidate that answers a channel's production traffic in addition to the current version, and
every answer that counts.
"""

from __future__ import annotations

import secrets
import uuid
from datetime import timedelta
from typing import Any, Self

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.urls import reverse
from django.utils import timezone

from apps.core.models import Project
from apps.promotion.deployment.models import Deployment
from apps.registry.models import ModelVersion

MAX_UNIT = 200


class TrialState(models.TextChoices):
    PREPARING = "preparing"
    RUNNING = "running"
    PROMOTING = "promoting"
    PROMOTED = "promoted"
    ROLLED_BACK = "rolled_back", "Rolled back"
    STOPPED = "stopped"
    UNDECIDED = "undecided"
    FAILED = "failed"


ACTIVE_TRIAL = (TrialState.PREPARING, TrialState.RUNNING, TrialState.PROMOTING)
ENDED_TRIAL = (
    TrialState.PROMOTED,
    TrialState.ROLLED_BACK,
    TrialState.STOPPED,
    TrialState.UNDECIDED,
    TrialState.FAILED,
)


class LaneKind(models.TextChoices):
    """Who answers: the channel's live version, a canary's candidate, or a shadow's, whose answers
    nobody gets. `outside`: the live version, for a session that began while a canary took no new
    ones; it is not compared.
    """

    CURRENT = "current"
    CANARY = "canary"
    SHADOW = "shadow"
    OUTSIDE = "outside"


def new_salt() -> str:
    return secrets.token_hex(16)


class TrialQuerySet(models.QuerySet["Trial"]):
    def active(self) -> Self:
        return self.filter(state__in=ACTIVE_TRIAL)

    def running(self) -> Self:
        """Trials whose candidate gets traffic."""
        return self.filter(state__in=(TrialState.RUNNING, TrialState.PROMOTING))


class Trial(models.Model):
    """One candidate against one baseline in a channel, from the start to a decision.

    `steps`: [{share, min_sessions, min_minutes, centre, first_until}] (the last two:
    `sessions.fix_centre`); `step` is the index of the current one. `salt` assigns sessions to
    lanes, so that each trial draws its own. `room`: how many more of the candidate's sessions may
    begin after `room_at`; null without a limit (a shadow). `looks`: [{at, step, difference by
    measure with bounds, counts}], thinned, for the chart. `report` is what was known when it ended.
    """

    is_evidence = True  # of what was tried in a channel

    class Kind(models.TextChoices):
        CANARY = "canary"
        SHADOW = "shadow"

    class Then(models.TextChoices):
        PROMOTE = "promote", "Promote the candidate"
        HOLD = "hold", "Wait for a person"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    project = models.ForeignKey(Project, models.CASCADE, related_name="trials")
    channel = models.ForeignKey("promotion.Channel", models.CASCADE, related_name="trials")
    kind = models.CharField(max_length=10, choices=Kind)
    version = models.ForeignKey(
        ModelVersion, models.PROTECT, related_name="trials", help_text="The candidate"
    )
    baseline = models.ForeignKey(
        ModelVersion, models.PROTECT, related_name="+", help_text="What the channel ran then"
    )
    gate_report = models.ForeignKey(
        "promotion.GateReport", models.PROTECT, null=True, related_name="trials"
    )
    deployment = models.OneToOneField(Deployment, models.PROTECT, null=True, related_name="trial")
    steps = models.JSONField()
    step = models.PositiveSmallIntegerField(default=0)
    state = models.CharField(max_length=12, choices=TrialState, default=TrialState.PREPARING)
    salt = models.CharField(max_length=32, default=new_salt, editable=False)
    alpha = models.FloatField(
        default=0.05, help_text="Chance of a wrong rollback, over the whole trial"
    )
    margin = models.FloatField(
        default=0.05, help_text="By how much the candidate may be worse at most, absolute"
    )
    max_days = models.PositiveSmallIntegerField(default=14)
    max_harmed = models.PositiveIntegerField(
        default=50,
        help_text="Sessions that failed beyond the current version's rate, after which it ends",
    )
    outcome_minutes = models.PositiveIntegerField(
        default=0, help_text="After which a session's outcome is known"
    )
    room = models.PositiveIntegerField(
        null=True, help_text="Sessions of the candidate that may begin after room_at"
    )
    room_at = models.DateTimeField(null=True)
    paused_for = models.DurationField(
        default=timedelta, help_text="How long it took no new sessions"
    )
    then = models.CharField(
        max_length=10, choices=Then, default=Then.HOLD, help_text="When the last step is passed"
    )
    reason = models.TextField(blank=True)
    by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+")
    by_name = models.CharField(max_length=160)
    created_at = models.DateTimeField(default=timezone.now)
    started_at = models.DateTimeField(null=True, help_text="When the candidate got its first share")
    step_at = models.DateTimeField(null=True)
    reread_at = models.DateTimeField(
        null=True, help_text="When the outcomes of all its sessions were last read"
    )
    ended_at = models.DateTimeField(null=True)
    ended_because = models.TextField(blank=True)
    looks = models.JSONField(default=list)
    report = models.JSONField(default=dict)
    decisions = models.JSONField(default=list, help_text="[{at, what, by, why}], the oldest first")

    objects = TrialQuerySet.as_manager()

    class Meta:
        ordering = ("-created_at", "-pk")
        constraints = [
            models.UniqueConstraint(
                fields=["channel"],
                condition=Q(state__in=ACTIVE_TRIAL),
                name="one_active_trial_per_channel",
            ),
            models.CheckConstraint(
                name="trial_ended_iff_terminal",
                condition=Q(state__in=ACTIVE_TRIAL, ended_at__isnull=True)
                | Q(state__in=ENDED_TRIAL, ended_at__isnull=False),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.title} in {self.channel}"

    def get_absolute_url(self) -> str:
        return reverse("promotion:trial", args=[self.project.slug, self.channel.name, self.pk])

    @property
    def title(self) -> str:
        sees = " (sees no outcomes)" if self.kind == self.Kind.SHADOW else ""
        return f"{self.get_kind_display()}{sees} of {self.version}"

    @property
    def is_active(self) -> bool:
        return self.state in ACTIVE_TRIAL

    @property
    def is_running(self) -> bool:
        return self.state == TrialState.RUNNING

    @property
    def has_passed(self) -> bool:
        """Its last step is passed, and a person decides."""
        return any(decision["what"] == "passed" for decision in self.decisions)

    @property
    def share(self) -> float:
        """Of the sessions that the candidate answers now; for a shadow, that are also sent to
        it.
        """
        return float(self.steps[self.step]["share"])

    @property
    def lane(self) -> LaneKind:
        """The candidate's."""
        return LaneKind.CANARY if self.kind == self.Kind.CANARY else LaneKind.SHADOW

    @property
    def ends_by(self) -> Any:
        return self.started_at + timedelta(days=self.max_days) if self.started_at else None


class TrialAnswer(models.Model):
    """One request of a trial. `lane` is the lane that its session was assigned, whoever answered in
    the end: if the current version stepped in for the candidate, it is `canary` and not `answered`.
    `answered`: HTTP 200 and complete; a client that disconnects is no version's fault, and counts
    as answered. Times in ms, `first_ms` to the first byte of the answer.

    `shadow_of`: for a shadow's answer, the span of the answer that the user got. Nobody received
    it, so it is not a trajectory: `said` has {messages, modes, problem}. In a shadow trial `failed`
    and `unsafe` are what the rules find in each lane's answer alone; null in a canary's, where they
    are read from the run of `trace_id`.
    """

    trial = models.ForeignKey(Trial, models.CASCADE, related_name="answers", db_index=False)
    step = models.PositiveSmallIntegerField()
    lane = models.CharField(max_length=10, choices=LaneKind)
    unit = models.CharField(max_length=MAX_UNIT, help_text="The session, or what stands for it")
    trace_id = models.CharField(max_length=32)
    span_id = models.CharField(max_length=16)
    shadow_of = models.CharField(max_length=16, blank=True)
    at = models.DateTimeField(help_text="When it was asked")
    answered = models.BooleanField()
    ms = models.FloatField()
    first_ms = models.FloatField(null=True)
    tokens = models.PositiveIntegerField(
        null=True, help_text="Read and written; null where the server did not say"
    )
    cost_usd = models.FloatField(null=True)
    failed = models.BooleanField(null=True)
    unsafe = models.BooleanField(null=True)
    said = models.JSONField(default=dict)

    class Meta:
        ordering = ("at", "pk")
        constraints = [
            models.UniqueConstraint(fields=["trial", "span_id"], name="one_trial_answer_per_span")
        ]
        indexes = [
            models.Index(fields=["trial", "unit"], name="trialanswer_by_unit"),
            models.Index(fields=["trial", "at"], name="trialanswer_by_time"),
            models.Index(
                fields=["trial", "at"],
                condition=Q(lane=LaneKind.CANARY),
                name="trialanswer_of_canary",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.lane} {self.span_id}"


class TrialSession(models.Model):
    """A session that is over and has been analysed; the two lanes are compared by these.

    `counts` is False if it saw two lanes or two steps; such a session is shown but not compared.
    What arrives after it was settled changes only its verdict: sometimes it becomes known late
    whether one of its runs failed.
    """

    trial = models.ForeignKey(Trial, models.CASCADE, related_name="sessions", db_index=False)
    unit = models.CharField(max_length=MAX_UNIT)
    step = models.PositiveSmallIntegerField()
    lane = models.CharField(max_length=10, choices=LaneKind)
    counts = models.BooleanField(default=True)
    success = models.BooleanField(help_text="No run of it failed, and every request was answered")
    safety = models.BooleanField(help_text="No unsafe action")
    answered = models.BooleanField(help_text="Every request was answered")
    decided = models.BooleanField(
        default=False, help_text="The outcome of each of its runs was reported"
    )
    requests = models.PositiveIntegerField()
    began_at = models.DateTimeField()
    ended_at = models.DateTimeField()
    trace_id = models.CharField(max_length=32, help_text="Of a run that failed, else of the first")

    class Meta:
        ordering = ("ended_at", "pk")
        constraints = [
            models.UniqueConstraint(
                fields=["trial", "unit", "lane"], name="one_trial_session_per_unit"
            )
        ]
        indexes = [models.Index(fields=["trial", "ended_at"], name="trialsession_by_time")]

    def __str__(self) -> str:
        return f"{self.unit} in {self.lane}"
