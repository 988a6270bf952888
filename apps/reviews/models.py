"""Reviews: before a reward may be used for training, probes attack it and people judge it."""

from __future__ import annotations

from dataclasses import dataclass

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.urls import reverse
from django.utils import timezone

from apps.core.models import Job, Project
from apps.environments.models import Environment, Verifier
from apps.evals.models import EvalRun, EvalSet, Sample, SampleFields, Task


class ReviewPolicy(models.Model):
    """A project's requirements for a verifier to train. Without a row the defaults apply.

    Rates and κ must be met by the conservative end of their 95% intervals.
    """

    project = models.OneToOneField(Project, models.CASCADE, related_name="review_policy")
    min_samples = models.PositiveIntegerField(default=50)
    min_kappa = models.FloatField(default=0.6)
    min_accuracy = models.FloatField(default=0.85)
    max_false_positive_rate = models.FloatField(default=0.15)
    reviewers_per_sample = models.PositiveSmallIntegerField(default=2)
    four_eyes = models.BooleanField(
        default=True, help_text="Who wrote, overrode or alone reviewed does not start training"
    )
    max_unreviewed_share = models.FloatField(
        default=0.1, help_text="Of training tasks unlike those judged"
    )
    probes_must_pass = models.BooleanField(default=True)
    updated_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+"
    )
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                name="review_policy_in_range",
                condition=Q(min_samples__gte=1, reviewers_per_sample__gte=1)
                & Q(min_kappa__gte=-1, min_kappa__lte=1)
                & Q(max_false_positive_rate__gte=0, max_false_positive_rate__lte=1)
                & Q(min_accuracy__gte=0, min_accuracy__lte=1)
                & Q(max_unreviewed_share__gte=0, max_unreviewed_share__lte=1),
            )
        ]

    def __str__(self) -> str:
        return f"Review policy of {self.project}"


class RewardReview(models.Model):
    """A queue of samples, scored by one verifier version and judged blind. `policy` is frozen when
    it is opened.
    """

    project = models.ForeignKey(Project, models.CASCADE, related_name="reward_reviews")
    verifier = models.ForeignKey(Verifier, models.PROTECT, related_name="reviews")
    runs = models.ManyToManyField(EvalRun, related_name="reviews")
    policy = models.JSONField(help_text="The fields of ReviewPolicy, as they were")
    scope = models.JSONField(
        help_text=(
            "Who scored each evaluation, and what tasks the samples were drawn from (`drawing`)"
        )
    )
    seed = models.PositiveIntegerField(default=0)
    thin = models.JSONField(default=list, help_text="Strata that had too few samples, in words")
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+"
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("-created_at", "-id")

    def __str__(self) -> str:
        return f"Review of {self.verifier}"

    def get_absolute_url(self) -> str:
        return reverse("reviews:detail", args=[self.project.slug, self.pk])

    @property
    def training(self) -> dict | None:
        """The training run whose outputs it is of: {run, name}. Such a review neither opens nor
        closes the lock.
        """
        return self.scope.get("training")


@dataclass(frozen=True)
class Origin:
    """What gave a sent output, in the terms of a sample's evaluation."""

    environment: Environment
    model_version: str
    prompt: dict


class SentOutput(SampleFields):
    """An output of a training run's policy that was sent to a review, unchanged: it outlives the
    run. `source` says where it is from: run, name, step, and the rollout's number."""

    project = models.ForeignKey(Project, models.CASCADE, related_name="sent_outputs")
    environment = models.ForeignKey(Environment, models.CASCADE, related_name="+")
    task = models.ForeignKey(Task, models.CASCADE, related_name="+")
    source = models.JSONField()

    def __str__(self) -> str:
        return f"{self.source['name']}, step {self.source['step']}"

    @property
    def run(self) -> Origin:
        return Origin(self.environment, str(self), {})


