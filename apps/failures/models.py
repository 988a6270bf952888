"""Layer 4: which trajectories failed, how, at which step, and who decided that."""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta
from typing import Any, Self

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.core.serializers.json import DjangoJSONEncoder
from django.db import models
from django.db.models import Q
from django.db.models.fields.json import KeyTransform
from django.db.models.functions import Now
from django.urls import reverse
from django.utils import timezone

from apps.core.models import Job, JobState, Project, one_active
from apps.failures.clusters.records import headline_of
from apps.failures.judge import retries
from apps.failures.outcomes.model import in_words as score_in_words
from apps.failures.rules.policy import in_words
from apps.failures.rules.reply_forms import Form
from apps.trajectories.models import Trajectory


class Severity(models.TextChoices):
    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"


class FailureMode(models.Model):
    """A failure mode (bucket). The guide's seven are created with the project; projects can add
    their own.
    """

    project = models.ForeignKey(Project, models.CASCADE, related_name="failure_modes")
    slug = models.SlugField(max_length=60)
    name = models.CharField(max_length=80)
    definition = models.TextField(blank=True)
    examples = models.TextField(
        blank=True, help_text="What belongs here and what does not, in a few lines"
    )
    severity = models.CharField(max_length=10, choices=Severity, default=Severity.MEDIUM)
    safety_relevant = models.BooleanField(default=False)
    position = models.PositiveSmallIntegerField(default=0)

    class Meta:
        ordering = ("position", "id")
        constraints = [
            models.UniqueConstraint(fields=["project", "slug"], name="one_mode_per_slug")
        ]

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


