"""Tasks, the hold-out, and evaluations of model versions on them."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from typing import Any, Self
from uuid import UUID

from django.conf import settings
from django.contrib.postgres.constraints import ExclusionConstraint
from django.contrib.postgres.fields import ArrayField, RangeOperators
from django.contrib.postgres.indexes import GinIndex
from django.db import models
from django.db.models import Deferrable, Q
from django.urls import reverse
from django.utils import timezone

from apps.core.models import (
    ApiKey,
    Archivable,
    ArchivableQuerySet,
    Job,
    JobQuerySet,
    JobState,
    Project,
    one_active,
)
from apps.environments.models import Environment
from apps.evals.canonical import group_key
from apps.evals.stand_ins import stand_ins
from apps.failures.models import Failure
from apps.registry.models import ModelKind, ModelVersion
from apps.trajectories.models import Trajectory
from workers.lib.prompts import PROMPT_PART


class EvalSetState(models.TextChoices):
    DRAFT = "draft"
    FROZEN = "frozen"


class EvalSet(Archivable):
    """A versioned set of tasks. A draft can be changed; a frozen one is immutable and identified by
    its digest.
    """

    nouns = ("eval set version", "eval set versions")

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    project = models.ForeignKey(Project, models.CASCADE, related_name="eval_sets")
    slug = models.SlugField(max_length=80)
    version = models.PositiveIntegerField(default=1)
    description = models.TextField(blank=True)
    state = models.CharField(max_length=10, choices=EvalSetState, default=EvalSetState.DRAFT)
    digest = models.CharField(max_length=64, blank=True)
    frozen_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+"
    )
    frozen_at = models.DateTimeField(null=True)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+"
    )
    created_at = models.DateTimeField(auto_now_add=True)

    objects = ArchivableQuerySet.as_manager()

    class Meta:
        ordering = ("slug", "-version")
        constraints = [
            models.UniqueConstraint(
                fields=["project", "slug", "version"], name="one_row_per_eval_set_version"
            ),
            models.CheckConstraint(
                name="frozen_has_digest",
                condition=Q(state=EvalSetState.DRAFT, digest="", frozen_at__isnull=True)
                | (Q(state=EvalSetState.FROZEN, frozen_at__isnull=False) & ~Q(digest="")),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.slug}@{self.version}"

    @property
    def is_frozen(self) -> bool:
        return self.state == EvalSetState.FROZEN

    def get_absolute_url(self) -> str:
        return reverse("evals:detail", args=[self.project.slug, self.pk])

    @property
    def as_dataset(self) -> dict[str, Any]:
        """What an environment stores about the set that it is made for."""
        return {"name": str(self), "digest": self.digest, "tasks": self.tasks.count()}


class Split(models.TextChoices):
    TRAIN = "train"
    VALIDATION = "validation"
    HOLDOUT = "holdout", "Hold-out"
    REGRESSION = "regression"
    GENERAL = "general", "General capability"


class Origin(models.TextChoices):
    FAILURE = "failure", "Production failure"
    SUCCESS = "success", "Production success"
    MANUAL = "manual", "Written by hand"
    IMPORTED = "imported", "From a file"
    SYNTHETIC = "synthetic", "Synthetic variant"


WAITING = {"metadata__contains": {"variant": {"state": "waiting"}}}  # see `variants`


class TaskQuerySet(models.QuerySet["Task"]):
    def holdout(self) -> Self:
        return self.filter(split=Split.HOLDOUT)

    def trainable(self) -> Self:
        """Tasks of the train split, without unreviewed synthetic ones."""
        return self.filter(split=Split.TRAIN).exclude(**WAITING)

    def planned_for(self, run: EvalRun) -> Self:
        """The tasks of an evaluation's split, and (of `Task.every`) those that were erased since it
        was submitted: their samples still count.
        """
        tasks = self.filter(eval_set=run.eval_set_id, split=run.split)
        return tasks.filter(Q(erased_at=None) | Q(erased_at__gt=run.created_at))

    def search(self, text: str) -> Self:
        """Tasks whose key or messages contain the text."""
        return self.filter(Q(key__icontains=text) | Q(messages__icontains=text))

    def bulk_create(self, objs: Iterable[Task], *args: Any, **kwargs: Any) -> list[Task]:
        tasks = list(objs)
        for task in tasks:
            task.name_groups()
        know_erased_groups(tasks)
        return super().bulk_create(tasks, *args, **kwargs)


class TaskManager(models.Manager.from_queryset(TaskQuerySet)):  # type: ignore[misc]
    """Without those that were erased: they are in no list, evaluation or dataset any more. What
    guards hold-outs asks `Task.every`.
    """

    def get_queryset(self) -> TaskQuerySet:
        return super().get_queryset().filter(erased_at=None)


class Task(models.Model):
    """Something to do, and how to tell whether it was done.

    `group` names what the task was made from (a request template instance, a session…): splits go
    by group. `groups` are all groups by which it could be split (`holdout.groups`): if another set
    holds one of them out, the task must not train. `canonical_hash` is the SHA-256 of the
    normalised prompt. `guarded` is 1 in a hold-out and 0 elsewhere; the database refuses the same
    hash or the same group on both sides, in a project. An erased task has only its hashes left.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    project = models.ForeignKey(Project, models.CASCADE, related_name="tasks")
    eval_set = models.ForeignKey(EvalSet, models.CASCADE, related_name="tasks")
    key = models.CharField(max_length=120)
    split = models.CharField(max_length=12, choices=Split, default=Split.TRAIN)
    guarded = models.GeneratedField(
        expression=models.Case(
            models.When(split="holdout", then=models.Value(1)),
            default=models.Value(0),
        ),
        output_field=models.SmallIntegerField(),
        db_persist=True,
    )
    group = models.CharField(max_length=200)
    group_key = models.CharField(max_length=200, editable=False, default="")
    groups = ArrayField(
        models.CharField(max_length=200), default=list, help_text="Of its run: session, user, day…"
    )
    canonical_hash = models.CharField(max_length=64)
    messages = models.JSONField()
    tools = models.JSONField(
        default=list, help_text="OpenAI tools, where they are not the harness's"
    )
    expected = models.JSONField()
    demonstration = models.TextField(
        blank=True, help_text="A good answer, in the agent's own output format"
    )
    origin = models.CharField(max_length=10, choices=Origin, default=Origin.MANUAL)
    confirmed_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+"
    )
    trajectory = models.ForeignKey(Trajectory, models.SET_NULL, null=True, related_name="tasks")
    variant_of = models.ForeignKey("self", models.SET_NULL, null=True, related_name="variants")
    metadata = models.JSONField(
        default=dict, help_text="Recorded tool results, state assertions, file and line"
    )
    created_at = models.DateTimeField(auto_now_add=True)
    erased_at = models.DateTimeField(
        null=True, help_text="What it said was deleted with its run; its hashes stay"
    )
    erased_digest = models.CharField(
        max_length=64, blank=True, help_text="Of what it said, as the digest of its set has it"
    )

    objects = TaskManager()
    every = models.Manager.from_queryset(TaskQuerySet)()
    audited_under = ("eval_set",)  # without its run: that would reveal which runs are held out

    class Meta:
        ordering = ("key",)
        constraints = [
            models.UniqueConstraint(fields=["eval_set", "key"], name="one_task_per_key"),
            models.UniqueConstraint(
                fields=["eval_set", "canonical_hash"], name="one_task_per_prompt"
            ),
            models.CheckConstraint(
                name="synthetic_is_never_held_out",
                condition=~Q(split="holdout", origin="synthetic"),
            ),
            ExclusionConstraint(
                name="holdout_prompt_never_trains",
                deferrable=Deferrable.IMMEDIATE,
                expressions=[
                    ("project", RangeOperators.EQUAL),
                    ("canonical_hash", RangeOperators.EQUAL),
                    ("guarded", RangeOperators.NOT_EQUAL),
                ],
            ),
            ExclusionConstraint(
                name="holdout_group_never_trains",
                deferrable=Deferrable.IMMEDIATE,
                expressions=[
                    ("project", RangeOperators.EQUAL),
                    ("group_key", RangeOperators.EQUAL),
                    ("guarded", RangeOperators.NOT_EQUAL),
                ],
            ),
        ]
        indexes = [
            models.Index(fields=["eval_set", "split"], name="task_by_split"),
            GinIndex(fields=["groups"], name="task_by_groups"),
        ]

    def __str__(self) -> str:
        return self.key

    def save(self, *args: Any, **kwargs: Any) -> None:
        self.name_groups()
        if self._state.adding:
            know_erased_groups([self])
        if kwargs.get("update_fields") is not None:
            kwargs["update_fields"] = {*kwargs["update_fields"], "group_key", "groups"}
        super().save(*args, **kwargs)

    def get_absolute_url(self) -> str:
        return reverse("evals:task", args=[self.project.slug, self.pk])

    def get_origin_display(self) -> str:
        """Names the environment whose package the task came with."""
        imported = self.metadata.get("imported")
        environment = imported.get("environment") if isinstance(imported, dict) else None
        if self.origin == Origin.IMPORTED and isinstance(environment, str):
            return f"Environment {environment}"
        return str(Origin(self.origin).label)

    def name_groups(self) -> None:
        """Groups are compared by their keys, which ignore case, white space and hidden
        characters.
        """
        self.group_key = group_key(self.group)
        self.groups = sorted({*map(group_key, self.groups), self.group_key})

    def as_spec(self) -> dict:
        """The task as workers get it: an environment may need the tools and their recorded
        results.
        """
        return {
            "id": str(self.pk),
            "messages": self.messages,
            "tools": self.tools,
            "expected": self.expected,
            "metadata": self.metadata,
        }


