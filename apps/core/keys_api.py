"""API keys over REST: for keys with `manage` whose creator is an operator. A key hands out only
what it has itself.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from drf_spectacular.utils import extend_schema
from msgspec import UNSET, Meta, Struct, UnsetType
from rest_framework.exceptions import NotFound, PermissionDenied, ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core import actions
from apps.core.models import ApiKey
from apps.core.openapi import JSON, LINE, described, results, sent
from apps.core.routes import api
from apps.core.scopes import OPERATED, Scope
from workers.lib.typed import convert, json_schema

LONGEST_GRACE_H = 24 * 90


class NewKey(Struct, forbid_unknown_fields=True, kw_only=True):
    name: Annotated[str, Meta(min_length=1, max_length=80, pattern=LINE)]
    scopes: Annotated[list[Annotated[str, Meta(pattern=LINE)]], Meta(min_length=1)]
    expires_at: datetime | UnsetType | None = UNSET
    may_see_holdout: bool = False


class Rotate(Struct, forbid_unknown_fields=True, kw_only=True):
    """`grace_hours`: for how long the old key works, too; 0 stops it at once. `expires_at` of the
    new one: left out, it is valid for as long as the old one was, at most until the asking key
    expires; null, it does not expire."""

    grace_hours: Annotated[int, Meta(ge=0, le=LONGEST_GRACE_H)] = 24
    expires_at: datetime | UnsetType | None = UNSET


MOMENT = {"type": ["string", "null"], "format": "date-time"}
KEY = {
    "type": "object",
    "required": [
        "id",
        "name",
        "prefix",
        "scopes",
        "may_see_holdout",
        "created_at",
        "created_by",
        "last_used_at",
        "expires_at",
        "live",
    ],
    "properties": {
        "id": {"type": "integer"},
        "name": {"type": "string"},
        "prefix": {"type": "string"},
        "scopes": {"type": "array", "items": {"enum": list(Scope.values)}},
        "may_see_holdout": {"type": "boolean"},
        "created_at": {"type": "string", "format": "date-time"},
        "created_by": {"type": ["string", "null"]},
        "last_used_at": MOMENT,
        "expires_at": MOMENT,
        "revoked_at": MOMENT,
        "replaced_by": {"type": ["integer", "null"]},
        "live": {"type": "boolean", "description": "Neither revoked nor expired"},
    },
}
NEW_KEY = KEY | {
    "properties": (
        KEY["properties"] | {"secret": {"type": "string", "description": "Given here only"}}
    )
}  # type: ignore[dict-item]


def key_json(key: ApiKey) -> dict[str, Any]:
    return {
        "id": key.pk,
        "name": key.name,
        "prefix": key.prefix,
        "scopes": key.scopes,
        "may_see_holdout": key.may_see_holdout,
        "created_at": key.created_at,
        "created_by": key.created_by and key.created_by.get_username(),
        "last_used_at": key.last_used_at,
        "expires_at": key.expires_at,
        "revoked_at": key.revoked_at,
        "replaced_by": key.replaced_by_id,
        "live": key.is_live,
    }


@extend_schema(
    methods=["GET"],
    operation_id="v1_keys_list",
    responses=described({200: results(KEY)}, 403),
    description=(
        "The project's API keys, the newest first: scopes, expiry, last use (to the minute)."
        " Secrets are not kept."
    ),
)
@extend_schema(
    methods=["POST"],
    operation_id="v1_keys_add",
    request={JSON: json_schema(NewKey)},
    responses=described({201: NEW_KEY}, 400, 403),
    examples=[sent("For an agent", {"name": "agent-eu", "scopes": ["ingest"]})],
    description=(
        "Creates a key with at most the rights of the one that asks. The answer has its secret,"
        " this once."
    ),
)
@api(GET=OPERATED, POST=OPERATED)
def collection(request: Request) -> Response:
    asking: ApiKey = request.auth
    if request.method == "GET":
        rows = asking.project.api_keys.select_related("created_by")
        return Response({"results": [key_json(key) for key in rows]})
    given = convert(request.data, NewKey)
    if unknown := set(given.scopes) - set(Scope.values):
        raise ValidationError({"path": "scopes", "error": f"unknown: {', '.join(sorted(unknown))}"})
    _require_own(asking, given.scopes, given.may_see_holdout)
    key, secret = actions.create_api_key(
        project=asking.project,
        name=given.name,
        by=asking.created_by,
        scopes=given.scopes,
        expires_at=_expiry(asking, given.expires_at, None),
        may_see_holdout=given.may_see_holdout,
        actor_label=_label(asking),
    )
    return Response(key_json(key) | {"secret": secret}, status=201)


@extend_schema(
    operation_id="v1_keys_revoke",
    request=None,
    responses=described({}, 403, 404) | {204: None},
    description="Revokes a key. Requests with it are rejected within five seconds.",
)
@api(DELETE=OPERATED)
def item(request: Request, pk: int) -> Response:
    actions.revoke_api_key(
        key=_key(request, pk), by=request.auth.created_by, actor_label=_label(request.auth)
    )
    return Response(status=204)


@extend_schema(
    operation_id="v1_keys_rotate",
    request={JSON: json_schema(Rotate)},
    responses=described({201: NEW_KEY}, 400, 403, 404, 409),
    examples=[sent("Both work for two days", {"grace_hours": 48})],
    description=(
        "A new key with the same name and scopes in the place of this one; the old one works for"
        " `grace_hours` longer."
    ),
)
@api(POST=OPERATED)
def rotate(request: Request, pk: int) -> Response:
    key, given = _key(request, pk), convert(request.data, Rotate)
    _require_own(request.auth, key.scopes, key.may_see_holdout)
    new, secret = actions.rotate_api_key(
        key=key,
        by=request.auth.created_by,
        grace=timedelta(hours=given.grace_hours),
        actor_label=_label(request.auth),
        expires_at=_expiry(request.auth, given.expires_at, key.same_expiry),
    )
    return Response(key_json(new) | {"secret": secret}, status=201)


def _key(request: Request, pk: int) -> ApiKey:
    found = request.auth.project.api_keys.select_related("project").filter(pk=pk).first()
    if found is None:
        raise NotFound("No API key of this project has this id.")
    return found


def _label(key: ApiKey) -> str:
    return f"API key “{key.name}”"


def _expiry(
    asking: ApiKey, given: datetime | UnsetType | None, otherwise: datetime | None
) -> datetime | None:
    """No key created by a key outlives it: without an expiry it ends with it, and a later expiry is
    refused.
    """
    end = asking.expires_at
    if given is UNSET:
        return min(filter(None, (otherwise, end)), default=None)
    at = _later(given)
    if end and (at is None or at > end):
        raise PermissionDenied(
            f"The API key {asking} expires on {end:%Y-%m-%d %H:%M} UTC, so no key that it makes"
            " lasts longer. Do it on the page Settings → API keys."
        )
    return at


def _later(moment: Any) -> datetime | None:
    """Raises ValidationError for what has passed, and for what is no date in UTC; a time without a
    zone is UTC.
    """
    if moment is None:
        return None
    try:
        at: datetime = moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except OverflowError as error:
        raise ValidationError(
            {"path": "expires_at", "error": "must be a date from year 1 to 9999 in UTC"}
        ) from error
    if at <= datetime.now(UTC):
        raise ValidationError({"path": "expires_at", "error": "must be in the future"})
    return at


def _require_own(key: ApiKey, scopes: list[str], holdout: bool) -> None:
    if missing := sorted(set(scopes) - set(key.scopes)):
        raise PermissionDenied(
            f"The API key {key} does not have the scope {', '.join(missing)} itself, so it cannot"
            " hand it out. Do it on the page Settings → API keys."
        )
    if holdout and not key.sees_holdout:
        raise PermissionDenied(
            f"The API key {key} may not see hold-outs itself, so it cannot hand that out."
        )
