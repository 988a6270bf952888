"""Comments and assignments over REST. A key writes in the name of whoever made it, and sees of a
hold-out what it may see.
"""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

from django.contrib.auth import get_user_model
from drf_spectacular.utils import OpenApiParameter, extend_schema
from msgspec import Meta, Struct
from rest_framework.exceptions import NotFound, PermissionDenied, ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core.api import member_of
from apps.core.models import Role
from apps.core.openapi import JSON, LINE, TEXT, described, page
from apps.core.paging import keyset
from apps.core.routes import api, shows
from apps.core.scopes import MANAGED, READABLE
from apps.teamwork import actions, assigning
from apps.teamwork.models import LONGEST, Comment
from apps.teamwork.targets import Kind, Unknown, kind_named, kind_of, kinds, role_of_key
from workers.lib.typed import convert, json_schema

PAGE = 100
On = Annotated[str, Meta(min_length=3, max_length=120, pattern=r"\A[a-z]+:[^\x00\ud800-\udfff]+\Z")]
Text = Annotated[str, Meta(min_length=1, max_length=LONGEST, pattern=TEXT)]
ABOUT_ON = (
    "What it is on: `trajectory:<id>`, `failure:<id of its trajectory>`, `task:<id>`,"
    " `sample:<id>`, `evaluation:<id>`, `training:<id>`, `report:<id>` or `flow:<id of a flow"
    " run>`. The ids are those of the API"
)


class NewComment(Struct, forbid_unknown_fields=True, kw_only=True):
    """`on`: what it is on, as “kind:id”. `@name` in the text mentions a member."""

    on: On
    text: Text


class CommentText(Struct, forbid_unknown_fields=True, kw_only=True):
    text: Text


class Assignees(Struct, forbid_unknown_fields=True, kw_only=True):
    """The usernames that it is assigned to from now on; an empty list for nobody. `on`:
    `cluster:<id>`, `review:<id>` or `flow:<id>`.
    """

    on: On
    users: Annotated[list[Annotated[str, Meta(max_length=150, pattern=LINE)]], Meta(max_length=20)]


TIME, TIME_OR_NULL = (
    {"type": "string", "format": "date-time"},
    {"type": ["string", "null"], "format": "date-time"},
)
COMMENT: dict[str, Any] = {
    "type": "object",
    "required": ["id", "on", "by", "text", "mentions", "created_at", "edited_at", "deleted_at"],
    "properties": {
        "id": {"type": "string", "format": "uuid"},
        "on": {"type": "string", "description": ABOUT_ON},
        "by": {"type": ["string", "null"], "description": "Its author's username"},
        "text": {"type": "string", "description": "Empty where its author deleted it"},
        "mentions": {"type": "array", "items": {"type": "string"}},
        "created_at": TIME,
        "edited_at": TIME_OR_NULL,
        "deleted_at": TIME_OR_NULL,
    },
}
ASSIGNED = {
    "type": "object",
    "required": ["on", "users"],
    "properties": {
        "on": {"type": "string"},
        "users": {"type": "array", "items": {"type": "string"}},
    },
}
ON = OpenApiParameter("on", str, required=True, description=ABOUT_ON)
ON_WORK = OpenApiParameter(
    "on", str, required=True, description="`cluster:<id>`, `review:<id>` or `flow:<id>`"
)
CURSOR = OpenApiParameter("cursor", str, description="`next` of the page before")


def _named(request: Request, on: str) -> tuple[Kind, Any]:
    """Raises NotFound."""
    name, _, pk = on.partition(":")
    try:
        kind = kind_named(name)
        return kind, kind.find_by_api_id(request.auth.project, pk)
    except Unknown as error:
        raise NotFound(
            f"Nothing of this project is “{on[:120]}” (`on`): a kind ({_kinds()}), a colon, and"
            " an id."
        ) from error


def _target_of(row: Comment) -> tuple[Kind, Any]:
    """Raises NotFound."""
    try:
        kind = kind_of(row.target_type)
        return kind, kind.find(row.project, row.target_id)
    except Unknown as error:
        raise NotFound("What this comment was on is gone.") from error


def _kinds() -> str:
    return ", ".join(kind.name for kind in kinds())


def _seen(request: Request, on: str) -> tuple[Kind, Any]:
    """Raises NotFound, and PermissionDenied for comments on a hold-out if the key may not see
    it.
    """
    kind, target = _named(request, on)
    if not kind.takes_comments:
        raise NotFound(f"There are no comments on a {kind.name} (`on`).")
    _require_sight(request, kind, target)
    return kind, target


def _require_sight(request: Request, kind: Kind, target: Any) -> None:
    if not kind.may_see(target, request.auth, role_of_key(request.auth)):
        raise PermissionDenied(
            "Comments here may quote held-out tasks, which this key may not see."
        )
    actions.record_read(kind, target, by=request.auth)