def know_erased_groups(tasks: Sequence[Task]) -> None:
    """Adds to new tasks the stand-ins of their groups under which erased tasks are of the same
    groups, so that the database keeps these on one side of a hold-out.
    """
    of_task = {id(task): stand_ins(task.groups) for task in tasks}
    if not tasks:
        return
    erased = Task.every.filter(
        project__in={task.project_id for task in tasks},
        erased_at__isnull=False,
        groups__overlap=list(set().union(*of_task.values())),
    )
    known = {name for groups in erased.values_list("groups", flat=True) for name in groups}
    for task in tasks:
        task.groups = sorted({*task.groups, *(of_task[id(task)] & known)})


class TaskKind(models.TextChoices):
    """How a task says what is right."""

    EPISODE = "episode", "Changes that should result"
    RUBRIC = "rubric", "Rubric"
    CALL = "call", "Exact call"
    ANSWER = "answer", "Exact answer"


class ProposalState(models.TextChoices):
    PROPOSED = "proposed"
    CONFIRMED = "confirmed"
    REJECTED = "rejected"
    MERGED = "merged", "Same as another"


class TaskProposal(models.Model):
    """A task that Flywheel proposes from a failure, until a person confirms it: only then does it
    become a `Task`, so it counts nowhere before.

    While `is_drafting`, the judge is to draft its rubric, or what the user of an episode says, as
    soon as there is one; with an empty `expected` otherwise a person has to write it.
    `canonical_hash` is as of `Task`.
    """

    nouns = ("proposed task", "proposed tasks")

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    project = models.ForeignKey(Project, models.CASCADE, related_name="task_proposals")
    trajectory = models.ForeignKey(Trajectory, models.CASCADE, related_name="task_proposals")
    failure = models.ForeignKey(
        "failures.Failure", models.SET_NULL, null=True, related_name="task_proposals"
    )
    state = models.CharField(max_length=10, choices=ProposalState, default=ProposalState.PROPOSED)
    kind = models.CharField(max_length=10, choices=TaskKind)
    source = models.CharField(max_length=40, help_text="Where the expected value comes from")
    reason = models.TextField(help_text="Why the task is of this kind")
    unknown = ArrayField(
        models.CharField(max_length=200),
        default=list,
        help_text="Tools of which nobody knows whether they change something",
    )
    warnings = ArrayField(
        models.TextField(),
        default=list,
        help_text="What the run itself says against what is expected",
    )
    cut = models.PositiveIntegerField(help_text="The message of the run before which it begins")
    canonical_hash = models.CharField(max_length=64)
    messages = models.JSONField()
    tools = models.JSONField(default=list)
    expected = models.JSONField(default=dict)
    demonstration = models.TextField(blank=True)
    group = models.CharField(max_length=200)
    groups = ArrayField(models.CharField(max_length=200), default=list)
    metadata = models.JSONField(default=dict)
    looks_like = models.CharField(
        max_length=64,
        blank=True,
        help_text="`canonical_hash` of the request that may be the same",
    )
    looks_like_why = models.CharField(max_length=100, blank=True)
    is_drafting = models.BooleanField(default=False)
    draft_error = models.TextField(blank=True)
    draft_tries = models.PositiveSmallIntegerField(default=0)
    drafted_at = models.DateTimeField(null=True)
    drafts_asked = models.PositiveSmallIntegerField(
        default=0, help_text="How many more drafts people have asked for"
    )
    task = models.ForeignKey(Task, models.SET_NULL, null=True, related_name="+")
    decided_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+"
    )
    decided_at = models.DateTimeField(null=True)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+"
    )
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ("created_at", "id")
        constraints = [
            models.UniqueConstraint(
                fields=["project", "canonical_hash"],
                condition=Q(state="proposed"),
                name="one_proposal_per_request",
            ),
            models.CheckConstraint(
                name="decided_proposal_has_time",
                condition=Q(state="proposed", decided_at__isnull=True)
                | (~Q(state="proposed") & Q(decided_at__isnull=False)),
            ),
        ]
        indexes = [
            models.Index(fields=["project", "state", "created_at"], name="proposal_by_state"),
        ]

    def __str__(self) -> str:
        return f"Proposed task from {self.trajectory}"

    def get_absolute_url(self) -> str:
        return reverse("evals:proposal", args=[self.project.slug, self.pk])

    @property
    def is_ready(self) -> bool:
        """Whether it says what is expected."""
        return bool(self.expected)

    @property
    def points(self) -> list[str]:
        """The points of its rubric."""
        rubric = self.expected.get("rubric")
        return [line for line in rubric.splitlines() if line.strip()] if rubric else []


