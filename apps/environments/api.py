"""Environments and verifiers over REST: read; verifiers saved. The key determines the project."""

from __future__ import annotations

import re
from typing import Any

from django.db.models import QuerySet
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.exceptions import APIException, NotFound, ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core.api import TooLarge, member_of
from apps.core.openapi import JSON, described, page
from apps.core.query import number_of, whole_number
from apps.core.routes import api
from apps.core.scopes import MANAGED, READABLE
from apps.core.storable import refuse_unstorable
from apps.environments import actions
from apps.environments.clients import load_for
from apps.environments.models import Environment, EnvironmentKind, Verifier
from apps.environments.protocol.bodies import MAX_TOOL, Refusal, check_bounds, read
from apps.environments.versions import changes
from apps.trajectories.decoding import loads
from workers.lib.errors import SpecError

PAGE, MAX_PAGE = 100, 1000


class SandboxBusy(APIException):
    """No run of the sandbox could begin in time."""

    status_code, default_code = 503, "busy"


SLUG = re.compile(r"[-a-zA-Z0-9_]{1,80}")
ENVIRONMENT = {
    "type": "object",
    "required": ["slug", "version", "kind", "hash", "tasks", "tools", "verifier", "url"],
    "properties": {
        "slug": {"type": "string"},
        "version": {"type": "integer"},
        "kind": {"enum": EnvironmentKind.values},
        "hash": {"type": "string"},
        "tasks": {"type": ["integer", "null"], "description": "Number of tasks in its eval set"},
        "dataset": {"type": ["object", "null"]},
        "tools": {"type": "array", "items": {"type": "string"}},
        "verifier": {"type": "object", "required": ["name", "version", "kind", "hash"]},
        "url": {
            "type": "string",
            "description": "Where it is served as a NeMo Gym resources server",
        },
    },
}
VERIFIER = {
    "type": "object",
    "required": ["name", "version", "kind", "hash", "note"],
    "properties": {
        "name": {"type": "string"},
        "version": {"type": "integer"},
        "kind": {"type": "string"},
        "hash": {"type": "string"},
        "note": {"type": "string"},
    },
}
NEW_VERIFIER = {
    "type": "object",
    "required": ["name"],
    "properties": {
        "name": {"type": "string", "pattern": "^[-a-zA-Z0-9_]{1,80}$"},
        "spec": {"type": "object", "description": "docs/verifiers.md"},
        "grader": {"type": "object", "description": "An OpenAI grader, in place of “spec”"},
        "note": {"type": "string", "maxLength": 300},
    },
}


PAGING = [
    OpenApiParameter("offset", whole_number(0, 10**9, 0)),
    OpenApiParameter("limit", whole_number(1, MAX_PAGE, PAGE)),
]


def page_of(request: Request, rows: QuerySet) -> tuple[list, int | None]:
    """The requested rows, and the offset of the next ones. Raises ValidationError."""
    limit, offset = number_of(request, "limit"), number_of(request, "offset")
    found = list(rows[offset : offset + limit + 1])
    return found[:limit], offset + limit if len(found) > limit else None


WHOLE = {
    "type": "object",
    "required": [*ENVIRONMENT["required"], "builtin", "harness", "config"],
    "properties": (
        ENVIRONMENT["properties"]
        | {
            "builtin": {"type": "string"},
            "harness": {
                "type": "object",
                "description": "The agent's part: prompt, tools, sampling, limits",
            },
            "config": {"type": "object"},
            "changes": {
                "type": "array",
                "description": "With `against`: the lines that differ",
                "items": {
                    "type": "object",
                    "properties": {"kind": {"type": "string"}, "line": {"type": "string"}},
                },
            },
        }
    ),
}


@extend_schema(
    operation_id="v1_environments_read",
    responses=described({200: WHOLE}, 400, 404),
    parameters=[
        OpenApiParameter(
            "against",
            whole_number(1, 10**9),
            description="Another version of it: adds `changes` since then",
        )
    ],
)
@api(GET=READABLE)
def item(request: Request, slug: str, version: int) -> Response:
    environment = _find(request, slug, version)
    found = whole_json(request, environment)
    if "against" in request.query_params:
        other = _find(request, slug, number_of(request, "against"))
        found["changes"] = [
            {"kind": kind, "line": line} for kind, line in changes(other, environment)
        ]
    return Response(found)