def comment_json(row: Comment, kind: Kind, target: Any) -> dict[str, Any]:
    return {
        "id": str(row.pk),
        "on": f"{kind.name}:{kind.api_id(target)}",
        "by": row.by.get_username() if row.by else None,
        "text": row.text,
        "mentions": sorted(user.get_username() for user in row.mentions.all()),
        "created_at": row.created_at,
        "edited_at": row.edited_at,
        "deleted_at": row.deleted_at,
    }


@shows("comments on a hold-out, with the right")
@extend_schema(
    methods=["GET"],
    operation_id="v1_comments_list",
    parameters=[ON, CURSOR],
    responses=described({200: page(COMMENT)}, 400, 403, 404),
    description="The comments on an object, newest first.",
)
@extend_schema(
    methods=["POST"],
    operation_id="v1_comments_add",
    request={JSON: json_schema(NewComment)},
    responses=described({201: COMMENT}, 400, 403, 404),
    description="Adds a comment on behalf of the key's creator.",
)
@api(GET=READABLE, POST=MANAGED)
def collection(request: Request) -> Response:
    if request.method == "POST":
        by = member_of(request, Role.REVIEWER).user
        given = convert(request.data, NewComment)
        kind, target = _seen(request, given.on)
        row = actions.add_comment(
            project=request.auth.project, kind=kind, target=target, text=given.text, by=by
        )
        return Response(comment_json(row, kind, target), status=201)
    kind, target = _seen(request, request.query_params["on"])
    rows = Comment.objects.filter(project=request.auth.project).about(target)
    rows = rows.select_related("by").prefetch_related("mentions")
    found, following = keyset(rows, request.query_params.get("cursor", ""), PAGE)
    return Response(
        {"results": [comment_json(row, kind, target) for row in found], "next": following}
    )


@shows("comments on a hold-out, with the right")
@extend_schema(
    methods=["GET"],
    operation_id="v1_comments_read",
    responses=described({200: COMMENT}, 403, 404),
    description="One comment.",
)
@extend_schema(
    methods=["PATCH"],
    operation_id="v1_comments_edit",
    request={JSON: json_schema(CommentText)},
    responses=described({200: COMMENT}, 400, 403, 404, 409),
    description="Edits a comment of the key's creator.",
)
@extend_schema(
    methods=["DELETE"],
    operation_id="v1_comments_delete",
    responses=described({}, 403, 404) | {204: None},
    description=(
        "Deletes a comment of the key's creator. “Deleted by its author” is shown in its place."
    ),
)
@api(GET=READABLE, PATCH=MANAGED, DELETE=MANAGED)
def item(request: Request, pk: UUID) -> Response:
    rows = Comment.objects.filter(project=request.auth.project).select_related("by", "project")
    row = rows.filter(pk=pk).first()
    if row is None:
        raise NotFound("No comment of this project has this id.")
    kind, target = _target_of(row)
    _require_sight(request, kind, target)
    if request.method == "GET":
        return Response(comment_json(row, kind, target))
    by = member_of(request, Role.REVIEWER).user
    if row.by_id != by.pk:
        raise PermissionDenied("This comment belongs to someone else.")
    if request.method == "DELETE":
        actions.delete_comment(comment=row, kind=kind, target=target, by=by)
        return Response(status=204)
    text = convert(request.data, CommentText).text
    row = actions.edit_comment(comment=row, kind=kind, target=target, text=text, by=by)
    return Response(comment_json(row, kind, target))


@extend_schema(
    methods=["GET"],
    operation_id="v1_assignments_read",
    parameters=[ON_WORK],
    responses=described({200: ASSIGNED}, 400, 403, 404),
    description="The assignees of an object.",
)
@extend_schema(
    methods=["PUT"],
    operation_id="v1_assignments_set",
    request={JSON: json_schema(Assignees)},
    responses=described({200: ASSIGNED}, 400, 403, 404),
    description=(
        "Sets the assignees of an object. Each person needs the role required to work on it."
    ),
)
@api(GET=READABLE, PUT=MANAGED)
def assignments(request: Request) -> Response:
    given = convert(request.data, Assignees) if request.method == "PUT" else None
    on = given.on if given else request.query_params["on"]
    kind, target = _named(request, on)
    if kind.worker is None:
        raise NotFound(f"A {kind.name} is not assigned here (`on`).")
    if given:
        _set(request, kind, target, given.users)
    return Response(
        {"on": on, "users": [user.get_username() for user in assigning.assignees(target)]}
    )


def _set(request: Request, kind: Kind, target: Any, names: list[str]) -> None:
    """Raises ValidationError, AssignmentError, PermissionDenied."""
    by, project = member_of(request, Role.REVIEWER).user, request.auth.project
    users = get_user_model().objects.filter(memberships__project=project)
    wanted = {user.get_username(): user for user in users.filter(username__in=names)}
    if unknown := [name for name in names if name not in wanted]:
        raise ValidationError(
            {"path": "users", "error": f"{unknown[0]!r} is not a member of this project"}
        )
    for user in wanted.values():
        assigning.assign(project=project, kind=kind, target=target, to=user, by=by)
    for user in assigning.assignees(target).exclude(pk__in=[user.pk for user in wanted.values()]):
        assigning.assign(project=project, kind=kind, target=target, to=user, by=by, on=False)