class FailureCluster(models.Model):
    """A group of similar failures with its own life cycle (`clusters.life`). Its id is stable
    between clusterings.
    """

    class State(models.TextChoices):
        NEW = "new"
        TRIAGED = "triaged"
        IN_EVALS = "in_evals", "In evals"
        FIXED = "fixed"
        REOPENED = "reopened"

    class FixedKind(models.TextChoices):
        AGENT = "agent", "Agent version"
        MODEL = "model", "Model"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    project = models.ForeignKey(Project, models.CASCADE, related_name="failure_clusters")
    name = models.CharField(
        max_length=200, help_text="Its cause or fact in words, or a person's name for it"
    )
    named_by_person = models.BooleanField(default=False)
    mode = models.ForeignKey(FailureMode, models.SET_NULL, null=True, related_name="clusters")
    state = models.CharField(max_length=10, choices=State, default=State.NEW)
    signature = models.JSONField(help_text="See `clusters.signatures.Signature`")
    size = models.PositiveIntegerField(
        default=0, help_text="Number of its failures that are not dismissed"
    )
    first_seen = models.DateTimeField()
    last_seen = models.DateTimeField()
    versions = ArrayField(
        models.CharField(max_length=241), default=list, help_text="Agent versions of its failures"
    )
    fixed_kind = models.CharField(max_length=8, choices=FixedKind, default=FixedKind.AGENT)
    fixed_version = models.CharField(max_length=241, blank=True)
    fixed_at = models.DateTimeField(null=True)
    reopened_why = models.TextField(
        blank=True, help_text="The failure that contradicts the fix; empty if a person reopened it"
    )
    gone = models.BooleanField(default=False, help_text="The last run found no such group")
    merged_into = models.ForeignKey(
        "self",
        models.SET_NULL,
        null=True,
        related_name="absorbed",
        help_text="The cluster into which people merged it; kept, so that merging can be undone",
    )
    before_merge = models.JSONField(
        null=True,
        encoder=DjangoJSONEncoder,
        help_text="Of a cluster that took others in: its name and state. Of those: their failures",
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("-size", "name")
        indexes = [
            models.Index(fields=["project", "gone", "state"], name="failurecluster_by_state")
        ]
        constraints = [
            models.CheckConstraint(
                name="fixed_cluster_says_when",
                condition=~Q(state="fixed") | Q(fixed_at__isnull=False),
            )
        ]

    def __str__(self) -> str:
        return self.name

    def get_absolute_url(self) -> str:
        return reverse("failures:cluster", args=[self.project.slug, self.pk])

    @property
    def united_by(self) -> str:
        """Who said that its parts have one cause: people, the judge, or nobody."""
        if self.signature.get("parts"):
            return "people"
        return "judge" if self.signature.get("label") else ""


class ClusterSpace(models.Model):
    """The feature space of a project's last clustering, used to assign new failures to clusters."""

    project = models.OneToOneField(
        Project, models.CASCADE, primary_key=True, related_name="cluster_space"
    )
    space = models.TextField(help_text="See `clusters.features.Space.as_json`")
    failures = models.PositiveIntegerField(default=0)
    without_cause = models.PositiveIntegerField(
        default=0, help_text="Failures of which neither a cause nor a fact is known"
    )
    judged = models.PositiveIntegerField(
        default=0, help_text="Of those without a cause, the runs that the judge has reviewed"
    )
    apart = models.JSONField(
        default=list, help_text="Labels of causes that the judge united and people took apart"
    )
    made_at = models.DateTimeField(default=timezone.now)

    def __str__(self) -> str:
        return f"{self.failures} failures, {self.made_at:%F %T}"


RESERVED_FOR = timedelta(minutes=10)


class FailureQuerySet(models.QuerySet["Failure"]):
    def standing(self) -> Self:
        """Failures that count: found and not dismissed."""
        return self.exclude(state=FailureState.DISMISSED)

    def waiting(self) -> Self:
        """Cases nobody has decided on."""
        return self.filter(state=FailureState.OPEN)

    def free_for(self, user: Any) -> Self:
        """Cases that nobody else has open or assigned."""
        mine = Q(assigned_to=None) | Q(assigned_to=user)
        return self.filter(
            mine,
            Q(reserved_until=None) | Q(reserved_by=user) | Q(reserved_until__lt=timezone.now()),
        )


class Failure(models.Model):
    """The diagnosis of one failed trajectory. Rules and judge never overwrite a person's
    decision.
    """

    project = models.ForeignKey(Project, models.CASCADE, related_name="failures", db_index=False)
    trajectory = models.OneToOneField(Trajectory, models.CASCADE, related_name="failure")
    # Copied from the trajectory, so that failures can be counted from an index alone: set by a
    # trigger, updated by the digest (`run_counts`).
    agent_name = models.CharField(max_length=120, blank=True, editable=False)
    agent_version = models.CharField(max_length=120, blank=True, editable=False)
    model = models.CharField(max_length=200, blank=True, editable=False)
    mode = models.ForeignKey(FailureMode, models.PROTECT, related_name="failures")
    state = models.CharField(max_length=10, choices=FailureState, default=FailureState.OPEN)
    source = models.CharField(max_length=10, choices=Source, default=Source.RULE)
    blamed_message = models.PositiveIntegerField(
        null=True, help_text="Index into the trajectory's messages"
    )
    evidence = models.JSONField(
        default=list, help_text="[{rule, message_index, text, quote, mode, confidence}]"
    )
    rule_mode = models.CharField(
        max_length=60, blank=True, help_text="The rules' verdict, whoever decided in the end"
    )
    judge_mode = models.CharField(
        max_length=60, blank=True, help_text="The judge's verdict, whoever decided in the end"
    )
    also = models.ManyToManyField(
        FailureMode, related_name="also_in", blank=True, help_text="Split off by a person"
    )
    cluster = models.ForeignKey(
        FailureCluster, models.SET_NULL, null=True, related_name="failures", db_index=False
    )
    assigned_to = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+"
    )
    reserved_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+"
    )
    reserved_until = models.DateTimeField(
        null=True, help_text="Reserved for the person who has it on screen"
    )
    decided_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+"
    )
    decided_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField(auto_now_add=True)

    objects = FailureQuerySet.as_manager()

    class Meta:
        ordering = ("-trajectory_id",)
        indexes = [
            models.Index(fields=["project", "state", "mode", "trajectory"], name="failure_inbox"),
            models.Index(
                fields=["project", "trajectory"],
                include=["state", "mode", "agent_name", "agent_version", "model"],
                name="failure_by_time",
            ),
            models.Index(
                fields=["cluster", "state", "trajectory"],
                include=["agent_name", "agent_version"],
                name="failure_by_cluster",
            ),
            models.Index(
                models.F("project"),
                KeyTransform("confidence", KeyTransform("0", "evidence")),
                models.F("mode"),
                models.F("trajectory"),
                condition=Q(state="open"),
                name="failure_inbox_by_confidence",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.mode} in {self.trajectory_id}"

    def get_absolute_url(self) -> str:
        return reverse("failures:case", args=[self.project.slug, self.pk])

    @property
    def headline(self) -> str:
        """What lists show of the evidence."""
        return str(headline_of(self.evidence).get("text", ""))


class DailyRuns(models.Model):
    """Trajectories of one day (UTC) by version and model: `HourlyCount` added up by the digest, for
    rates.
    """

    project = models.ForeignKey(Project, models.CASCADE, related_name="+", db_index=False)
    day = models.DateField()
    agent_name = models.CharField(max_length=120, blank=True)
    agent_version = models.CharField(max_length=120, blank=True)
    model = models.CharField(max_length=200, blank=True)
    runs = models.BigIntegerField(help_text="Number of runs, always above 0")
    first = models.DateTimeField(help_text="The hour in which the first of them started")

    class Meta:
        verbose_name_plural = "daily runs"
        constraints = [
            models.UniqueConstraint(
                fields=["project", "day", "agent_name", "agent_version", "model"],
                name="one_count_of_runs_per_day_and_kind",
            )
        ]

    def __str__(self) -> str:
        return f"{self.runs} on {self.day}"


class DecisionSide(models.Model):
    """Whether what people decide about a run is held back from learning (`judge.people`): fixed by
    its request when somebody first decides.
    """

    trajectory = models.OneToOneField(
        Trajectory, models.CASCADE, primary_key=True, related_name="+"
    )
    held_back = models.BooleanField()

    def __str__(self) -> str:
        return f"{'held back' if self.held_back else 'learning'}: {self.trajectory_id}"


class FailureDecision(models.Model):
    """One decision of a person on a failure, so that it can be undone and measured against the
    layers.
    """

    failure = models.ForeignKey(Failure, models.CASCADE, related_name="decisions")
    by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+")
    before = models.JSONField()
    after = models.JSONField()
    at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ("-at", "-id")

    def __str__(self) -> str:
        return f"{self.before} → {self.after}"


class Classifier(models.Model):
    """The version of the rules that has processed all trajectories of a project; 0 during the first
    pass.

    Once this row exists, new and changed trajectories are noted in `Unclassified`.
    """

    project = models.OneToOneField(
        Project, models.CASCADE, primary_key=True, related_name="classifier"
    )
    rules = models.PositiveIntegerField(default=0)
    check_share = models.FloatField(
        default=0.02, help_text="Share of unflagged runs that people check"
    )
    judge_share = models.FloatField(
        default=0.1, help_text="Share of runs without a rule's finding that the judge reviews"
    )
    judge_share_flagged = models.FloatField(
        default=1, help_text="Share of runs that the rules flag that the judge reviews"
    )
    judge_first = models.PositiveIntegerField(
        default=200, help_text="So many of the first runs are all reviewed, whatever the shares"
    )
    judge_first_until = models.DateTimeField(
        null=True, help_text="When the last of the first runs arrived; null until all have"
    )
    judge_first_last = models.UUIDField(null=True, help_text="The last of the first runs")
    policy = models.PositiveIntegerField(
        default=0, help_text="Counts changes after which all runs are classified again"
    )
    policy_done = models.PositiveIntegerField(
        default=0, help_text="`policy` when the last whole pass began"
    )

    prompts_of = models.UUIDField(
        null=True, help_text="The newest run when system prompts were last looked at"
    )
    replies_of = models.UUIDField(
        null=True, help_text="The newest run when tool replies were last looked at"
    )

    def __str__(self) -> str:
        return f"rules {self.rules}"


class Unclassified(models.Model):
    """A trajectory that is new or has changed since the rules last went through it."""

    trajectory_id = models.UUIDField(primary_key=True)
    project = models.ForeignKey(Project, models.CASCADE, related_name="unclassified")
    noted_at = models.DateTimeField(db_default=Now())

    def __str__(self) -> str:
        return str(self.trajectory_id)


UNDER_WAY = "asked, no answer yet"  # instead of an error


class Paid(models.Model):
    """What a question to the judge's server cost. While it is under way its highest cost is
    reserved; of one that got lost, that may have been paid.
    """

    cost_usd = models.FloatField(default=0)
    reserved_usd = models.FloatField(default=0)

    class Meta:
        abstract = True

    def reserve_cost(self, usd: float) -> None:
        self.cost_usd, self.reserved_usd = self.cost_usd + self.reserved_usd, usd

    def settle_cost(self, correction: float) -> None:
        """`correction` is what it cost minus what was reserved."""
        self.cost_usd = max(0.0, self.cost_usd + self.reserved_usd + correction)
        self.reserved_usd = 0.0


class SystemPrompt(Paid):
    """A system prompt whose rules the judge has read, or is asked to read (`policy`). While
    `read_at` is empty, `error` says why.
    """

    class State(models.TextChoices):
        READ = "read"
        ASKING = "asking"
        FAILED = "failed"

    WAITING = "The judge is being asked."

    project = models.ForeignKey(
        Project, models.CASCADE, related_name="system_prompts", db_index=False
    )
    digest = models.CharField(max_length=32, help_text="See `rules.statements.digest_of`")
    parts = models.JSONField(default=list, help_text="See `rules.statements.parts_of`")
    opening = models.CharField(max_length=300, help_text="The beginning of the prompt")
    length = models.PositiveIntegerField(help_text="Length of the prompt, in characters")
    trajectory = models.ForeignKey(
        Trajectory, models.SET_NULL, null=True, related_name="+", help_text="The run it was read in"
    )
    first_seen = models.DateTimeField(default=timezone.now)
    read_at = models.DateTimeField(null=True)
    read_by = models.CharField(max_length=200, blank=True, help_text="The judge's model")
    error = models.TextField(blank=True, help_text="Why its rules were not read, or WAITING")
    dropped = models.PositiveSmallIntegerField(
        default=0, help_text="Rules whose quote did not occur in it"
    )
    tries = models.PositiveSmallIntegerField(default=0)
    at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ("-first_seen", "-id")
        constraints = [
            models.UniqueConstraint(fields=["project", "digest"], name="one_prompt_per_digest")
        ]

    def __str__(self) -> str:
        return self.opening[:60]

    @property
    def title(self) -> str:
        """How it begins, without the marks of a Markdown heading."""
        return self.opening.lstrip("#* ")

    @property
    def state(self) -> str:
        if self.error == self.WAITING:
            return self.State.ASKING
        return self.State.FAILED if self.error else self.State.READ

    @property
    def problem(self) -> str:
        return self.error if self.state == self.State.FAILED else ""


class PolicyRuleQuerySet(models.QuerySet["PolicyRule"]):
    def current(self) -> Self:
        """Without replaced versions and removed rules."""
        return self.filter(state__in=PolicyRule.DECISIONS)


class PolicyRule(models.Model):
    """A rule that the judge read in a system prompt or a person wrote, and people's decision on it.

    Only a confirmed rule is used: its check finds violations, and the judge is told about one
    without a check. It applies to the runs whose prompt has its `parts`; without any, to all.
    """

    class State(models.TextChoices):
        PROPOSED = "proposed"
        CONFIRMED = "confirmed"
        DISMISSED = "dismissed"
        REPLACED = "replaced"
        REMOVED = "removed"

    DECISIONS = (
        State.PROPOSED,
        State.CONFIRMED,
        State.DISMISSED,
    )  # the states of a rule that has not been replaced or removed

    project = models.ForeignKey(
        Project, models.CASCADE, related_name="policy_rules", db_index=False
    )
    prompt = models.ForeignKey(
        SystemPrompt,
        models.SET_NULL,
        null=True,
        related_name="rules",
        help_text="Where it was first read",
    )
    sentence = models.TextField()
    quote = models.TextField(blank=True, help_text="The words of the prompt that state it")
    parts = models.JSONField(default=list, help_text="See `rules.statements.located`")
    check_spec = models.JSONField(
        null=True, help_text="See `rules.policy.Check`; null: the judge is told about the rule"
    )
    problem = models.TextField(blank=True, help_text="Why its check cannot be made")
    state = models.CharField(max_length=10, choices=State, default=State.PROPOSED)
    decided_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+"
    )
    decided_at = models.DateTimeField(null=True)
    written = models.BooleanField(
        default=False, help_text="By a person, not read in a prompt by the judge"
    )
    written_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+"
    )
    version = models.PositiveIntegerField(default=1)
    replaces = models.ForeignKey(
        "self", models.SET_NULL, null=True, related_name="+", help_text="The previous version"
    )
    tried = models.PositiveIntegerField(
        null=True, help_text="Recent runs to which it applies; null: not tried yet"
    )
    tried_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField(default=timezone.now)

    objects = PolicyRuleQuerySet.as_manager()

    class Meta:
        ordering = ("project", "pk")
        constraints = [
            models.CheckConstraint(
                name="decided_rule_says_when",
                condition=Q(state="proposed", decided_at__isnull=True)
                | (~Q(state="proposed") & Q(decided_at__isnull=False)),
            ),
        ]
        indexes = [models.Index(fields=["project", "state"], name="policy_rule_by_state")]

    def __str__(self) -> str:
        return self.sentence[:60]

    @property
    def meaning(self) -> str:
        """Its check as a sentence; empty without one."""
        return in_words(self.check_spec) if self.check_spec else ""

    @property
    def prompt_digest(self) -> str | None:
        return self.prompt.digest if self.prompt else None

    @property
    def writer(self) -> str | None:
        return self.written_by.get_username() if self.written_by else None

    @property
    def decider(self) -> str | None:
        return self.decided_by.get_username() if self.decided_by else None


