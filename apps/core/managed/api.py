"""Rename, archive and delete eval sets, models, environments, evaluations, training runs and
channels over REST.
"""

from __future__ import annotations

from typing import Annotated, Any

from drf_spectacular.utils import extend_schema
from msgspec import UNSET, Meta, Struct, UnsetType
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core.managed import objects as managed
from apps.core.openapi import JSON, LINE, described, sent
from apps.core.routes import api
from apps.core.scopes import MANAGED, OWNED, READABLE
from workers.lib.typed import convert, json_schema


class Changes(Struct, forbid_unknown_fields=True, kw_only=True):
    name: Annotated[str, Meta(pattern=LINE)] | UnsetType = UNSET
    archived: bool | UnsetType = UNSET


DEPENDENTS = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {"n": {"type": "integer"}, "what": {"type": "string"}},
    },
}
OBJECT = {
    "type": "object",
    "required": [
        "kind",
        "id",
        "name",
        "archived_at",
        "may_be_deleted",
        "in_the_way",
        "goes_with_it",
        "stays_without_it",
        "jobs",
    ],
    "properties": {
        "kind": {"type": "string"},
        "id": {"type": "string"},
        "name": {"type": "string"},
        "archived_at": {"type": ["string", "null"], "format": "date-time"},
        "may_be_deleted": {"type": "boolean"},
        "why_not": {"type": "string"},
        "in_the_way": DEPENDENTS,
        "goes_with_it": DEPENDENTS,
        "stays_without_it": DEPENDENTS,
        "jobs": {
            "type": "array",
            "items": {"type": "string"},
            "description": "Under way: cancel them first",
        },
    },
}


def object_json(how: managed.Managed, row: Any) -> dict[str, Any]:
    found = managed.dependents(row)
    rows = {"in_the_way": found.in_way, "goes_with_it": found.goes, "stays_without_it": found.stays}
    return {
        "kind": how.kind,
        "id": str(row.pk),
        "name": str(row),
        "archived_at": row.archived_at,
        "may_be_deleted": found.may_be_deleted,
        "why_not": found.sentence,
        "jobs": [name for name, _ in found.active],
    } | {name: [{"n": one.n, "what": one.what} for one in some] for name, some in rows.items()}


@extend_schema(
    methods=["GET"],
    operation_id="v1_objects_read",
    responses=described({200: OBJECT}, 403, 404),
    description=(
        "What depends on an object (`kind`: set, model, environment, evaluation, run or channel),"
        " and whether it may be deleted."
    ),
)
@extend_schema(
    methods=["PATCH"],
    operation_id="v1_objects_edit",
    request={JSON: json_schema(Changes)},
    responses=described({200: OBJECT}, 400, 403, 404, 409),
    examples=[sent("Archive", {"archived": True})],
    description="Renames an object (all versions of its name), archives it or brings it back.",
)
@extend_schema(
    methods=["DELETE"],
    operation_id="v1_objects_delete",
    request=None,
    responses=described({}, 403, 404, 409) | {204: None},
    description="Deletes an object that nothing needs; 409 says what is in the way.",
)
@api(GET=READABLE, PATCH=MANAGED, DELETE=OWNED)
def item(request: Request, kind: str, pk: str) -> Response:
    how, row = managed.find(request.auth.project, kind, pk)
    given: dict[str, Any] = {
        "by": request.auth.created_by,
        "actor_label": f"API key “{request.auth.name}”",
    }
    if request.method == "DELETE":
        managed.delete(managed=how, row=row, key=request.auth, **given)
        return Response(status=204)
    if request.method == "PATCH":
        changes = convert(request.data, Changes)
        if changes.name is not UNSET:
            managed.rename(managed=how, row=row, name=changes.name, **given)
        if changes.archived is not UNSET:
            managed.archive(
                managed=how, row=row, back=not changes.archived, key=request.auth, **given
            )
        row.refresh_from_db()
    return Response(object_json(how, row))
