"""Inference servers and model versions over REST. The API key determines the project; changes need
the role of the key's creator.
"""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import OpenApiExample, OpenApiParameter, extend_schema
from rest_framework.exceptions import NotFound
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core.api import member_of
from apps.core.openapi import JSON, described, page
from apps.core.query import KEY, number_of, whole_number
from apps.core.routes import api
from apps.core.scopes import MANAGED, OPERATED, READABLE
from apps.registry import managed, schema, servers
from apps.registry.models import ModelKind, ModelVersion, Server
from apps.registry.registering import register
from workers.lib.typed import FormError, convert, plain

PAGE, MAX_PAGE = 100, 1000


def find_server(request: Request, name: str) -> Server:
    """Raises NotFound."""
    found = Server.objects.filter(project=request.auth.project, name=name).first()
    if found is None:
        raise NotFound(f"This project has no server “{name}”.")
    return found


# Servers


@extend_schema(
    methods=["GET"],
    operation_id="v1_servers_list",
    responses=described({200: page(schema.SERVER)}),
    description=(
        "The project's inference servers, by name, with their health and what the last probe found"
        " out."
    ),
)
@extend_schema(
    methods=["POST"],
    operation_id="v1_servers_add",
    request={JSON: schema.NEW_SERVER},
    responses=described({201: schema.SERVER}, 400, 403, 409),
    examples=[
        OpenApiExample("vLLM in the cluster", schema.EXAMPLE_SERVER, request_only=True),
        OpenApiExample("A server that a worker starts", schema.EXAMPLE_MANAGED, request_only=True),
    ],
    description=(
        "Adds a server and probes it in the background: poll until `probed_at` is set. A key"
        " variable must be bound to the server's host by FLYWHEEL_OUTGOING_KEYS. With `managed`, a"
        " worker of this installation starts it: poll it until `managed.state` is “up”."
    ),
)
@api(GET=READABLE, POST=OPERATED)
def server_list(request: Request) -> Response:
    if request.method == "GET":
        rows = Server.objects.filter(project=request.auth.project).select_related("base")
        return Response(
            {"results": [schema.server_json(row, log=False) for row in rows], "next": None}
        )
    member_of(request)
    given, project, by = (
        plain(convert(request.data, schema.NewServer)),
        request.auth.project,
        request.auth.created_by,
    )
    if given["managed"] is not None:
        fields = schema.managed_fields(request.data, given, project)
        server = managed.add_managed(project=project, fields=fields, by=by)
    elif "base_url" not in request.data:
        raise FormError(
            "base_url", "is missing: an address, or “managed” for a server that a worker starts"
        )
    else:
        del given["managed"]
        server = servers.add_server(project=project, fields=given, by=by)
    return Response(schema.server_json(server), status=201)


# Model versions


@extend_schema(
    methods=["GET"],
    operation_id="v1_model_versions_list",
    parameters=[
        OpenApiParameter("kind", enum=ModelKind.values),
        OpenApiParameter("name", description="Versions of this name only"),
        OpenApiParameter("agent_version", description="The agent's own version, such as a git SHA"),
        OpenApiParameter("cursor", KEY, description="`next` of the page before"),
        OpenApiParameter("limit", whole_number(1, MAX_PAGE, PAGE)),
    ],
    responses=described({200: page(schema.VERSION)}, 400),
    description="Model versions, newest first.",
)
@extend_schema(
    methods=["POST"],
    operation_id="v1_model_versions_register",
    request={JSON: schema.NEW_VERSION},
    responses=described({200: schema.VERSION, 201: schema.VERSION}, 400, 403),
    examples=[
        OpenApiExample(name, value, request_only=True)
        for name, value in schema.EXAMPLE_VERSIONS.items()
    ],
    description=(
        "Registers a version. Registering the same content twice creates one version: the second"
        " response is 200 with the same id."
    ),
)
@api(GET=READABLE, POST=MANAGED)
def version_list(request: Request) -> Response:
    if request.method == "GET":
        return Response(_versions(request))
    member_of(request)
    project = request.auth.project
    kind, fields = schema.registration(request.data, project)
    version = register(project=project, kind=kind, fields=fields, by=request.auth.created_by)
    return Response(schema.version_json(version), status=201 if version.is_new else 200)


def _versions(request: Request) -> dict[str, Any]:
    rows = (
        ModelVersion.objects.filter(project=request.auth.project)
        .select_related("parent", "server")
        .order_by("-pk")
    )
    query = request.query_params
    for name in ("kind", "name", "agent_version"):
        if name in query:
            rows = rows.filter(**{name: query[name]})
    if before := number_of(request, "cursor"):
        rows = rows.filter(pk__lt=before)
    limit = number_of(request, "limit")
    found = list(rows[: limit + 1])
    after = str(found[limit - 1].pk) if len(found) > limit else None
    return {"results": [schema.version_json(row) for row in found[:limit]], "next": after}


@extend_schema(
    operation_id="v1_model_versions_read", responses=described({200: schema.VERSION}, 404)
)
@api(GET=READABLE)
def version_item(request: Request, pk: int) -> Response:
    rows = ModelVersion.objects.filter(project=request.auth.project).select_related(
        "parent", "server"
    )
    found = rows.filter(pk=min(pk, 2**63 - 1)).first()
    if found is None:
        raise NotFound("No model version of this project has this id.")
    changes = (
        [{"kind": kind, "line": line} for kind, line in found.prompt_changes()]
        if found.prompt
        else None
    )
    return Response(schema.version_json(found) | ({"changes": changes} if found.prompt else {}))
