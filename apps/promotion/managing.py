"""Renaming, archiving and deleting models."""

from __future__ import annotations

from apps.core.bus import on
from apps.core.managed.objects import Managed, WhyNotArchive, register
from apps.registry.models import ModelVersion

register(
    Managed(
        kind="model",
        noun="the model",
        plural="Models",
        model=ModelVersion,
        name="name",
        versioned=True,
        warning="Flows and API clients that use the old name must be updated.",
    )
)


@on(WhyNotArchive[ModelVersion])
def is_live(question: WhyNotArchive[ModelVersion]) -> str | None:
    version = question.row
    names = ", ".join(version.live_in.current().values_list("name", flat=True))
    if names:
        return f"It is live in {names}. Promote another version or roll back first."
    active = version.trials.active().first() or version.deployments.active().first()
    return f"“{active}” is under way. Stop it first." if active else None
