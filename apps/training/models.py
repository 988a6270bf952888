"""Layer 8: frozen training data, training runs, prompt searches, and what they report."""

from __future__ import annotations

import uuid
from typing import Any

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.urls import reverse
from django.utils import timezone

from apps.core.models import Archivable, ArchivableQuerySet, Job, JobQuerySet, JobState, Project
from apps.environments.models import Environment
from apps.evals.models import EvalSet, SampleFields, Split, Task
from apps.failures.models import JudgeVerdict
from apps.registry.models import ModelVersion
from apps.trajectories.models import Trajectory


class Shape(models.TextChoices):
    """What a dataset's rows are: tasks, or examples of one of these kinds plus the tasks they are
    about.
    """

    TASKS = "tasks", "tasks"
    PAIRS = "pairs", "pairs"
    LABELS = "labels", "labelled answers"
    ANSWERS = "answers", "good answers"


class Dataset(models.Model):
    """Frozen training data: its rows are created with it and never change. Only training tasks can
    be rows. `size` counts examples if the dataset has any (`shape`), otherwise tasks.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    project = models.ForeignKey(Project, models.CASCADE, related_name="datasets")
    eval_set = models.ForeignKey(EvalSet, models.PROTECT, related_name="datasets")
    digest = models.CharField(max_length=64)
    size = models.PositiveIntegerField()
    shape = models.CharField(max_length=10, choices=Shape, default=Shape.TASKS)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+"
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("-created_at",)
        constraints = [
            models.UniqueConstraint(fields=["project", "digest"], name="one_dataset_per_content")
        ]

    def __str__(self) -> str:
        what = "" if self.shape == Shape.TASKS else f" {self.get_shape_display().lower()}"
        return f"{self.eval_set} train ({self.size}{what})"

    def tasks(self) -> list[Task]:
        """Without those that were erased since."""
        rows = self.rows.filter(task__erased_at=None).select_related("task")
        return [row.task for row in rows]


class DatasetRow(models.Model):
    """`split` is the task's split, kept equal to it by a composite foreign key (see the migration),
    and must be train.
    """

    dataset = models.ForeignKey(Dataset, models.CASCADE, related_name="rows")
    task = models.ForeignKey(Task, models.PROTECT, related_name="dataset_rows")
    split = models.CharField(max_length=12, default=Split.TRAIN, editable=False)
    position = models.PositiveIntegerField()

    class Meta:
        ordering = ("position",)
        constraints = [
            models.UniqueConstraint(fields=["dataset", "task"], name="one_row_per_task"),
            models.CheckConstraint(name="only_train_tasks_train", condition=Q(split=Split.TRAIN)),
        ]

    def __str__(self) -> str:
        return f"{self.dataset_id}/{self.position}"


class Source(models.TextChoices):
    """Where an example comes from."""

    CORRECTIONS = "corrections", "Corrections in production"
    FEEDBACK = "feedback", "Feedback on production runs"
    REPLAYS = "replays", "Replayed failures"
    REVIEWS = "reviews", "Reward reviews"
    EVALUATION = "evaluation", "An evaluation’s samples"


class Example(models.Model):
    """One preference pair, labelled answer or good answer of a dataset (`judged.Example`), from a
    training task or a production run. `split` is the task's, as in DatasetRow.
    """

    dataset = models.ForeignKey(Dataset, models.CASCADE, related_name="examples")
    position = models.PositiveIntegerField()
    source = models.CharField(max_length=12, choices=Source)
    task = models.ForeignKey(Task, models.PROTECT, null=True, related_name="examples")
    split = models.CharField(max_length=12, default=Split.TRAIN, editable=False)
    trajectory = models.ForeignKey(Trajectory, models.SET_NULL, null=True, related_name="examples")
    data = models.JSONField(
        help_text=(
            "chosen and rejected, or answer and good; messages and tools if no task provides them"
        )
    )

    class Meta:
        ordering = ("position",)
        constraints = [
            models.UniqueConstraint(
                fields=["dataset", "position"], name="one_example_per_position"
            ),
            models.CheckConstraint(
                name="only_train_tasks_have_examples", condition=Q(split=Split.TRAIN)
            ),
        ]

    def __str__(self) -> str:
        return f"{self.dataset_id}/{self.position}"


class Method(models.TextChoices):
    SFT = "sft", "SFT"
    REJECTION = "rejection", "Rejection sampling"
    DPO = "dpo", "DPO"
    KTO = "kto", "KTO"
    DISTILL = "distill", "Distillation"
    REWARD = "reward_model", "Reward model"
    BEST_OF_N = "best_of_n", "Rejection sampling in the run"
    ON_POLICY = "on_policy", "On-policy distillation"
    GRPO = "grpo", "GRPO"


# For the methods that learn from examples: the kind of examples, and their possible sources.
SHAPES: dict[str, Shape] = {
    Method.REJECTION: Shape.ANSWERS,
    Method.DPO: Shape.PAIRS,
    Method.KTO: Shape.LABELS,
    Method.DISTILL: Shape.ANSWERS,
    Method.REWARD: Shape.PAIRS,
}
SOURCES: dict[str, list[Source]] = {
    Method.REJECTION: [Source.EVALUATION],
    Method.DISTILL: [Source.EVALUATION],
    Method.DPO: list(Source),
    Method.REWARD: list(Source),
    Method.KTO: [
        Source.FEEDBACK,
        Source.CORRECTIONS,
        Source.REPLAYS,
        Source.REVIEWS,
        Source.EVALUATION,
    ],
}
PROGRAMS: dict[str, str] = {
    Method.REJECTION: Method.SFT,
    Method.DISTILL: Method.SFT,
}  # programs whose name differs from the method's


class TrainingRunQuerySet(JobQuerySet, ArchivableQuerySet):
    pass


class TrainingRun(Archivable, Job):
    """One training job: from a parent model version to a new adapter version."""

    method = models.CharField(max_length=20, choices=Method)
    parent = models.ForeignKey(ModelVersion, models.PROTECT, related_name="training_runs")
    dataset = models.ForeignKey(Dataset, models.PROTECT, related_name="training_runs")
    environment = models.ForeignKey(Environment, models.PROTECT, related_name="training_runs")
    model_version = models.ForeignKey(
        ModelVersion,
        models.PROTECT,
        null=True,
        related_name="made_by",
        help_text="The model version that the run produced",
    )

    forked_from = models.ForeignKey(
        "self",
        models.SET_NULL,
        null=True,
        related_name="forks",
        help_text="The run whose checkpoint it started from",
    )

    reduced = models.JSONField(
        default=dict,
        help_text="Settings that replace the spec's after an attempt ran out of memory",
    )

    objects = TrainingRunQuerySet.as_manager()

    class Meta(Job.Meta):
        pass

    is_new = False  # whether this request created it
    # as in evaluations; prompt versions are not trained, so the environment's own prompt is used
    prompt: dict = {}

    @property
    def audit_detail(self) -> dict[str, Any]:
        return {"oversight": self.spec.get("oversight", "")}

    @property
    def on_cluster(self) -> bool:
        """Whether it runs as a job on a Ray cluster (engines.ray)."""
        return "cluster" in self.spec

    @property
    def paused_by(self) -> dict[str, Any] | None:
        """The alarm that paused the run, which can then be resumed."""
        return self.result.get("paused") if self.state == JobState.CANCELLED else None

    def get_absolute_url(self) -> str:
        return reverse("training:detail", args=[self.project.slug, self.pk])


class Measurement(Job):
    """How fast a model samples and trains on a machine, and how much memory that needs: a
    half-minute job, on which the estimates of runs are based (apps.training.budget). `key`
    identifies the model and the settings that it is valid for.
    """

    trains = False  # its weights are thrown away

    parent = models.ForeignKey(ModelVersion, models.CASCADE, related_name="measurements")
    environment = models.ForeignKey(Environment, models.CASCADE, related_name="measurements")
    eval_set = models.ForeignKey(EvalSet, models.CASCADE, related_name="measurements")
    key = models.CharField(max_length=64, db_index=True)


class Metric(models.Model):
    """One number at one step. If a resumed attempt repeats the step, it overwrites the value."""

    run = models.ForeignKey(TrainingRun, models.CASCADE, related_name="metrics")
    step = models.PositiveIntegerField()
    name = models.CharField(max_length=60)
    value = models.FloatField()
    at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ("step", "id")
        constraints = [
            models.UniqueConstraint(fields=["run", "name", "step"], name="one_value_per_step")
        ]

    def __str__(self) -> str:
        return f"{self.name}[{self.step}] = {self.value:.4g}"


class RunAlarm(models.Model):
    """An alarm raised by a step (workers.lib.alarms). `cleared_step`: the step at which it cleared;
    null while it is active.
    """

    class Action(models.TextChoices):
        WARN = "warn", "warning"
        PAUSE = "pause", "paused the run"
        STOP = "stop", "stopped the run"

    run = models.ForeignKey(TrainingRun, models.CASCADE, related_name="alarms")
    step = models.PositiveIntegerField()
    name = models.CharField(max_length=40)
    action = models.CharField(max_length=5, choices=Action)
    value = models.FloatField(null=True)
    threshold = models.FloatField(null=True)
    message = models.TextField()
    todo = models.TextField(blank=True)
    attempt = models.PositiveIntegerField()
    cleared_step = models.PositiveIntegerField(null=True)
    at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ("-step", "-id")
        constraints = [
            models.UniqueConstraint(
                fields=["run", "name", "step", "action"], name="one_alarm_per_step"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.name} at step {self.step}"


class Checkpoint(models.Model):
    """A complete checkpoint, from which a later attempt resumes: a folder that the job keeps
    (`core.job_files`).
    """

    run = models.ForeignKey(TrainingRun, models.CASCADE, related_name="checkpoints")
    step = models.PositiveIntegerField()
    attempt = models.PositiveIntegerField()
    at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ("-step",)
        constraints = [
            models.UniqueConstraint(fields=["run", "step"], name="one_checkpoint_per_step")
        ]

    def __str__(self) -> str:
        return f"step {self.step}"

    @property
    def folder(self) -> str:
        """Within the run's own folder, as the trainers name it."""
        return f"out/checkpoint-{self.step}"