class ProposalJob(Job):
    """Proposes the tasks of many failures (`spec["failures"]`, ids)."""

    nouns = ("proposal of tasks", "proposals of tasks")

    class Meta(Job.Meta):
        constraints = [*Job.Meta.constraints, one_active("project", "one_active_proposal_job")]

    def get_absolute_url(self) -> str:
        return reverse("evals:proposals", args=[self.project.slug])


class TaskOccurrence(models.Model):
    """A failed run whose request is that of a task, in any version of any set (`canonical_hash`):
    the run that the task was made from, and every other with the same request.
    """

    project = models.ForeignKey(Project, models.CASCADE, related_name="task_occurrences")
    canonical_hash = models.CharField(max_length=64)
    trajectory = models.ForeignKey(Trajectory, models.CASCADE, related_name="task_occurrences")
    at = models.DateTimeField(default=timezone.now)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["project", "canonical_hash", "trajectory"], name="one_occurrence_per_run"
            )
        ]

    def __str__(self) -> str:
        return f"{self.trajectory}"


class HoldoutView(models.Model):
    """One view of held-out tasks: by a person, an API key, or an evaluation. A hold-out wears out
    by being viewed.

    `tasks` are the content keys (`canonical.content_key`) of what was shown, so a new version of a
    set, or another set with the same requests, keeps the views of the old one. `eval_set` is only
    where it was seen.
    """

    nouns = ("hold-out view", "hold-out views")

    class Kind(models.TextChoices):
        EVALUATION = "evaluation"
        VIEW = "view"
        SCORE = "score", "Score by API"
        MEMBERSHIP = "membership", "Membership revealed"

    project = models.ForeignKey(Project, models.CASCADE, related_name="holdout_views")
    eval_set = models.ForeignKey(EvalSet, models.SET_NULL, null=True, related_name="holdout_views")
    kind = models.CharField(max_length=10, choices=Kind)
    tasks = ArrayField(models.BigIntegerField(), default=list)
    by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+")
    api_key = models.ForeignKey(ApiKey, models.SET_NULL, null=True, related_name="+")
    detail = models.CharField(max_length=200, blank=True)
    at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ("-at", "-id")
        indexes = [
            GinIndex(fields=["tasks"], name="holdout_view_by_task"),
            models.Index(fields=["project", "kind", "at"], name="holdout_view_by_kind"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} of {self.eval_set or 'held-out tasks'}"


class EvalRunQuerySet(JobQuerySet, ArchivableQuerySet):
    def played_by(self, digest: str) -> Self:
        """Those that the agent with this digest played in its own harness; "": those in the
        built-in loop.
        """
        if not digest:
            return self.exclude(spec__has_key="harness")
        return self.filter(spec__harness__digest=digest)


class EvalRun(Job, Archivable):
    """An evaluation: every task of a split, `samples_per_task` times, by one model version in one
    environment.

    If the model version is an external agent, the run is queued but not sent to a worker while its
    answers arrive (`answers`): it is due at `answers_until`, or as soon as all are there, and then
    a worker scores them.
    """

    nouns = ("evaluation", "evaluations")

    eval_set = models.ForeignKey(EvalSet, models.PROTECT, related_name="runs")
    split = models.CharField(max_length=12, choices=Split, default=Split.HOLDOUT)
    environment = models.ForeignKey(Environment, models.PROTECT, related_name="eval_runs")
    model_version = models.ForeignKey(ModelVersion, models.PROTECT, related_name="eval_runs")
    samples_per_task = models.PositiveSmallIntegerField(default=8)
    answers_until = models.DateTimeField(
        null=True, help_text="Of an agent elsewhere: when no more of its answers are taken"
    )

    objects = EvalRunQuerySet.as_manager()

    @property
    def prompt(self) -> dict[str, Any]:
        """The parts of a prompt version that replaced the environment's harness; {} if none did."""
        return self.spec.get("prompt") or {}

    @property
    def agent_part(self) -> dict[str, Any]:
        """The agent's part: the environment's, or the prompt version's; of an agent that played,
        which has its own prompt, how it was sampled.
        """
        part = self.environment.agent_part_with(self.prompt)
        if not self.played_by:
            return part
        return {name: value for name, value in part.items() if name not in PROMPT_PART}

    @property
    def played_by(self) -> str:
        """The agent in whose own harness the model answered; "" for the built-in loop."""
        return self.spec.get("harness", {}).get("name", "")

    @property
    def harness(self) -> str:
        """The digest of the agent whose loop held the conversations; "" for the built-in one."""
        is_agent = self.model_version.kind == ModelKind.AGENT
        own = self.model_version.digest if is_agent else ""
        return self.spec.get("harness", {}).get("digest", own)

    def is_played_like(self, other: EvalRun) -> bool:
        """Whether two evaluations differ in the model alone, where an agent played one of them; a
        deployed agent plays itself.
        """
        return not (self.played_by or other.played_by) or self.harness == other.harness

    @property
    def agent_hash(self) -> str:
        return self.spec.get("agent_hash") or self.environment.agent_hash

    @property
    def eval_set_digest(self) -> str:
        """Of the set as it was when the evaluation was submitted: a set frozen without a hold-out
        may be made a draft again.
        """
        return self.spec.get("eval_set_digest") or self.eval_set.digest

    @property
    def is_answered_elsewhere(self) -> bool:
        return self.answers_until is not None

    @property
    def takes_answers(self) -> bool:
        """By this process's clock; what decides is the database's, in `answers`."""
        return (
            self.state == JobState.QUEUED
            and self.answers_until is not None
            and self.answers_until > timezone.now()
        )

    def get_absolute_url(self) -> str:
        return reverse("evals:run", args=[self.project.slug, self.pk])


class LatencyMeasurement(Job):
    """A job in which the models of several evaluations answer the same tasks in turns, so that
    their latencies can be compared (`latency`)."""

    class Adapters(models.TextChoices):
        MERGED = "merged", "merged into the base"
        HOT = "hot", "applied beside the base"

    runs = models.ManyToManyField(EvalRun, related_name="measurements")
    adapters = models.CharField(max_length=6, choices=Adapters, default=Adapters.MERGED)


class TimedAnswer(models.Model):
    """One answer of a measurement; `turn` is its position among those to the same task. Without a
    latency, the answer failed.
    """

    is_evidence = True  # of how fast an evaluation answered

    measurement = models.ForeignKey(LatencyMeasurement, models.CASCADE, related_name="answers")
    attempt = models.PositiveIntegerField(
        help_text="Of the job: another one may have run on another machine"
    )
    run = models.ForeignKey(EvalRun, models.CASCADE, related_name="+")
    task = models.ForeignKey(Task, models.CASCADE, related_name="+")
    round = models.PositiveSmallIntegerField()
    turn = models.PositiveSmallIntegerField()
    latency_ms = models.FloatField(null=True)
    input_tokens = models.PositiveIntegerField()
    output_tokens = models.PositiveIntegerField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["measurement", "attempt", "run", "task", "round"],
                name="one_timed_answer_per_turn",
            )
        ]

    def __str__(self) -> str:
        return f"{self.task} round {self.round}"


