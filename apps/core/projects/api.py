"""The project of the key: read, renamed, archived and deleted over REST."""

from __future__ import annotations

from typing import Annotated, Any

from drf_spectacular.utils import extend_schema
from msgspec import UNSET, Meta, Struct, UnsetType
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core.models import Project, Stage
from apps.core.openapi import JSON, LINE, TEXT, described, sent
from apps.core.projects import lifecycle
from apps.core.routes import api
from apps.core.scopes import OWNED, READABLE
from workers.lib.typed import convert, json_schema


class Changes(Struct, forbid_unknown_fields=True, kw_only=True):
    """What is left out stays."""

    name: Annotated[str, Meta(min_length=1, max_length=120, pattern=LINE)] | UnsetType = UNSET
    slug: (
        Annotated[str, Meta(min_length=1, max_length=64, pattern=r"\A[-a-zA-Z0-9_]+\Z")] | UnsetType
    ) = UNSET
    description: Annotated[str, Meta(max_length=2_000, pattern=TEXT)] | UnsetType = UNSET
    archived: bool | UnsetType = UNSET


class Confirmed(Struct, forbid_unknown_fields=True, kw_only=True):
    confirm: str


PROJECT = {
    "type": "object",
    "required": ["slug", "name", "description", "stage", "created_at"],
    "properties": {
        "slug": {"type": "string"},
        "name": {"type": "string"},
        "description": {"type": "string"},
        "stage": {"enum": list(Stage.values)},
        "created_at": {"type": "string", "format": "date-time"},
    },
}
ALSO_ARCHIVED = OWNED._replace(archived=True)


def project_json(project: Project) -> dict[str, Any]:
    return {name: getattr(project, name) for name in PROJECT["properties"]}  # type: ignore[attr-defined]


@extend_schema(
    methods=["GET"],
    operation_id="v1_project_read",
    responses=described({200: PROJECT}, 403),
    description="The project of the key.",
)
@extend_schema(
    methods=["PATCH"],
    operation_id="v1_project_edit",
    request={JSON: json_schema(Changes)},
    responses=described({200: PROJECT}, 400, 403, 409),
    examples=[sent("Archive", {"archived": True})],
    description=(
        "Renames the project, archives it or brings it back. An archived project can be read and"
        " takes nothing."
    ),
)
@extend_schema(
    methods=["DELETE"],
    operation_id="v1_project_delete",
    request={JSON: json_schema(Confirmed)},
    responses=described({202: PROJECT}, 400, 403, 409),
    examples=[sent("By its name", {"confirm": "Support agent"})],
    description=(
        "Deletes the project with all that is in it; `confirm` is its name. The key stops working"
        " when it is done."
    ),
)
@api(GET=READABLE, PATCH=ALSO_ARCHIVED, DELETE=ALSO_ARCHIVED)
def project(request: Request) -> Response:
    row, by = Project.objects.get(pk=request.auth.project_id), request.auth.created_by
    label = {"actor_label": f"API key “{request.auth.name}”"}
    if request.method == "DELETE":
        lifecycle.delete(
            project=row, confirm=convert(request.data, Confirmed).confirm, by=by, **label
        )
    elif request.method == "PATCH":
        given = convert(request.data, Changes)
        if given.archived is False:
            lifecycle.unarchive(project=row, by=by, **label)
        names = {name: getattr(given, name) for name in ("name", "slug", "description")}
        changed = {name: value for name, value in names.items() if value is not UNSET}
        if changed:
            now = {name: getattr(row, name) for name in names}
            lifecycle.rename(project=row, by=by, **now | changed, **label)
        if given.archived is True:
            lifecycle.archive(project=row, by=by, **label)
    row.refresh_from_db()
    return Response(project_json(row), status=202 if request.method == "DELETE" else 200)