class PolicyExample(models.Model):
    """A recent run that breaks a rule, by its check (`policy.tried`)."""

    rule = models.ForeignKey(PolicyRule, models.CASCADE, related_name="examples", db_index=False)
    trajectory = models.ForeignKey(Trajectory, models.CASCADE, related_name="+")
    message_index = models.PositiveIntegerField(help_text="The agent's step")
    text = models.CharField(max_length=500, help_text="What happened there")

    class Meta:
        ordering = ("-trajectory_id",)
        constraints = [
            models.UniqueConstraint(
                fields=["rule", "trajectory"], name="one_example_per_run_and_rule"
            )
        ]

    def __str__(self) -> str:
        return f"{self.trajectory_id}: {self.text[:60]}"

    @property
    def run(self) -> str:
        return self.trajectory.external_id


class ReplyForm(models.Model):
    """A form that replies of a tool have in recent runs (`rules.reply_forms.Form`), and whether it
    says that the call failed: according to the judge (`quote`), and to a person (`state`), who
    alone counts. The counts are those of the newest runs.
    """

    class State(models.TextChoices):
        SEEN = "seen"
        PROPOSED = "proposed", "says failed"
        CONFIRMED = "confirmed"
        DISMISSED = "dismissed"

    DECIDED = (State.CONFIRMED, State.DISMISSED)

    project = models.ForeignKey(Project, models.CASCADE, related_name="reply_forms", db_index=False)
    tool = models.CharField(max_length=200, blank=True, help_text="Empty: was not offered")
    digest = models.CharField(max_length=24)
    kind = models.CharField(max_length=10)
    structure = models.TextField()
    values = models.JSONField(default=list)
    good = models.PositiveIntegerField(default=0, help_text="Replies to calls in order")
    broken = models.PositiveIntegerField(
        default=0, help_text="Replies to calls that break their tool's contract"
    )
    runs = models.PositiveIntegerField(default=0)
    names = models.JSONField(default=list, help_text="Names by which the tools were called")
    final = models.BooleanField(
        default=False, help_text="The same call again is in vain after such a reply"
    )
    trajectory = models.ForeignKey(
        Trajectory, models.SET_NULL, null=True, related_name="+", help_text="An example"
    )
    reply_index = models.PositiveIntegerField(null=True)
    others = models.JSONField(
        default=list, help_text="Examples that differ most: [trajectory, index of the reply]"
    )
    state = models.CharField(max_length=10, choices=State, default=State.SEEN)
    quote = models.CharField(max_length=300, blank=True, help_text="What says so, by the judge")
    asked_at = models.DateTimeField(null=True)
    read_at = models.DateTimeField(null=True)
    read_by = models.CharField(max_length=200, blank=True, help_text="The judge's model")
    error = models.TextField(blank=True, help_text="Why the judge did not read it")
    tries = models.PositiveSmallIntegerField(default=0)
    decided_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+"
    )
    decided_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ("tool", "-good", "-broken", "pk")
        constraints = [
            models.UniqueConstraint(fields=["project", "digest"], name="one_reply_form_per_digest"),
            models.CheckConstraint(
                name="decided_reply_form_says_when",
                condition=Q(state__in=["seen", "proposed"], decided_at__isnull=True)
                | Q(state__in=["confirmed", "dismissed"], decided_at__isnull=False),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.tool or 'a tool that is not offered'}: {self.meaning}"

    @property
    def form(self) -> Form:
        values = tuple((path, tuple(tokens), inside) for path, tokens, inside in self.values)
        return Form(self.tool, self.kind, self.structure, values)

    @property
    def meaning(self) -> str:
        """The form in one line."""
        return self.form.meaning

    @property
    def run(self) -> str | None:
        return self.trajectory and self.trajectory.external_id

    @property
    def examples(self) -> list[tuple[uuid.UUID, int]]:
        """(trajectory, message) of replies; a trajectory may be gone."""
        first = [(self.trajectory_id, self.reply_index)] if self.trajectory_id else []
        those = [*first, *((uuid.UUID(run), at) for run, at in self.others)]
        return [(run, at) for run, at in those if at is not None]

    @property
    def asked_again_at(self) -> datetime | None:
        """When a judge that is on is asked again after an error; None if it is not."""
        is_unread = self.read_at is None and self.state == self.State.SEEN
        if not (self.error and self.asked_at and is_unread) or self.tries >= retries.MOST_TRIES:
            return None
        return retries.asked_again_at(self.asked_at)

    @property
    def decider(self) -> str | None:
        return self.decided_by and self.decided_by.username


class Classification(Job):
    """Runs the rules on new and changed trajectories, or on all of them if the rules are newer
    (`classify_job`).
    """

    class Meta(Job.Meta):
        constraints = [
            *Job.Meta.constraints,
            one_active("project", "one_active_classification"),
        ]


class Reclassification(Job):
    """Previews what the current rules would change in past diagnoses, which a person then applies
    or discards.

    The same job first compares and, if it is applied, makes the changes.
    """

    class Decision(models.TextChoices):
        PENDING = "pending"
        APPLIED = "applied"
        DISCARDED = "discarded"

    decision = models.CharField(max_length=10, choices=Decision, default=Decision.PENDING)

    class Meta(Job.Meta):
        constraints = [
            *Job.Meta.constraints,
            models.UniqueConstraint(
                fields=["project"],
                condition=Q(decision="pending", state__in=["queued", "running", "succeeded"]),
                name="one_open_reclassification",
            ),
        ]

    @property
    def is_applying(self) -> bool:
        return self.is_active and self.decision == self.Decision.APPLIED

    @property
    def is_ready(self) -> bool:
        return self.state == JobState.SUCCEEDED and self.decision == self.Decision.PENDING

    @property
    def stage(self) -> str:
        """The state as one word for the page."""
        if self.is_ready:
            return "ready"
        if self.is_active:
            return "being applied" if self.is_applying else self.state
        decided = self.state == JobState.SUCCEEDED or self.decision == self.Decision.DISCARDED
        return self.decision if decided else self.state

    def get_absolute_url(self) -> str:
        return reverse("failures:reclassification", args=[self.project.slug, self.pk])


class ReclassificationChange(models.Model):
    """One diagnosis that would change; an empty mode means no failure."""

    reclassification = models.ForeignKey(Reclassification, models.CASCADE, related_name="changes")
    trajectory = models.ForeignKey(Trajectory, models.CASCADE, related_name="+")
    before = models.CharField(max_length=60, blank=True)
    after = models.CharField(max_length=60, blank=True)
    blamed_message = models.PositiveIntegerField(null=True)
    evidence = models.JSONField(default=list)

    class Meta:
        ordering = ("id",)
        constraints = [
            models.UniqueConstraint(
                fields=["reclassification", "trajectory"], name="one_change_per_trajectory"
            )
        ]

    def __str__(self) -> str:
        return f"{self.before or 'no failure'} → {self.after or 'no failure'}"


class Rubric(models.Model):
    """The judge's instructions and its model. Versions are only added; the newest enabled one
    judges.
    """

    class Strategy(models.TextChoices):
        AUTO = "auto", "The one that measured better here, else whole run"
        WHOLE = "whole", "Whole run, one question"
        STEPS = "steps", "Step by step"
        HALVING = "halving", "Halving"

    project = models.ForeignKey(Project, models.CASCADE, related_name="rubrics")
    version = models.PositiveIntegerField(default=1)
    text = models.TextField(
        help_text="Instructions before the list of failure modes and the conversation"
    )
    base_url = models.URLField(help_text="Address of an OpenAI-compatible server, ending in /v1")
    model = models.CharField(max_length=200)
    key_variable = models.CharField(
        max_length=80, blank=True, help_text="Environment variable that holds its key"
    )
    usd_per_day = models.FloatField(
        default=1, help_text="Limit of the judge's cost per day (UTC), in USD"
    )
    strategy = models.CharField(
        max_length=10,
        choices=Strategy,
        default=Strategy.WHOLE,
        help_text="Method for finding the blamed step",
    )
    concurrency = models.PositiveSmallIntegerField(
        default=4, help_text="Runs that are judged at the same time"
    )
    digest = models.CharField(
        max_length=64, help_text="Of all that the judge is asked with, examples included"
    )
    search = models.ForeignKey(
        "RubricSearch", models.SET_NULL, null=True, related_name="+", help_text="That found it"
    )
    is_on = models.BooleanField(default=False)
    round_at = models.DateTimeField(null=True, help_text="When the judge's last round ended")
    waits_since = models.DateTimeField(
        null=True, help_text="Since when the oldest run waits that it left; null: none"
    )
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+"
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("-version",)
        constraints = [
            models.UniqueConstraint(fields=["project", "version"], name="one_rubric_per_version"),
            models.UniqueConstraint(
                fields=["project"], condition=Q(is_on=True), name="one_rubric_on"
            ),
        ]

    def __str__(self) -> str:
        return f"rubric {self.version}"


class RubricExample(models.Model):
    """A run on which a person decided, as a rubric shows it to the judge. It goes with its run,
    when that is deleted.
    """

    rubric = models.ForeignKey(Rubric, models.CASCADE, related_name="examples")
    trajectory = models.ForeignKey(Trajectory, models.CASCADE, related_name="+")
    shown = models.JSONField(help_text="[[number, role, text]] of some of its messages")
    failed = models.BooleanField()
    mode = models.CharField(max_length=60, blank=True)
    step = models.PositiveIntegerField(null=True)

    class Meta:
        ordering = ("pk",)
        constraints = [
            models.UniqueConstraint(
                fields=["rubric", "trajectory"], name="one_example_per_rubric_and_run"
            )
        ]

    def __str__(self) -> str:
        return f"{self.trajectory_id} in {self.rubric}"


class RubricSearch(Job):
    """Searches for a better text of a rubric with GEPA, on people's decisions
    (`judge.search_job`).
    """

    rubric = models.ForeignKey(Rubric, models.CASCADE, related_name="+", help_text="At the start")

    class Meta(Job.Meta):
        constraints = [
            *Job.Meta.constraints,
            one_active("project", "one_active_rubric_search"),
        ]

    def get_absolute_url(self) -> str:
        return reverse("failures:rubric_search", args=[self.project.slug, self.pk])


class JudgeMeasurement(Job):
    """Asks variants of the judge, two rubrics or several strategies, about the same runs on which
    people decided (`judge.measure_job`).
    """

    class Kind(models.TextChoices):
        RUBRICS = "rubrics", "Two versions of the rubric"
        STRATEGIES = "strategies", "Methods for finding the blamed step"

    kind = models.CharField(max_length=10, choices=Kind)
    rubric = models.ForeignKey(Rubric, models.CASCADE, related_name="measurements")

    class Meta(Job.Meta):
        constraints = [
            *Job.Meta.constraints,
            one_active("project", "one_active_judge_measurement"),
        ]

    def get_absolute_url(self) -> str:
        return reverse("failures:judge_measurement", args=[self.project.slug, self.pk])


class JudgeVerdict(Paid):
    """One stored answer of the judge, so that the same conversation is never paid for twice.
    Without a `trajectory` it is about a conversation that is not a production run, such as an
    output of a training run.
    """

    rubric = models.ForeignKey(Rubric, models.CASCADE, related_name="verdicts")
    content_digest = models.CharField(
        max_length=32, help_text="Digest of the run's content when it was judged"
    )
    trajectory = models.ForeignKey(Trajectory, models.CASCADE, null=True, related_name="+")
    mode = models.CharField(
        max_length=60,
        blank=True,
        help_text="Slug of the failure mode; empty if the judge found no failure",
    )
    blamed_message = models.PositiveIntegerField(null=True)
    rule = models.ForeignKey(
        PolicyRule,
        models.SET_NULL,
        null=True,
        related_name="verdicts",
        help_text="The confirmed rule that was broken",
    )
    quote = models.TextField(blank=True)
    reason = models.TextField(blank=True)
    confidence = models.FloatField(null=True, help_text="How sure the judge says it is, 0 to 1")
    error = models.TextField(blank=True, help_text="Why there is no verdict")
    probability = models.FloatField(
        null=True,
        help_text=(
            "Probability with which the run was drawn; null if it was judged for another reason"
        ),
    )
    input_tokens = models.PositiveIntegerField(default=0)
    output_tokens = models.PositiveIntegerField(default=0)
    at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ("-at", "-id")
        constraints = [
            models.UniqueConstraint(
                fields=["rubric", "content_digest"], name="one_verdict_per_content"
            )
        ]
        indexes = [models.Index(fields=["rubric", "at"], name="verdict_by_day")]

    def __str__(self) -> str:
        return f"{self.mode or 'no failure'} by {self.rubric}"

    @property
    def is_asked(self) -> bool:
        """Whether the question is under way, or was when it got lost."""
        return UNDER_WAY in self.error


class JudgeDay(models.Model):
    """What the judge was asked on a day (UTC), and what that cost: the account of the daily budget.
    What was asked about may be deleted, the account is not.
    """

    project = models.ForeignKey(Project, models.CASCADE, related_name="judge_days", db_index=False)
    day = models.DateField()
    asked = models.PositiveIntegerField(default=0)
    usd = models.FloatField(default=0, help_text="What is under way counts with its highest cost")

    class Meta:
        ordering = ("-day",)
        constraints = [models.UniqueConstraint(fields=["project", "day"], name="one_account_a_day")]

    def __str__(self) -> str:
        return f"{self.day}: {self.asked} asked, ${self.usd:.4f}"


class JudgeQuestion(Paid):
    """A question to the judge's server that is neither a verdict nor a signal, such as a run that a
    rubric is tried or measured on. Its answer is kept, so that the same question is not paid for
    twice. While `answer` is null there is none.
    """

    project = models.ForeignKey(
        Project, models.CASCADE, related_name="judge_questions", db_index=False
    )
    purpose = models.CharField(max_length=40)
    key = models.CharField(max_length=64, help_text="Digest of what was asked")
    trajectory = models.ForeignKey(Trajectory, models.CASCADE, null=True, related_name="+")
    answer = models.JSONField(null=True)
    error = models.TextField(blank=True)
    input_tokens = models.PositiveIntegerField(default=0)
    output_tokens = models.PositiveIntegerField(default=0)
    at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ("-at", "-id")
        constraints = [
            models.UniqueConstraint(fields=["project", "key"], name="one_answer_per_question")
        ]
        indexes = [models.Index(fields=["project", "at"], name="judge_question_by_day")]

    def __str__(self) -> str:
        return f"{self.purpose} {self.key[:8]}"


class Signal(models.Model):
    """A question in plain words that the judge answers about runs; each answer is a score of the
    signal's name. An edit is a new version, which has to be tried before it is switched on.
    """

    class Kind(models.TextChoices):
        YES_NO = "yes_no", "Yes or no"
        NUMBER = "number", "A number from 1 to 5"
        CATEGORY = "category", "One of several words"

    project = models.ForeignKey(Project, models.CASCADE, related_name="signals", db_index=False)
    name = models.CharField(max_length=80)
    question = models.TextField()
    kind = models.CharField(max_length=8, choices=Kind, default=Kind.YES_NO)
    choices = models.CharField(max_length=400, blank=True)
    share = models.FloatField(default=0.1, help_text="Of the runs that arrive while it is on")
    version = models.PositiveIntegerField(default=1)
    on_since = models.DateTimeField(null=True)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+"
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("name",)
        constraints = [
            models.UniqueConstraint(fields=["project", "name"], name="one_signal_per_name")
        ]

    def __str__(self) -> str:
        return self.name

    def get_absolute_url(self) -> str:
        return reverse("failures:signal", args=[self.project.slug, self.pk])

    @property
    def words(self) -> list[str]:
        """The answers of a category."""
        return [word for part in self.choices.split(",") if (word := part.strip())]

    @property
    def answers_offered(self) -> list[str]:
        """What a person can say of a run."""
        numbers = [str(number) for number in range(1, 6)]
        offered = {self.Kind.YES_NO: ["yes", "no"], self.Kind.NUMBER: numbers}
        return offered.get(self.Kind(self.kind), self.words)


class SignalAnswer(Paid):
    """The judge's answer to one version of a signal about a run. While `error` is not empty there
    is none; an empty `value` without an error: the run does not say.
    """

    signal = models.ForeignKey(Signal, models.CASCADE, related_name="answers", db_index=False)
    version = models.PositiveIntegerField()
    trajectory = models.ForeignKey(Trajectory, models.CASCADE, related_name="+")
    probability = models.FloatField(
        null=True, help_text="Probability with which the run was drawn; null if it was tried"
    )
    value = models.CharField(max_length=120, blank=True)
    quote = models.TextField(blank=True)
    reason = models.TextField(blank=True)
    error = models.TextField(blank=True)
    tries = models.PositiveSmallIntegerField(default=0)
    at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ("-at", "-id")
        constraints = [
            models.UniqueConstraint(
                fields=["signal", "version", "trajectory"], name="one_answer_per_signal_and_run"
            )
        ]
        indexes = [models.Index(fields=["signal", "at"], name="signal_answer_by_time")]

    def __str__(self) -> str:
        return f"{self.signal} {self.version}: {self.value or 'unknown'}"


class OutcomeModel(models.Model):
    """A model of failure, trained on the project's decisions (`outcomes.model`). Append-only, but
    for being switched off.
    """

    project = models.ForeignKey(
        Project, models.CASCADE, related_name="outcome_models", db_index=False
    )
    number = models.PositiveIntegerField()
    weights = models.JSONField(default=dict, help_text="See `outcomes.model.Weights`")
    usual = models.JSONField(default=dict, help_text="Quantiles of the sizes of the project's runs")
    measured = models.JSONField(
        default=dict, help_text="Measured out of fold, see `outcomes.training.measures`"
    )
    is_better = models.BooleanField(
        default=False, help_text="Better than what was in use before it, which it replaced"
    )
    note = models.TextField(blank=True, help_text="Why it is not better, or was switched off")
    decisions = models.PositiveIntegerField(
        default=0, help_text="Number of decided runs when it was fitted"
    )
    made_at = models.DateTimeField(default=timezone.now)
    off_at = models.DateTimeField(
        null=True, help_text="When it was switched off for its false alarms"
    )

    class Meta:
        ordering = ("-number",)
        constraints = [
            models.UniqueConstraint(
                fields=["project", "number"], name="one_outcome_model_per_number"
            )
        ]

    def __str__(self) -> str:
        return f"outcome model {self.number}"

    @property
    def fine(self) -> int:
        """The number of decided runs that had not failed."""
        return self.measured["n"] - self.measured["failed"] if self.measured else 0

    @classmethod
    def in_use(cls, project: Project) -> OutcomeModel | None:
        """The newest model that was better; None if there is none, or it was switched off."""
        newest = cls.objects.filter(project=project, is_better=True).first()
        return newest if newest and newest.off_at is None else None


class OutcomeEstimate(models.Model):
    """The outcome model's score of a run of unknown outcome, from 0 to 1 (`outcomes.model.in_words`
    says what it means). Deleted once the outcome is known or no model is in use.
    """

    trajectory = models.OneToOneField(
        Trajectory, models.CASCADE, primary_key=True, related_name="outcome_estimate"
    )
    project = models.ForeignKey(Project, models.CASCADE, related_name="+", db_index=False)
    score = models.FloatField()
    reasons = models.JSONField(
        default=list,
        help_text="[{rule, message_index, text, quote, weight}]; empty if not flagged",
    )
    model = models.ForeignKey(
        OutcomeModel, models.CASCADE, related_name="estimates", db_index=False
    )

    class Meta:
        indexes = [models.Index(fields=["project", "score"], name="estimate_by_score")]

    def __str__(self) -> str:
        return f"{self.score:.2f} of {self.trajectory_id}"

    def in_words(self) -> str:
        return score_in_words(self.score, self.model.measured)


class OutcomeCheck(models.Model):
    """A run that a person is asked about: did it fail? `probability` is its sampling probability,
    which no answer changes; null if it was not drawn at random and therefore says nothing about
    other runs.
    """

    class Answer(models.TextChoices):
        FAILED = "failed"
        FINE = "fine"
        UNSURE = "unsure"

    trajectory = models.OneToOneField(
        Trajectory, models.CASCADE, primary_key=True, related_name="outcome_check"
    )
    project = models.ForeignKey(
        Project, models.CASCADE, related_name="outcome_checks", db_index=False
    )
    probability = models.FloatField(null=True)
    by_rules = models.BooleanField(
        default=False, help_text="Whether the rules flagged the run when it was last drawn"
    )
    drawn_at = models.DateTimeField(null=True)
    answer = models.CharField(max_length=10, choices=Answer, blank=True)
    layers = models.JSONField(
        default=list, help_text="The layers that flagged the run before its answer"
    )
    in_turn = models.BooleanField(
        default=False, help_text="Whether people were asked about the run, and did not choose it"
    )
    by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+")
    at = models.DateTimeField(null=True)

    class Meta:
        indexes = [
            models.Index(fields=["project", "answer", "trajectory"], name="check_by_answer"),
            models.Index(fields=["by", "at"], name="check_by_person"),
        ]
        constraints = [
            models.CheckConstraint(
                name="answered_check_says_when",
                condition=Q(answer="", at__isnull=True) | (~Q(answer="") & Q(at__isnull=False)),
            ),
            models.CheckConstraint(
                name="chance_of_a_check_is_one",
                condition=Q(probability=None) | Q(probability__gt=0, probability__lte=1),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.answer or 'unanswered'}: {self.trajectory_id}"


class OutcomeTraining(Job):
    """Trains an `OutcomeModel` on people's decisions so far (`outcomes.train_job`)."""

    class Meta(Job.Meta):
        constraints = [
            *Job.Meta.constraints,
            one_active("project", "one_active_outcome_training"),
        ]
