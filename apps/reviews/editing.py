"""Saving from the editor: a new version of a verifier, and of the environments that adopt it."""

from __future__ import annotations

from typing import Any

from django.db import transaction

from apps.core.models import Project
from apps.environments.actions import save_environment, save_verifier
from apps.environments.models import Environment, Verifier
from apps.reviews.actions import ReviewError


@transaction.atomic
def save_edit(
    *,
    project: Project,
    name: str,
    spec: dict,
    note: str,
    before: Verifier | None,
    adopt: bool,
    by: Any,
) -> tuple[Verifier, list[Environment]]:
    """The new version (or the one with this very spec), and the new versions of environments that
    use it.

    `adopt` makes those: of each environment whose newest version uses `before`. Raises ReviewError
    for a new verifier without a name, or with one that is taken.
    """
    if not name:
        raise ReviewError("Enter a name for the verifier: letters, digits and hyphens.")
    if before is None and project.verifiers.filter(name=name).exists():
        raise ReviewError(
            f"A verifier named “{name}” already exists. Edit it, or choose another name."
        )
    verifier = save_verifier(project=project, name=name, spec=spec, note=note.strip()[:300], by=by)
    if verifier == before or before is None or not adopt:
        return verifier, []
    return verifier, [_with(environment, verifier, by) for environment in _newest_with(before)]


def _newest_with(verifier: Verifier) -> list[Environment]:
    """Environments whose newest version uses this verifier version."""
    newest = (
        Environment.objects.filter(project=verifier.project)
        .order_by("slug", "-version")
        .distinct("slug")
    )
    return [environment for environment in newest if environment.verifier_id == verifier.pk]


def _with(environment: Environment, verifier: Verifier, by: Any) -> Environment:
    return save_environment(
        project=environment.project,
        slug=environment.slug,
        kind=environment.kind,
        builtin=environment.builtin,
        harness=environment.harness,
        config=environment.config,
        dataset=environment.dataset,
        package=environment.package,
        verifier=verifier,
        by=by,
    )
