"""Writes of floor 5. Verifiers and environments are immutable: a change is a new version."""

from __future__ import annotations

import hashlib
import json
from typing import Any, TypeVar

from django.db import models, transaction

from apps.core.actions import audit
from apps.core.models import Project
from apps.environments.models import Environment, Verifier

Versioned = TypeVar("Versioned", Verifier, Environment)


def content_hash(value: object) -> str:
    """SHA-256 hex of the canonical JSON of a value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


@transaction.atomic
def save_verifier(*, project: Project, name: str, spec: dict, by: Any) -> Verifier:
    """The version with this spec: the one there is, or a new one."""
    return _save(Verifier, project, {"name": name}, content_hash(spec), by, spec=spec)


@transaction.atomic
def save_environment(
    *, project: Project, slug: str, builtin: str, harness: dict, verifier: Verifier, by: Any
) -> Environment:
    """The version with this content: the one there is, or a new one. The verifier's hash is part of the content."""
    digest = content_hash({"builtin": builtin, "harness": harness, "verifier": verifier.hash})
    return _save(Environment, project, {"slug": slug}, digest, by, builtin=builtin, harness=harness, verifier=verifier)


def _save(
    model: type[Versioned], project: Project, name: dict[str, str], digest: str, by: Any, **content: Any
) -> Versioned:
    # The project's row is the lock under which version numbers are given out.
    Project.objects.select_for_update().get(pk=project.pk)
    rows = model.objects.filter(project=project, **name)
    existing = rows.filter(hash=digest).first()
    if existing:
        return existing
    last = rows.aggregate(last=models.Max("version"))["last"] or 0
    row = model.objects.create(project=project, version=last + 1, hash=digest, created_by=by, **name, **content)
    audit(f"{model._meta.model_name}.created", project=project, by=by, target=row, name=str(row), hash=digest)
    return row
