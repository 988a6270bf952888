"""Floor 7: people judge scored outputs; agreement decides whether the reward may train."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils import timezone

from apps.core.models import Project
from apps.environments.models import Verifier
from apps.evals.models import EvalRun, Sample


class RewardReview(models.Model):
    """A queue of samples of one verifier version, judged blind. `policy` is frozen when the review is made."""

    project = models.ForeignKey(Project, models.CASCADE, related_name="reward_reviews")
    verifier = models.ForeignKey(Verifier, models.PROTECT, related_name="reviews")
    run = models.ForeignKey(EvalRun, models.PROTECT, related_name="reviews")
    policy = models.JSONField(help_text="min_samples, min_kappa, max_false_positive_rate")
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("-created_at", "-id")

    def __str__(self) -> str:
        return f"Review of {self.verifier}"


class ReviewItem(models.Model):
    """One sample in a review's queue, in the (shuffled) order it is shown."""

    review = models.ForeignKey(RewardReview, models.CASCADE, related_name="items")
    sample = models.ForeignKey(Sample, models.PROTECT, related_name="review_items")
    position = models.PositiveIntegerField()

    class Meta:
        ordering = ("position",)
        constraints = [
            models.UniqueConstraint(fields=["review", "sample"], name="one_item_per_sample"),
            models.UniqueConstraint(fields=["review", "position"], name="one_item_per_position"),
        ]

    def __str__(self) -> str:
        return f"{self.review_id}/{self.position}"


class Judgement(models.Model):
    """A person's blind word on one item: did the output do the task?"""

    item = models.ForeignKey(ReviewItem, models.CASCADE, related_name="judgements")
    by = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="judgements")
    success = models.BooleanField()
    note = models.TextField(blank=True)
    at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ("-at",)
        constraints = [models.UniqueConstraint(fields=["item", "by"], name="one_judgement_per_person")]

    def __str__(self) -> str:
        return f"{self.by}: {'success' if self.success else 'failure'}"


class LockOverride(models.Model):
    """Leave to train with a verifier that has not passed its review: who, why, when. Only ever added."""

    verifier = models.ForeignKey(Verifier, models.CASCADE, related_name="overrides")
    by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+")
    reason = models.TextField()
    at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ("-at",)
        constraints = [models.CheckConstraint(name="override_has_reason", condition=~Q(reason=""))]

    def __str__(self) -> str:
        return f"{self.verifier} unlocked by {self.by}"