class Rollout(SampleFields):
    """One scored output during training: a rollout, a sample of a periodic validation, or a sample
    at a checkpoint.
    """

    class Phase(models.TextChoices):
        TRAIN = "train"
        VALIDATION = "validation"
        CHECKPOINT = (  # the same tasks at the start and at every checkpoint, for people to read
            "checkpoint"
        )

    run = models.ForeignKey(TrainingRun, models.CASCADE, related_name="rollouts")
    task = models.ForeignKey(Task, models.CASCADE, related_name="rollouts")
    phase = models.CharField(max_length=12, choices=Phase)
    step = models.PositiveIntegerField()
    index = models.PositiveSmallIntegerField()

    class Meta:
        ordering = ("step", "task__key", "index")
        constraints = [
            models.UniqueConstraint(
                fields=["run", "phase", "step", "task", "index"], name="one_rollout_per_index"
            ),
        ]

    def __str__(self) -> str:
        return f"step {self.step} {self.task} #{self.index}"


class JudgedOutput(models.Model):
    """A rollout drawn for the project's LLM judge (`judged_outputs`), and its verdict: null until
    it was asked.
    """

    run = models.ForeignKey(TrainingRun, models.CASCADE, related_name="judged_outputs")
    rollout = models.OneToOneField(Rollout, models.CASCADE, related_name="judged")
    verdict = models.ForeignKey(JudgeVerdict, models.SET_NULL, null=True, related_name="+")

    def __str__(self) -> str:
        return f"{self.rollout}: {self.verdict or 'not judged'}"


