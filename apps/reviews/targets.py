"""Reviews are judged blind, so they have no public comments; they can be assigned to people."""

from __future__ import annotations

from apps.core.models import Role
from apps.reviews.models import RewardReview
from apps.teamwork.targets import Kind, register

register(
    Kind(
        name="review",
        noun="a reward review",
        model=RewardReview,
        related=("project", "verifier"),
        title=lambda review: f"the reward review of {review.verifier}",
        takes_comments=False,
        worker=Role.REVIEWER,
    )
)
