"""Renaming, archiving and deleting environments."""

from __future__ import annotations

from apps.core.managed.objects import Managed, register
from apps.environments.models import Environment

register(
    Managed(
        kind="environment",
        noun="the environment",
        plural="Environments",
        model=Environment,
        name="slug",
        versioned=True,
        warning="Flows, trainers and API clients that use the old name must be updated.",
    )
)
