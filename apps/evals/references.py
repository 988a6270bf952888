"""How a field of an operation names a set, an environment, a model version or an evaluation."""

from __future__ import annotations

import re
from typing import Annotated
from uuid import UUID

from django.db.models import QuerySet
from django.http import Http404
from msgspec import Meta

from apps.core.http import uuid_of
from apps.core.models import Project
from apps.core.operations import Reference
from apps.environments.models import Environment
from apps.evals.models import EvalRun, EvalSet
from apps.registry.models import ModelKind, ModelVersion
from workers.lib.typed import Text

NAMED = re.compile(r"([-a-zA-Z0-9_]{1,80})@(\d{1,9})")
VERSION = re.compile(r"([-a-zA-Z0-9_]{1,80})-v(\d{1,9})")


def runs_of(project: Project) -> QuerySet[EvalRun]:
    rows = EvalRun.objects.filter(project=project)
    return rows.select_related("project", "eval_set", "model_version", "environment__verifier")


def find_run(project: Project, name: UUID | str) -> EvalRun:
    """Raises Http404."""
    run = runs_of(project).filter(pk=uuid_of(str(name))).first()
    if run is None:
        raise Http404("No evaluation of this project has this id.")
    return run


def find_set(project: Project, name: UUID | str) -> EvalSet:
    """By id or “name@version”. Raises Http404."""
    rows = EvalSet.objects.filter(project=project).select_related("project")
    if named := NAMED.fullmatch(str(name)):
        rows = rows.filter(slug=named[1], version=int(named[2]))
    else:
        rows = rows.filter(pk=uuid_of(str(name)))
    eval_set = rows.first()
    if eval_set is None:
        raise Http404("No eval set of this project has this id or name@version.")
    return eval_set


def find_environment(project: Project, name: str) -> Environment:
    """By “slug@version”. Raises Http404."""
    rows = Environment.objects.filter(project=project).select_related("verifier", "project")
    named = NAMED.fullmatch(name)
    environment = rows.filter(slug=named[1], version=int(named[2])).first() if named else None
    if environment is None:
        raise Http404("No environment of this project has this name@version (`environment`).")
    return environment


def find_version(project: Project, name: str | int) -> ModelVersion:
    """By name (“support-v3”, for an agent “name@version” or a prefix of it) or number. Raises
    Http404.
    """
    version = _version(ModelVersion.objects.filter(project=project), name)
    if version is None:
        raise Http404("No model version of this project has this name or number (`model_version`).")
    return version


def _version(rows: QuerySet[ModelVersion], name: str | int) -> ModelVersion | None:
    if isinstance(name, int):
        return rows.filter(pk=name).first() if 0 < name < 2**63 else None
    if named := VERSION.fullmatch(name):
        return rows.filter(name=named[1], version=int(named[2])).first()
    agent, at, version = name.partition("@")
    if not at:
        return None
    agents = rows.filter(name=agent, kind=ModelKind.AGENT)
    if exact := agents.filter(agent_version=version).first():
        return exact
    alike = list(agents.filter(agent_version__startswith=version)[:2]) if version else []
    return alike[0] if len(alike) == 1 else None


EvalSetNamed = Annotated[EvalSet, Reference(find_set), Meta(description="Its id or name@version")]
EnvironmentNamed = Annotated[
    Environment,
    Reference(
        find_environment,
        rows=lambda project: project.environments.current().select_related("verifier"),
    ),
    Meta(description="slug@version", extra={"hint": ""}),
]
VersionNamed = Annotated[
    ModelVersion,
    Reference(
        find_version,
        rows=lambda project: project.model_versions.current().evaluated_here(),
        sent=Text | int,
    ),
    Meta(description="Its name, such as support-v3, or its number"),
]
RunNamed = Annotated[EvalRun, Reference(find_run, rows=runs_of), Meta(description="Its id")]
