"""What an API request names, see `references`, and whether its key may see held-out tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from uuid import UUID

from django.core.exceptions import PermissionDenied
from django.db.models import Model, QuerySet
from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request

from apps.core.models import ApiKey, Job
from apps.core.query import whole_number
from apps.environments.api import body_of
from apps.environments.models import Environment
from apps.evals import references
from apps.evals.models import EvalRun, EvalSet, Split
from apps.registry.models import ModelVersion
from workers.lib.typed import convert

Row = TypeVar("Row", bound=Model)
Find = Callable[[Request, str], Any]
NO_RIGHT = (
    "This key has no access to hold-outs. An operator can create one that does under Settings → API"
    " keys."
)
PAGE, MAX_PAGE = 50, 500
CURSOR = OpenApiParameter("cursor", str, description="`next` of the previous page")
LIMIT = OpenApiParameter("limit", whole_number(1, MAX_PAGE, PAGE))


def find_run(request: Request, name: UUID | str) -> EvalRun:
    return references.find_run(request.auth.project, name)


def find_set(request: Request, name: UUID | str) -> EvalSet:
    return references.find_set(request.auth.project, name)


def find_environment(request: Request, name: str) -> Environment:
    return references.find_environment(request.auth.project, name)


def find_version(request: Request, name: str | int) -> ModelVersion:
    return references.find_version(request.auth.project, name)


def may_see(request: Request, split: str) -> bool:
    """Whether the key may see tasks of this split, and anything that names or quotes them."""
    return split != Split.HOLDOUT or request.auth.sees_holdout


def needs_right(request: Request, split: str) -> None:
    """Raises PermissionDenied if the tasks are held out and the key may not see them."""
    require_right(request.auth, split)


def require_right(key: ApiKey | None, split: str) -> None:
    """The same for a key; a person has none. Raises PermissionDenied."""
    if key and split == Split.HOLDOUT and not key.sees_holdout:
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
