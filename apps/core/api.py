"""How a production agent proves which project it is: a bearer key, which decides the project."""

from __future__ import annotations

import base64
import time
from typing import Any, NoReturn
from urllib.parse import unquote

from django.contrib.auth.models import AnonymousUser
from django.http import Http404, HttpRequest
from django.utils import timezone
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import (
    APIException,
    AuthenticationFailed,
    NotAuthenticated,
    ParseError,
    PermissionDenied,
)
from rest_framework.parsers import DataAndFiles, JSONParser, MultiPartParser
from rest_framework.permissions import BasePermission
from rest_framework.request import Request

from apps.core import scopes
from apps.core.access import get_membership
from apps.core.attempts import Locked, address_of, refuse_key
from apps.core.models import ApiKey, Membership, Role, key_digest
from apps.core.query import parameters_of, refuse_invalid
from apps.core.storable import refuse_unstorable, refuse_unstorable_fields
from flywheel import logs

MAX_JSON = 16 * 2**20  # bytes of a body that is read at once
OURS = "/api/v1/"  # protocols of others have queries of their own
LAST_USED_RESOLUTION_S = 60
TRUSTED_S = 5.0
MAX_TRUSTED = 1000
NO_MEMBER = "Whoever created this API key is no longer a member of the project."

_trusted: dict[str, tuple[float, ApiKey]] = {}


class TooLarge(APIException):
    status_code = 413
    default_code = "too_large"


class JsonParser(JSONParser):
    """JSON whose texts can all be stored. What is nested deeper than Python can read is invalid
    like any other: 400.
    """

    def parse(self, stream: Any, media_type: str | None = None, parser_context: Any = None) -> Any:
        if int(parser_context["request"].META.get("CONTENT_LENGTH") or 0) > MAX_JSON:
            raise TooLarge(f"The body is larger than {MAX_JSON // 2**20} MiB.")
        try:
            value = super().parse(stream, media_type, parser_context)
            refuse_unstorable(value)
        except RecursionError as error:
            raise ParseError("This JSON is nested too deeply.") from error
        return value


class MultipartParser(MultiPartParser):
    """A form with files whose names and values can all be stored."""

    def parse(
        self, stream: Any, media_type: str | None = None, parser_context: Any = None
    ) -> DataAndFiles:
        parsed = super().parse(stream, media_type, parser_context)
        refuse_unstorable_fields([*parsed.data.lists(), *((name, ()) for name in parsed.files)])
        return parsed


class ApiKeyAuthentication(BaseAuthentication):
    """`Authorization: Bearer fw_…`, or Basic with the key as password. Sets `request.auth` to the
    ApiKey.
    """

    def authenticate(self, request: Request) -> tuple[AnonymousUser, ApiKey] | None:
        key = key_of(request)
        return (AnonymousUser(), key) if key else None

    def authenticate_header(self, request: Request) -> str:
        return "Bearer"


class TooManyRefused(AuthenticationFailed):
    """The address has sent too many keys that are none; `wait` seconds until the next is looked
    at.
    """

    status_code = 429

    def __init__(self, locked: Locked) -> None:
        super().__init__(f"{locked} Valid keys keep working.")
        self.wait = locked.seconds


def key_of(request: HttpRequest | Request) -> ApiKey | None:
    """The key of the Authorization header; None without one. Raises AuthenticationFailed for one
    that is unknown, revoked or expired.

    A key that was found is trusted for `TRUSTED_S` seconds: a revoked one, or one whose creator has
    left, may work so much longer.
    """
    # OTEL_EXPORTER_OTLP_HEADERS has its values percent-encoded, and some exporters send them so.
    header = unquote(request.META.get("HTTP_AUTHORIZATION", ""))
    scheme, _, given = header.strip().partition(" ")
    if scheme.lower() not in ("bearer", "basic"):
        return None
    if not given or " " in given:
        raise AuthenticationFailed("Send the key as “Authorization: Bearer <key>”.")
    digest = key_digest(given if scheme.lower() == "bearer" else _password(given))
    until, key = _trusted.get(digest, (0.0, None))
    known = key is not None and until >= time.monotonic()
    if not known:
        key = ApiKey.objects.by_digest(digest)
    if key is None or key.is_expired:
        _trusted.pop(digest, None)
        _refuse(key, digest, request)
    elif not known:
        if len(_trusted) >= MAX_TRUSTED:
            _trusted.clear()
        _trusted[digest] = time.monotonic() + TRUSTED_S, key
        _note_use(key)
    logs.note(project=key.project.slug)
    return key


def _refuse(expired: ApiKey | None, digest: str, request: HttpRequest | Request) -> NoReturn:
    """Raises AuthenticationFailed; TooManyRefused if too many came from the address."""
    try:
        refuse_key(digest, address_of(request))
    except Locked as locked:
        raise TooManyRefused(locked) from None
    if expired is None:
        raise AuthenticationFailed(
            "This API key is unknown or revoked. Create one under Settings → API keys."
        )
    raise AuthenticationFailed(
        f"The API key {expired} expired on {expired.expires_at:%Y-%m-%d %H:%M} UTC. Create a new"
        " one under Settings → API keys."
    )


def forget(key: ApiKey) -> None:
    """Stops trusting a key, in this process."""
    _trusted.pop(key.digest, None)


def _password(credentials: str) -> str:
    """Of “public:secret” in base64: clients made for Langfuse send two keys, and the second is the
    secret one.
    """
    try:
        return base64.b64decode(credentials, validate=True).decode().rpartition(":")[2]
    except ValueError as error:
        raise AuthenticationFailed("The Basic credentials are not base64 of “name:key”.") from error


def _note_use(key: ApiKey) -> None:
    now = timezone.now()
    if (
        key.last_used_at is None
        or (now - key.last_used_at).total_seconds() > LAST_USED_RESOLUTION_S
    ):
        ApiKey.objects.filter(pk=key.pk).update(last_used_at=now)


def member_of(request: Request, role: Role = Role.ENGINEER) -> Membership:
    """Of whoever made the key, whose present role what it writes needs. Raises PermissionDenied."""
    try:
        return get_membership(request.auth.created_by, request.auth.project.slug, role)
    except Http404 as error:
        raise PermissionDenied(NO_MEMBER) from error


class HasProjectKey(BasePermission):
    message = (
        "Send an API key of the project as “Authorization: Bearer <key>”. Create one under Settings"
        " → API keys."
    )

    def has_permission(self, request: Request, view: Any) -> bool:
        """Raises NotAuthenticated (the framework's own words would not say what to send),
        QueryError, and as `scopes.require` does."""
        if not isinstance(request.auth, ApiKey):
            raise NotAuthenticated(self.message)
        scopes.require(request.auth, request)
        if request.path.startswith(OURS) and request.method != "OPTIONS":
            refuse_invalid(request.query_params, parameters_of(view, request.method))
        return True


class ApiKeyScheme(OpenApiAuthenticationExtension):
    target_class = ApiKeyAuthentication
    name = "ApiKey"

    def get_security_definition(self, auto_schema: Any) -> dict:
        return {
            "type": "http",
            "scheme": "bearer",
            "description": "An API key of the project, with the scope that an operation names.",
        }