class TaskImport(Job):
    """Tasks from a file, stored by a worker. Its id names the folder in which the file waits
    (`importing`).
    """

    eval_set = models.ForeignKey(EvalSet, models.CASCADE, related_name="imports")


class VariantJob(Job):
    """A job in which a model writes variants of a set's tasks (`variants.model_job`)."""

    eval_set = models.ForeignKey(EvalSet, models.CASCADE, related_name="variant_jobs")
    used = models.JSONField(
        default=dict, help_text="{calls, input_tokens, output_tokens, estimated} so far"
    )

    class Meta(Job.Meta):
        constraints = [
            *Job.Meta.constraints,
            one_active("eval_set", "one_active_variant_job_per_set"),
        ]

    def get_absolute_url(self) -> str:
        return reverse("evals:variants", args=[self.project.slug, self.eval_set_id])


class Answer(models.Model):
    """An external agent's answer to a task, before it is scored. Immutable: sending the same answer
    twice stores one. Only a `trajectory` that gets more spans replaces its own answer."""

    run = models.ForeignKey(EvalRun, models.CASCADE, related_name="answers")
    task = models.ForeignKey(Task, models.CASCADE, related_name="+")
    index = models.PositiveSmallIntegerField()
    turns = models.JSONField(help_text="The agent's messages")
    error = models.TextField(blank=True, help_text="What the agent failed with, in its own words")
    latency_ms = models.FloatField(null=True)
    input_tokens = models.PositiveIntegerField(null=True)
    output_tokens = models.PositiveIntegerField(null=True)
    digest = models.CharField(max_length=32, help_text="Of all the agent sent for it")
    size = models.PositiveIntegerField(help_text="Bytes")
    trajectory = models.UUIDField(
        null=True, help_text="The run that it came as, where it came as a trace"
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["run", "task", "index"], name="one_answer_per_index")
        ]

    def __str__(self) -> str:
        return f"{self.task} #{self.index}"


