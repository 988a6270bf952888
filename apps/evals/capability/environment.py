"""The environment in which general capability is measured: the bare model, without the agent's prompt and tools."""

from __future__ import annotations

from typing import Any

from apps.core.models import Project
from apps.environments.actions import save_environment, save_verifier
from apps.environments.models import Environment, EnvironmentKind
from apps.evals.capability.generate import VERIFIER

SLUG = "general-capability"
HARNESS = {"temperature": 0.0, "top_p": 1.0, "max_new_tokens": 512, "max_turns": 1}


def general_environment(*, project: Project, by: Any) -> Environment:
    """The project's, made where it is not there yet."""
    verifier = save_verifier(project=project, name=SLUG, spec=VERIFIER, by=by)
    return save_environment(
        project=project, slug=SLUG, kind=EnvironmentKind.SINGLE_TURN, harness=HARNESS, verifier=verifier, by=by
    )
