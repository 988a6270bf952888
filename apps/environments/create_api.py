"""Environments over REST: listed, made, connected. The key determines the project; its creator must
be an engineer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.conf import settings
from drf_spectacular.utils import OpenApiExample, extend_schema
from msgspec import structs
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core.api import member_of
from apps.core.models import Membership, Role
from apps.core.openapi import JSON, described, page
from apps.core.routes import api
from apps.core.scopes import MANAGED, READABLE
from apps.environments import actions, packages, remote
from apps.environments.api import (
    ENVIRONMENT,
    PAGING,
    WHOLE,
    SandboxBusy,
    as_json,
    body_of,
    page_of,
    whole_json,
)
from apps.environments.forms import scorers, unnamed_tool
from apps.environments.models import Environment, EnvironmentKind, Verifier
from apps.environments.schema import NewEnvironment
from workers.lib.environments import BUILTIN
from workers.lib.environments.packages.files import PackageProblem
from workers.lib.outgoing import RefusedAddress
from workers.lib.sandbox import Busy, visiting
from workers.lib.specs.environment import REMOTE
from workers.lib.typed import FormError, convert, json_schema

TURNS, CONNECTED_TURNS = 1, 10  # if none are given


NEW = json_schema(NewEnvironment)
EXAMPLES = [
    OpenApiExample(
        "One answer to each request",
        {
            "slug": "helpdesk",
            "kind": "single_turn",
            "verifier": "tool-call@1",
            "harness": {"system_prompt": "You close tickets.", "max_new_tokens": 256},
        },
        request_only=True,
    ),
    OpenApiExample(
        "Tools of an MCP server",
        {"slug": "crm", "kind": "mcp", "url": "https://crm.example.com/mcp", "verifier": "calls@2"},
        request_only=True,
    ),
    OpenApiExample(
        "A package of this installation",
        {"slug": "bugs", "kind": "package", "package": "bug_tracker"},
        request_only=True,
    ),
]
MADE = described({200: WHOLE, 201: WHOLE}, 400, 403, 413)


@extend_schema(
    methods=["GET"],
    operation_id="v1_environments_list",
    responses=described({200: page(ENVIRONMENT, "integer")}, 400),
    parameters=PAGING,
    description="All versions of all environments, newest first.",
)
@extend_schema(
    methods=["POST"],
    operation_id="v1_environments_create",
    request={JSON: NEW},
    responses=MADE,
    examples=EXAMPLES,
    description=(
        "Creates an environment, or the next version of one: 201, or 200 if a version with this"
        " content exists. For kinds “remote” and “mcp”, the server is contacted first, like “Test"
        " connection” on the page."
    ),
)
@api(GET=READABLE, POST=MANAGED)
def collection(request: Request) -> Response:
    if request.method == "POST":
        return create(request)
    rows = Environment.objects.filter(project=request.auth.project).select_related(
        "verifier", "project", "package"
    )
    found, after = page_of(request, rows)
    return Response({"results": [as_json(request, row) for row in found], "next": after})


def create(request: Request, dataset: dict[str, Any] | None = None) -> Response:
    """`dataset`: facts of the frozen eval set that it is made for. Raises ValidationError,
    PermissionDenied.
    """
    member = member_of(request)
    try:
        asked = convert(body_of(request), NewEnvironment)
        made = _made_by(asked)(request, asked, member, dataset)
    except Busy as busy:
        raise SandboxBusy(str(busy)) from busy
    except PackageProblem as problem:
        raise ValidationError(
            {"path": "package", "error": f"{problem.text} {problem.do}".strip()}
        ) from problem
    except RefusedAddress as error:
        raise ValidationError({"path": "url", "error": str(error)}) from error
    return Response(whole_json(request, made), status=201 if made.is_new else 200)


def _made_by(asked: NewEnvironment) -> Callable[..., Environment]:
    if asked.kind == EnvironmentKind.PACKAGE:
        return _package
    return _connect if asked.kind in REMOTE else _make


def _package(
    request: Request, asked: NewEnvironment, member: Membership, dataset: dict | None
) -> Environment:
    """Raises FormError, PackageProblem, SpecError, Busy."""
    if asked.package is None:
        raise FormError("package", "is missing")
    if asked.harness.tools or asked.harness.examples:
        raise FormError("harness", "of a package has no tools or examples: its class has them")
    verifier = _verifier(request, asked, member) if asked.verifier else None
    with visiting(f"project:{request.auth.project_id}"):
        found = (
            packages.from_texts(asked.package, asked.files)
            if asked.files
            else packages.found_of(asked.package)
        )
        checked = packages.checked(found)
        if error := next((one for one in checked.findings if one.level == "error"), None):
            raise PackageProblem(error.text, error.do)
        return packages.save_package(
            project=request.auth.project,
            slug=asked.slug,
            found=found,
            by=member.user,
            verifier=verifier,
            harness=structs.asdict(asked.harness),
            dataset=dataset,
        )


def _make(
    request: Request, asked: NewEnvironment, member: Membership, dataset: dict | None
) -> Environment:
    """Raises FormError, SpecError."""
    if asked.url is not None:
        raise FormError("url", "is of the kinds “remote” and “mcp”")
    kind = EnvironmentKind(asked.kind)
    if kind == EnvironmentKind.BUILTIN and asked.builtin not in BUILTIN:
        raise FormError("builtin", f"must be one of {', '.join(BUILTIN)}")
    harness = structs.asdict(asked.harness) | {"max_turns": asked.harness.max_turns or TURNS}
    if problem := unnamed_tool(asked.harness.tools):
        raise FormError("harness.tools", problem)
    return actions.save_environment(
        project=request.auth.project,
        slug=asked.slug,
        kind=kind,
        builtin=asked.builtin or "" if kind == EnvironmentKind.BUILTIN else "",
        harness=harness,
        config=actions.replay_config(asked.nearest, asked.user)
        if kind == EnvironmentKind.REPLAY
        else {},
        verifier=_verifier(request, asked, member),
        dataset=dataset,
        by=member.user,
    )


def _connect(
    request: Request, asked: NewEnvironment, member: Membership, dataset: dict | None
) -> Environment:
    """Raises FormError, RefusedAddress, SpecError."""
    if asked.url is None:
        raise FormError("url", "is missing")
    if asked.harness.tools:
        raise FormError("harness.tools", "are the server's")
    chosen = asked.kind == EnvironmentKind.MCP or (
        asked.kind == EnvironmentKind.OPENENV and asked.verifier is not None
    )
    verifier = _verifier(request, asked, member) if chosen else None
    found = remote.test(
        asked.url,
        allow_private=settings.FLYWHEEL_ALLOW_PRIVATE_URLS,
        api_key_env=asked.api_key_env,
        operator=member.may(Role.OPERATOR),
        kind=asked.kind,
    )
    if not found.ok:
        raise ValidationError({"path": found.field, "error": found.sentence})
    harness = structs.asdict(asked.harness) | {
        "max_turns": asked.harness.max_turns or CONNECTED_TURNS
    }
    harness = {name: value for name, value in harness.items() if name != "tools" and value != []}
    common = {
        "project": request.auth.project,
        "slug": asked.slug,
        "url": asked.url,
        "api_key_env": asked.api_key_env,
        "timeout_s": asked.timeout_s,
        "harness": harness,
        "dataset": dataset,
        "by": member.user,
    }
    if asked.kind == EnvironmentKind.MCP and verifier is not None:
        return actions.connect_mcp(**common, tools=list(found.tools), verifier=verifier)
    if asked.kind == EnvironmentKind.OPENENV:
        return actions.connect_openenv(
            **common,
            tools=list(found.tools),
            by_mcp=found.by_mcp,
            verifier=verifier,
            success_at=asked.success_at,
        )
    return actions.connect_remote(
        **common,
        success_at=asked.success_at,
        turn_rewards=asked.turn_rewards,
        tools=list(found.tools),
    )


def _verifier(request: Request, asked: NewEnvironment, member: Membership) -> Verifier:
    """The one that is named, else the built-in environment's own. Raises FormError, SpecError."""
    project = request.auth.project
    if asked.verifier is not None:
        name, _, version = asked.verifier.rpartition("@")
        number = (
            int(version) if version.isascii() and version.isdigit() and len(version) < 10 else 0
        )
        if found := scorers(project).filter(name=name, version=number).first():
            return found
        raise FormError("verifier", "must be a verifier of this project, as name@version")
    if asked.kind != EnvironmentKind.BUILTIN:
        raise FormError("verifier", "is missing: only built-in environments come with one")
    spec = {"kind": actions.own_kinds()[asked.builtin or ""]}
    return actions.save_verifier(
        project=project,
        name=asked.builtin or "",
        spec=spec,
        note="From the environment",
        by=member.user,
    )
