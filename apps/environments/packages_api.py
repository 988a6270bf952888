"""Environment packages over REST: list them, and check one."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.exceptions import NotFound
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core.api import member_of
from apps.core.openapi import described
from apps.core.query import is_true
from apps.core.routes import api
from apps.core.scopes import READABLE, RUN
from apps.environments import packages
from apps.environments.api import SandboxBusy
from workers.lib.sandbox import Busy, visiting

LISTED = {
    "type": "object",
    "required": ["name", "source", "trusted", "digest", "problem", "environment", "is_current"],
    "properties": {
        "name": {"type": "string"},
        "source": {
            "type": "string",
            "description": "The folder or distribution that it was found in",
        },
        "trusted": {"type": "boolean", "description": "Untrusted ones run in the sandbox"},
        "digest": {"type": "string", "description": "SHA-256 of its files"},
        "problem": {"type": ["string", "null"], "description": "Why it cannot be used"},
        "environment": {
            "type": ["string", "null"],
            "description": "The project's newest version of it, slug@version",
        },
        "is_current": {
            "type": "boolean",
            "description": "Whether that version has the current code",
        },
    },
}
FINDING = {
    "type": "object",
    "required": ["level", "text", "do", "where"],
    "properties": {
        "level": {"enum": ["ok", "warning", "error"]},
        "text": {"type": "string"},
        "do": {"type": "string", "description": "What to do about it"},
        "where": {"type": "string", "description": "Lines of the package"},
    },
}
CHECKED = {
    "type": "object",
    "required": [*LISTED["required"], "is_usable", "findings", "tools", "tasks"],
    "properties": (
        LISTED["properties"]
        | {
            "is_usable": {"type": "boolean"},
            "findings": {"type": "array", "items": FINDING},
            "tools": {"type": "array", "items": {"type": "object"}},
            "tasks": {"type": "integer"},
        }
    ),
}


@extend_schema(
    operation_id="v1_environment_packages_list",
    responses=described(
        {200: {"type": "object", "properties": {"results": {"type": "array", "items": LISTED}}}}
    ),
    description="All packages of this installation. Runs none of them.",
)
@api(GET=READABLE)
def collection(request: Request) -> Response:
    return Response({"results": [as_json(one) for one in packages.listed(request.auth.project)]})


@extend_schema(
    operation_id="v1_environment_packages_check",
    responses=described({200: CHECKED}, 403, 404),
    parameters=[
        OpenApiParameter(
            "again", bool, description="Also where these very files were checked already"
        )
    ],
    description=(
        "What is right and wrong with a package: imports it, starts its tasks, asks its verifier,"
        " plays expected calls."
    ),
)
@api(GET=RUN)
def item(request: Request, name: str) -> Response:
    member_of(request)
    one = next(
        (one for one in packages.listed(request.auth.project) if one.found.name == name), None
    )
    if one is None:
        raise NotFound("This installation has no package of this name.")
    try:
        with visiting(f"project:{request.auth.project_id}"):
            checked = packages.checked(one.found, again=is_true(request, "again"))
    except Busy as busy:
        raise SandboxBusy(str(busy)) from busy
    return Response(
        as_json(one)
        | {
            "is_usable": checked.is_usable,
            "findings": [asdict(finding) for finding in checked.findings],
            "tools": checked.described.get("tools", []),
            "tasks": len(checked.tasks),
        }
    )


def as_json(one: packages.Listed) -> dict[str, Any]:
    found = one.found
    return {
        "name": found.name,
        "source": found.source,
        "trusted": found.trusted,
        "digest": found.digest,
        "problem": found.problem.text if found.problem else None,
        "environment": str(one.newest) if one.newest else None,
        "is_current": one.is_current,
    }
