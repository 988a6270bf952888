"""Reviews are judged blind, so nothing is said of them in public; they are given to people."""

from __future__ import annotations

from apps.core.models import Role
from apps.reviews.models import RewardReview
from apps.teamwork.targets import Kind, register

register(
    Kind(
        name="review", noun="a reward review", model=RewardReview, related=("project", "verifier"), title=lambda review: f"the reward review of {review.verifier}",
        takes_comments=False, worker=Role.REVIEWER,
    )
)  # fmt: skip