class SampleRollout(models.Model):
    """One sample's episode with an address, at which its agent calls the environment's tools
    (`rollouts`). Of the address only the SHA-256 of its secret part is stored. `state` is that of
    the episode after the last call; it goes when the evaluation ends.
    """

    run = models.ForeignKey(EvalRun, models.CASCADE, related_name="rollouts")
    task = models.ForeignKey(Task, models.CASCADE, related_name="+")
    index = models.PositiveSmallIntegerField()
    token_hash = models.CharField(max_length=64, unique=True)
    state = models.JSONField(null=True)
    calls = models.PositiveIntegerField(default=0)
    ended_at = models.DateTimeField(null=True, help_text="Since when it takes no calls")

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["run", "task", "index"], name="one_sample_rollout_per_index"
            )
        ]

    def __str__(self) -> str:
        return f"{self.task} #{self.index}"


class MeaningCheck(Job):
    """A comparison by meaning of a set's hold-out with everything in it that could train
    (`meaning`).
    """

    eval_set = models.ForeignKey(EvalSet, models.CASCADE, related_name="meaning_checks")

    class Meta(Job.Meta):
        constraints = [
            *Job.Meta.constraints,
            one_active("eval_set", "one_active_meaning_check_per_set"),
        ]

    def get_absolute_url(self) -> str:
        return reverse("evals:meaning", args=[self.project.slug, self.eval_set_id])


