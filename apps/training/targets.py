from __future__ import annotations

from apps.teamwork.targets import Kind, register
from apps.training.models import TrainingRun

register(
    Kind(
        name="training",
        noun="a training run",
        model=TrainingRun,
        related=("project", "created_by"),
        title=lambda run: f"the training run “{run.name}”",
        owners=lambda run: [run.created_by],
    )
)