class PromptSearch(Job):
    """Has GEPA improve the system prompt of `version`. Proposals come from failures on the training
    tasks of `dataset` and are selected on the validation tasks of its set. The best becomes a
    prompt version.
    """

    nouns = ("prompt search", "prompt searches")

    version = models.ForeignKey(ModelVersion, models.PROTECT, related_name="prompt_searches")
    dataset = models.ForeignKey(Dataset, models.PROTECT, related_name="prompt_searches")
    environment = models.ForeignKey(Environment, models.PROTECT, related_name="prompt_searches")
    model_version = models.ForeignKey(
        ModelVersion,
        models.PROTECT,
        null=True,
        related_name="found_by",
        help_text="The prompt version that was found",
    )
    used = models.JSONField(
        default=dict, help_text="calls, input_tokens, output_tokens and usd, over all attempts"
    )

    @property
    def unpriced(self) -> list[str]:
        """The models without a known price: what they cost is not part of `used["usd"]`."""
        parts = (self.spec["engine"], self.spec["reflecting"])
        return [
            f"{part['model']} on {part['server_name']}"
            for part in parts
            if part.get("price", ()) is None
        ]

    @property
    def usd(self) -> float | None:
        """None if a price is unknown."""
        return None if self.unpriced else self.used.get("usd", 0.0)

    def get_absolute_url(self) -> str:
        return reverse("training:search", args=[self.project.slug, self.pk])


class PromptCandidate(models.Model):
    """One prompt of a search. `score` is on the validation tasks; `before` and `after` are the
    parent's and its own total on the few training tasks that it was proposed from. `calls` and
    `usd` are the search's totals at that point.
    """

    class State(models.TextChoices):
        START = "start", "Start"
        KEPT = "kept", "Kept"
        REJECTED = "rejected", "Rejected"

    search = models.ForeignKey(PromptSearch, models.CASCADE, related_name="candidates")
    number = models.PositiveIntegerField()
    parent = models.PositiveIntegerField(null=True)
    state = models.CharField(max_length=10, choices=State)
    prompt = models.TextField(blank=True)
    score = models.FloatField(null=True)
    before = models.FloatField(null=True)
    after = models.FloatField(null=True)
    calls = models.PositiveIntegerField(default=0)
    usd = models.FloatField(default=0)

    class Meta:
        ordering = ("number",)
        constraints = [
            models.UniqueConstraint(fields=["search", "number"], name="one_candidate_per_number")
        ]

    def __str__(self) -> str:
        return f"#{self.number}"