class MeaningPair(models.Model):
    """A held-out task and one that could train which a check found similar. `ours` and `theirs` are
    their canonical hashes, `digest` covers all compared texts of the second: a person's decision is
    about these, in any version."""

    job = models.ForeignKey(MeaningCheck, models.CASCADE, related_name="pairs")
    position = models.PositiveSmallIntegerField(help_text="0 is most alike")
    held = models.ForeignKey(Task, models.SET_NULL, null=True, related_name="+")
    other = models.ForeignKey(Task, models.SET_NULL, null=True, related_name="+")
    ours = models.CharField(max_length=64)
    theirs = models.CharField(max_length=64)
    digest = models.CharField(max_length=64)
    text = models.TextField(
        help_text="The text of the second that is most alike: a request of it, or its demonstration"
    )
    score = models.FloatField()

    class Meta:
        ordering = ("position",)
        constraints = [
            models.UniqueConstraint(
                fields=["job", "position"], name="one_meaning_pair_per_position"
            )
        ]

    def __str__(self) -> str:
        return f"pair {self.position + 1} of {self.job}"


class MeaningVerdict(models.Model):
    """A person's decision about two requests, by their content: `one` < `two` are canonical hashes.

    “Different” holds for the texts with this `digest`; “same” holds whatever else changes in the
    tasks. `removed` is the task that was removed from the draft, as its fields, for undo.
    """

    class Verdict(models.TextChoices):
        SAME = "same", "Same task"
        DIFFERENT = "different"

    project = models.ForeignKey(Project, models.CASCADE, related_name="meaning_verdicts")
    one = models.CharField(max_length=64)
    two = models.CharField(max_length=64)
    digest = models.CharField(max_length=64)
    verdict = models.CharField(max_length=10, choices=Verdict)
    removed = models.JSONField(default=dict)
    by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+")
    at = models.DateTimeField(default=timezone.now)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["project", "one", "two"], name="one_verdict_per_two_requests"
            ),
            models.CheckConstraint(
                name="verdict_hashes_in_order", condition=Q(one__lt=models.F("two"))
            ),
        ]
        indexes = [models.Index(fields=["project", "two"], name="meaning_verdict_by_two")]

    def __str__(self) -> str:
        return self.get_verdict_display()


