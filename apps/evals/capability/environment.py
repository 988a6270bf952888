"""The environment in which general capability is measured: the bare model, without the agent's
prompt and tools.
"""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet

from apps.core.models import Project
from apps.environments.actions import save_environment, save_verifier
from apps.environments.models import Environment, EnvironmentKind
from apps.evals.capability.generate import VERIFIER
from apps.registry.models import ModelVersion

SLUG = "general-capability"
HARNESS = {"temperature": 0.0, "top_p": 1.0, "max_new_tokens": 512, "max_turns": 1}


def general_environments(project: Project) -> QuerySet[Environment]:
    """The environments with this content; people may give any environment this name."""
    content = {
        "kind": EnvironmentKind.SINGLE_TURN,
        "harness": HARNESS,
        "config": {},
        "verifier__spec": VERIFIER,
    }
    return project.environments.filter(**content)


def prompt_in(environment: Environment, version: ModelVersion) -> dict[str, Any]:
    """The parts of a prompt version that apply in an environment: none in that of general
    capability, which measures the bare model.
    """
    is_general = (
        bool(version.prompt)
        and general_environments(environment.project).filter(pk=environment.pk).exists()
    )
    return {} if is_general else version.prompt


def general_environment(*, project: Project, by: Any) -> Environment:
    """The project's environment for general capability, created if it does not exist."""
    verifier = save_verifier(project=project, name=SLUG, spec=VERIFIER, by=by)
    return save_environment(
        project=project,
        slug=SLUG,
        kind=EnvironmentKind.SINGLE_TURN,
        harness=HARNESS,
        verifier=verifier,
        by=by,
    )