class ReviewItem(models.Model):
    """One sample, or one output of a training run, in a review's queue, in the (shuffled) order it
    is shown.

    The score is the one that the review's verifier gives, kept here: the sample may have been
    scored by another version. `ruling` settles what reviewers could not agree on.
    """

    review = models.ForeignKey(RewardReview, models.CASCADE, related_name="items")
    sample = models.ForeignKey(Sample, models.PROTECT, null=True, related_name="review_items")
    sent = models.ForeignKey(SentOutput, models.CASCADE, null=True, related_name="review_items")
    position = models.PositiveIntegerField()
    stratum = models.CharField(max_length=200, blank=True)
    reward = models.FloatField()
    components = models.JSONField(default=dict)
    success = models.BooleanField()
    reserved_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+"
    )
    reserved_until = models.DateTimeField(null=True)
    ruling = models.BooleanField(
        null=True, help_text="An adjudicator's word: did the output do the task?"
    )
    ruled_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+"
    )
    ruled_at = models.DateTimeField(null=True)
    ruling_reason = models.TextField(blank=True)

    class Meta:
        ordering = ("position",)
        constraints = [
            models.UniqueConstraint(fields=["review", "sample"], name="one_item_per_sample"),
            models.UniqueConstraint(fields=["review", "position"], name="one_item_per_position"),
            models.CheckConstraint(
                name="item_is_sample_or_sent",
                condition=Q(sample__isnull=True, sent__isnull=False)
                | Q(sample__isnull=False, sent__isnull=True),
            ),
            models.CheckConstraint(
                name="ruling_has_time",
                condition=Q(ruling__isnull=True, ruled_at__isnull=True)
                | Q(ruling__isnull=False, ruled_at__isnull=False),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.review_id}/{self.position}"

    @property
    def scored(self) -> Sample | SentOutput:
        return self.sample or self.sent  # type: ignore[return-value]


class Judgement(models.Model):
    """A person's verdict on one item: blind, whether the output did the task; then, with the score
    shown, whether the score is right.
    """

    item = models.ForeignKey(ReviewItem, models.CASCADE, related_name="judgements")
    by = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="judgements")
    success = models.BooleanField()
    note = models.TextField(blank=True)
    at = models.DateTimeField(default=timezone.now)
    agrees = models.BooleanField(
        null=True, help_text="With the score, once it was shown; null: not asked yet"
    )
    reason = models.TextField(blank=True)
    agreed_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ("-at",)
        constraints = [
            models.UniqueConstraint(fields=["item", "by"], name="one_judgement_per_person")
        ]

    def __str__(self) -> str:
        return f"{self.by}: {'success' if self.success else 'failure'}"

    @property
    def second_thoughts(self) -> bool:
        """Whether their answer on the score contradicts their blind verdict."""
        return self.agrees is not None and self.agrees != (self.success == self.item.success)


class LockOverride(models.Model):
    """Leave to train with a verifier that has not passed its review: who, why, when. Only ever
    added.

    It holds for the environments that used the verifier then, scored as they were then: `scope`
    (`scorer.scorer_of`).
    """

    verifier = models.ForeignKey(Verifier, models.CASCADE, related_name="overrides")
    by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+")
    reason = models.TextField()
    scope = models.JSONField(default=list)
    at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ("-at",)
        constraints = [models.CheckConstraint(name="override_has_reason", condition=~Q(reason=""))]

    def __str__(self) -> str:
        return f"{self.verifier} unlocked by {self.by}"


class ProbeRun(Job):
    """The attacks on a verifier, with tasks of an eval set as their matter. `result` is the
    report.
    """

    trains = False
    is_evidence = True  # of what a reward was tested for

    verifier = models.ForeignKey(Verifier, models.CASCADE, related_name="probe_runs")
    environment = models.ForeignKey(Environment, models.CASCADE, related_name="probe_runs")
    eval_set = models.ForeignKey(EvalSet, models.PROTECT, related_name="probe_runs")
    failed = models.PositiveIntegerField(
        null=True, help_text="Findings that lock; null until it has ended"
    )

    def get_absolute_url(self) -> str:
        return reverse("reviews:probe", args=[self.project.slug, self.pk])


class ProbeWaiver(models.Model):
    """What one probe of a run found, accepted by a person: why. Only ever added."""

    run = models.ForeignKey(ProbeRun, models.CASCADE, related_name="waivers")
    probe = models.CharField(max_length=60)
    by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+")
    reason = models.TextField()
    at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ("-at",)
        constraints = [
            models.UniqueConstraint(fields=["run", "probe"], name="one_waiver_per_probe"),
            models.CheckConstraint(name="waiver_has_reason", condition=~Q(reason="")),
        ]

    def __str__(self) -> str:
        return f"{self.name} accepted by {self.by}"

    @property
    def name(self) -> str:
        return self.probe.replace("_", " ")


class Rescore(Job):
    """Stored samples scored again by a candidate spec, before it is saved: shows what would change.
    Nothing is generated.
    """

    verifier = models.ForeignKey(
        Verifier, models.CASCADE, related_name="rescores", help_text="The version it changes"
    )
    environment = models.ForeignKey(Environment, models.CASCADE, related_name="rescores")
    candidate = models.JSONField(help_text="A verifier's spec")
    candidate_hash = models.CharField(max_length=64)
    samples = models.ManyToManyField(Sample, related_name="rescores")

    def get_absolute_url(self) -> str:
        return reverse("reviews:rescore", args=[self.project.slug, self.pk])