def _find(request: Request, slug: str, version: int) -> Environment:
    rows = Environment.objects.filter(project=request.auth.project).select_related(
        "verifier", "project", "package"
    )
    found = rows.filter(slug=slug, version=min(version, 10**9)).first()
    if found is None:
        raise NotFound("No environment of this project has this name and version.")
    return found


def whole_json(request: Request, environment: Environment) -> dict[str, Any]:
    names = ("builtin", "harness", "config")
    return as_json(request, environment) | {name: getattr(environment, name) for name in names}


def as_json(request: Request, environment: Environment) -> dict[str, Any]:
    return {
        "slug": environment.slug,
        "version": environment.version,
        "kind": environment.kind,
        "hash": environment.hash,
        "tasks": (environment.dataset or {}).get("tasks"),
        "dataset": environment.dataset,
        "tools": tool_names(environment),
        "verifier": verifier_json(environment.verifier),
        "url": request.build_absolute_uri(f"/env/{environment}/"),
    }


def tool_names(environment: Environment) -> list[str]:
    """None of one that cannot be loaded any more: a list must not break by one row."""
    try:
        return [tool["function"]["name"] for tool in load_for(environment).tools]
    except SpecError:
        return []


@extend_schema(
    methods=["GET"],
    operation_id="v1_verifiers_list",
    responses=described({200: page(VERIFIER, "integer")}, 400),
    parameters=PAGING,
    description="All versions of all verifiers, newest first.",
)
@extend_schema(
    methods=["POST"],
    operation_id="v1_verifiers_save",
    request={JSON: NEW_VERIFIER},
    responses=described({200: VERIFIER, 201: VERIFIER}, 400, 403, 413),
    description=(
        "Creates a verifier version with this spec or OpenAI grader: 201 for a new version, 200 if"
        " it exists."
    ),
)
@api(GET=READABLE, POST=MANAGED)
def verifiers(request: Request) -> Response:
    if request.method == "POST":
        member_of(request)
        return _save(request)
    found, after = page_of(request, Verifier.objects.filter(project=request.auth.project))
    return Response({"results": [verifier_json(row) for row in found], "next": after})


def _save(request: Request) -> Response:
    body = body_of(request)
    name, note = body.get("name"), body.get("note", "")
    if not isinstance(name, str) or not SLUG.fullmatch(name):
        raise ValidationError(
            {"path": "name", "error": "1 to 80 letters, digits, dashes and underscores"}
        )
    if not isinstance(note, str) or len(note) > 300:
        raise ValidationError({"path": "note", "error": "text of at most 300 characters"})
    try:
        made = actions.save_verifier(
            project=request.auth.project,
            name=name,
            spec=spec_in(body),
            note=note,
            by=request.auth.created_by,
        )
    except SpecError as error:
        raise ValidationError({"path": "spec", "error": str(error)}) from error
    return Response(verifier_json(made), status=201 if made.is_new else 200)


def spec_in(body: dict) -> dict:
    """Raises ValidationError."""
    spec = (
        {"kind": "openai_grader", "grader": body["grader"]}
        if "grader" in body
        else body.get("spec")
    )
    if not isinstance(spec, dict) or ("grader" in body) == ("spec" in body):
        raise ValidationError({"path": "spec", "error": "give “spec” or “grader”, a JSON object"})
    return spec


def body_of(request: Request) -> dict:
    """Raises FormError, ValidationError, TooLarge."""
    try:
        body = read(request._request, MAX_TOOL)
        found = loads(body) if body.strip() else {}
        if not isinstance(found, dict):
            raise Refusal(422, "The body must be a JSON object.")
        check_bounds(found)
    except Refusal as refusal:
        kind = TooLarge if refusal.status == 413 else ValidationError
        raise kind({"path": "", "error": refusal.sentence}) from refusal
    refuse_unstorable(found)
    return found


def verifier_json(verifier: Verifier) -> dict[str, Any]:
    return {
        "name": verifier.name,
        "version": verifier.version,
        "kind": str(verifier.spec.get("kind", "")),
        "hash": verifier.hash,
        "note": verifier.note,
    }