class SampleFields(models.Model):
    """The fields of one scored output, in evaluation and in training. `reward` is null if and only
    if `masked`; `valid`, `tool_ok`, `args_score` and `executed` are null where they cannot be known
    (`workers.lib.verifiers.types.Score`).
    """

    output = models.TextField()
    messages = models.JSONField(default=list)
    reward = models.FloatField(null=True)
    components = models.JSONField(default=dict)
    success = models.BooleanField(default=False)
    valid = models.BooleanField(null=True)
    tool_ok = models.BooleanField(null=True)
    args_score = models.FloatField(null=True)
    executed = models.BooleanField(null=True)
    unsafe = models.BooleanField(default=False)
    masked = models.BooleanField(default=False)
    mask_reason = models.TextField(blank=True)
    latency_ms = models.FloatField(null=True)
    input_tokens = models.PositiveIntegerField(null=True)
    output_tokens = models.PositiveIntegerField(null=True)
    truncated = models.BooleanField(default=False)
    turns = models.PositiveSmallIntegerField(
        default=1, help_text="Messages of the agent in the episode"
    )
    stop_reason = models.CharField(
        max_length=40, blank=True, help_text="Why the episode ended: stop, turns, time…"
    )
    details = models.JSONField(default=list, help_text="What the verifier found wrong, in words")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        abstract = True


