"""How a field of an operation names a set, an environment, a model version or an evaluation, and
which of them a form offers.
"""

from __future__ import annotations

import re
from typing import Annotated
from uuid import UUID

from django.db.models import Count, QuerySet
from django.http import Http404
from msgspec import Meta

from apps.core.http import row_number, uuid_of
from apps.core.models import JobState, Project
from apps.core.operations import Reference
from apps.environments.models import Environment
from apps.evals.models import EvalRun, EvalSet, Split
from apps.registry.harness import playable
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
    if isinstance(name, int) or name.isdecimal():  # in a query a number is a text
        return rows.filter(pk=row_number(name)).first()
    if named := VERSION.fullmatch(name):
        return rows.filter(name=named[1], version=int(named[2])).first()
    return agent_named(rows, name)


def agent_named(rows: QuerySet[ModelVersion], name: str) -> ModelVersion | None:
    """By “name@version”, or a prefix of it that only one has."""
    agent, at, version = name.partition("@")
    if not at:
        return None
    agents = rows.filter(name=agent, kind=ModelKind.AGENT)
    if exact := agents.filter(agent_version=version).first():
        return exact
    alike = list(agents.filter(agent_version__startswith=version)[:2]) if version else []
    return alike[0] if len(alike) == 1 else None


def versions_of(project: Project) -> QuerySet[ModelVersion]:
    return project.model_versions.current().evaluated_here()


def finished_on(project: Project, eval_set: EvalSet) -> QuerySet[EvalRun]:
    """Evaluations that a new one on the hold-out of the set may be stopped against."""
    return runs_of(project).filter(eval_set=eval_set, split=Split.HOLDOUT, state=JobState.SUCCEEDED)


def splits_of(eval_set: EvalSet) -> list[tuple[str, str]]:
    """The splits that have tasks, and how many."""
    counts = dict(eval_set.tasks.values_list("split").annotate(Count("pk")).order_by())
    return [(split, f"{split.label} ({counts[split]:,})") for split in Split if split in counts]


def channels_of(project: Project) -> list[tuple[str, str]]:
    return [(name, name) for name in project.channels.current().values_list("name", flat=True)]


def has_agents(project: Project) -> bool:
    return versions_of(project).filter(kind=ModelKind.AGENT).exists()


def find_agent(project: Project, name: str | int) -> ModelVersion:
    """Raises Http404."""
    version = _version(ModelVersion.objects.filter(project=project), name)
    if version is None:
        raise Http404("No agent of this project has this name@version or number (`played_by`).")
    return version


def agents_of(project: Project) -> QuerySet[ModelVersion]:
    return playable(project.model_versions)


def has_servers(project: Project) -> bool:
    return project.servers.exists()


def calls_others(project: Project) -> bool:
    return has_servers(project) or has_agents(project)


def may_stop_early(project: Project, eval_set: EvalSet) -> bool:
    return bool(channels_of(project)) and finished_on(project, eval_set).exists()


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
        rows=versions_of,
        sent=Text | int,
    ),
    Meta(description="Its name, such as support-v3, or its number"),
]
AgentNamed = Annotated[
    ModelVersion,
    Reference(find_agent, rows=agents_of, sent=Text | int),
    Meta(description="An agent's name@version, or its number"),
]
RunNamed = Annotated[EvalRun, Reference(find_run, rows=finished_on), Meta(description="Its id")]
