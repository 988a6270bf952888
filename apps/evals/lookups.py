"""Resolves what an API request names: a set, an environment, a version, an evaluation, a page."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from uuid import UUID

from django.db.models import Model, QuerySet
from drf_spectacular.utils import OpenApiParameter
from rest_framework.exceptions import NotFound, PermissionDenied
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core.http import uuid_of
from apps.core.models import Job
from apps.core.paging import keyset
from apps.core.query import number_of, whole_number
from apps.environments.api import body_of
from apps.environments.models import Environment
from apps.evals.models import EvalRun, EvalSet, Split
from apps.registry.models import ModelKind, ModelVersion
from workers.lib.typed import convert

Row = TypeVar("Row", bound=Model)
Find = Callable[[Request, str], Any]
NO_RIGHT = (
    "This key has no access to hold-outs. An operator can create one that does under Settings → API"
    " keys."
)
PAGE, MAX_PAGE = 50, 500
NAMED = re.compile(r"([-a-zA-Z0-9_]{1,80})@(\d{1,9})")
VERSION = re.compile(r"([-a-zA-Z0-9_]{1,80})-v(\d{1,9})")
CURSOR = OpenApiParameter("cursor", str, description="`next` of the previous page")
LIMIT = OpenApiParameter("limit", whole_number(1, MAX_PAGE, PAGE))


def runs_of(request: Request) -> QuerySet[EvalRun]:
    rows = EvalRun.objects.filter(project=request.auth.project)
    return rows.select_related("project", "eval_set", "model_version", "environment__verifier")


def find_run(request: Request, given: UUID | str) -> EvalRun:
    """Raises NotFound."""
    found = runs_of(request).filter(pk=uuid_of(str(given))).first()
    if found is None:
        raise NotFound("No evaluation of this project has this id.")
    return found


def find_set(request: Request, given: UUID | str) -> EvalSet:
    """By id or “name@version”. Raises NotFound."""
    rows, named = (
        EvalSet.objects.filter(project=request.auth.project).select_related("project"),
        NAMED.fullmatch(str(given)),
    )
    rows = (
        rows.filter(slug=named[1], version=int(named[2]))
        if named
        else rows.filter(pk=uuid_of(str(given)))
    )
    found = rows.first()
    if found is None:
        raise NotFound("No eval set of this project has this id or name@version.")
    return found


def find_environment(request: Request, given: str) -> Environment:
    """By “slug@version”. Raises NotFound."""
    named = NAMED.fullmatch(given)
    rows = Environment.objects.filter(project=request.auth.project).select_related(
        "verifier", "project"
    )
    found = rows.filter(slug=named[1], version=int(named[2])).first() if named else None
    if found is None:
        raise NotFound("No environment of this project has this name@version (`environment`).")
    return found


def find_version(request: Request, given: str | int) -> ModelVersion:
    """By name (“support-v3”, for an agent “name@version” or a prefix of it) or number. Raises
    NotFound.
    """
    named, rows = (
        VERSION.fullmatch(str(given)),
        ModelVersion.objects.filter(project=request.auth.project),
    )
    if named:
        found = rows.filter(name=named[1], version=int(named[2])).first()
    elif "@" in str(given):
        name, _, version = str(given).partition("@")
        alike = list(
            rows.filter(name=name, agent_version__startswith=version, kind=ModelKind.AGENT)[:2]
        )
        exact = rows.filter(name=name, agent_version=version, kind=ModelKind.AGENT).first()
        found = exact or (alike[0] if len(alike) == 1 and version else None)
    else:
        found = (
            rows.filter(pk=given).first() if isinstance(given, int) and 0 < given < 2**63 else None
        )
    if found is None:
        raise NotFound(
            "No model version of this project has this name or number (`model_version`)."
        )
    return found


def may_see(request: Request, split: str) -> bool:
    """Whether the key may see tasks of this split, and anything that names or quotes them."""
    return split != Split.HOLDOUT or request.auth.sees_holdout


def needs_right(request: Request, split: str) -> None:
    """Raises PermissionDenied if the tasks are held out and the key may not see them."""
    if not may_see(request, split):
        raise PermissionDenied(NO_RIGHT)


def error_of(request: Request, job: Job, split: str) -> str:
    """The error of a job on tasks of this split: its text may quote a task."""
    hidden = (
        "Failed. The reason may quote a held-out task, so it is only returned for keys with access"
        " to hold-outs."
    )
    return job.error if not job.error or may_see(request, split) else hidden


def form_of(request: Request, form: Any) -> Any:
    """The request body as a form. Raises FormError, TooLarge."""
    return convert(body_of(request), form)


def filtered(
    request: Request, rows: QuerySet[Row], filters: Mapping[str, Find | None]
) -> QuerySet[Row]:
    """The rows filtered by {field: what finds its value; None: the text itself, whose choices the
    declared parameter has checked}; in the query, a field is named without the path to it. Raises
    what the finders raise.
    """
    for field, find in filters.items():
        if value := request.query_params.get(field.rpartition("__")[2]):
            rows = rows.filter(**{field: find(request, value) if find else value})
    return rows


def listed(
    request: Request,
    rows: QuerySet[Row],
    as_json: Callable[[Request, Row], dict[str, Any]],
    prepare: Callable[[list[Row]], None] = lambda rows: None,
) -> Response:
    """A page of rows, newest first; `prepare` reads once for all of them. Raises NotACursor."""
    limit = number_of(request, "limit")
    found, following = keyset(rows, request.query_params.get("cursor", ""), limit)
    prepare(found)
    return Response({"results": [as_json(request, row) for row in found], "next": following})