class SampleQuerySet(models.QuerySet["Sample"]):
    def bulk_create(self, objs: Iterable[Sample], *args: Any, **kwargs: Any) -> list[Sample]:
        samples = list(objs)
        unnamed = {sample.task_id for sample in samples if not sample.task_key}
        keys = dict(Task.objects.filter(pk__in=unnamed).values_list("pk", "key"))
        for sample in samples:
            sample.task_key = sample.task_key or keys[UUID(str(sample.task_id))]
        return super().bulk_create(samples, *args, **kwargs)


class Sample(SampleFields):
    """One output of an evaluated model on one task, with its score.

    What the evaluation's page filters and sorts by is stored here redundantly, since a run may have
    80,000 samples: the key of its task, the failure mode given by the rules (empty: none), the
    tools it called, the tags of its task and what the agent answered with.
    """

    run = models.ForeignKey(EvalRun, models.CASCADE, related_name="samples")
    task = models.ForeignKey(Task, models.CASCADE, related_name="samples")
    index = models.PositiveSmallIntegerField()
    task_key = models.CharField(max_length=120, editable=False)
    mode = models.CharField(max_length=60, blank=True, help_text="A failure mode, by its slug")
    tools = ArrayField(models.CharField(max_length=64), default=list)
    tags = ArrayField(models.CharField(max_length=80), default=list)
    answer_form = models.CharField(
        max_length=7,
        blank=True,
        help_text="calls, own, text or nothing (`transcripts`)",
    )

    objects = SampleQuerySet.as_manager()

    class Meta:
        ordering = ("task_key", "index")
        constraints = [
            models.UniqueConstraint(fields=["run", "task", "index"], name="one_sample_per_index"),
            models.CheckConstraint(
                name="sample_reward_iff_not_masked",
                condition=Q(masked=True, reward__isnull=True)
                | Q(masked=False, reward__isnull=False),
            ),
        ]
        indexes = [
            models.Index(
                fields=["run", "task_key", "index"],
                include=["task", "mode", "success", "masked", "reward"],
                name="sample_in_order",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.task_key} #{self.index}"

    def save(self, *args: Any, **kwargs: Any) -> None:
        self.task_key = self.task_key or self.task.key
        super().save(*args, **kwargs)

    def get_absolute_url(self) -> str:
        return reverse("evals:sample", args=[self.run.project.slug, self.run_id, self.pk])


class StepSearch(Job):
    """A job that plays a failed run again from some of its steps, to find the one whose correction
    would have changed the end (`replays`). The task is None if the run's own ground truth is used.
    """

    nouns = ("step search", "step searches")

    failure = models.ForeignKey(Failure, models.CASCADE, related_name="step_searches")
    task = models.ForeignKey(Task, models.SET_NULL, null=True, related_name="+")
    environment = models.ForeignKey(Environment, models.PROTECT, related_name="step_searches")
    model_version = models.ForeignKey(ModelVersion, models.PROTECT, related_name="step_searches")
    replayed = models.JSONField(
        default=dict,
        help_text="{steps, differs_at, difference}: how much could be replayed",
    )

    class Meta(Job.Meta):
        verbose_name = "step search"
        verbose_name_plural = "step searches"
        constraints = [
            *Job.Meta.constraints,
            one_active("failure", "one_active_step_search_per_failure"),
        ]

    def get_absolute_url(self) -> str:
        return reverse("evals:step_search", args=[self.project.slug, self.pk])


class Continuation(SampleFields):
    """A failed run as it went on from one of its steps. `messages` begin at the step, which is an
    index into the trajectory's messages.
    """

    search = models.ForeignKey(StepSearch, models.CASCADE, related_name="continuations")
    step = models.PositiveIntegerField()
    index = models.PositiveSmallIntegerField()

    class Meta:
        ordering = ("step", "index")
        constraints = [
            models.UniqueConstraint(
                fields=["search", "step", "index"], name="one_continuation_per_index"
            ),
            models.CheckConstraint(
                name="continuation_reward_iff_not_masked",
                condition=Q(masked=True, reward__isnull=True)
                | Q(masked=False, reward__isnull=False),
            ),
        ]

    def __str__(self) -> str:
        return f"from #{self.step}, {self.index}"
