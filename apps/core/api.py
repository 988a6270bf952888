"""How a production agent proves which project it is: a bearer key, which decides the project."""

from __future__ import annotations

import base64
from typing import Any

from django.contrib.auth.models import AnonymousUser
from django.utils import timezone
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from rest_framework.authentication import BaseAuthentication, get_authorization_header
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.permissions import BasePermission
from rest_framework.request import Request

from apps.core.models import ApiKey

LAST_USED_RESOLUTION_S = 60


class ApiKeyAuthentication(BaseAuthentication):
    """`Authorization: Bearer fw_…`, or Basic with the key as password. Sets `request.auth` to the ApiKey."""

    def authenticate(self, request: Request) -> tuple[AnonymousUser, ApiKey] | None:
        parts = get_authorization_header(request).split()
        if not parts or parts[0].lower() not in (b"bearer", b"basic"):
            return None
        if len(parts) != 2:
            raise AuthenticationFailed("Send the key as “Authorization: Bearer <key>”.")
        secret = parts[1].decode("latin-1") if parts[0].lower() == b"bearer" else _password(parts[1])
        key = ApiKey.objects.by_secret(secret)
        if key is None:
            raise AuthenticationFailed("This API key is unknown or revoked. Make one under Settings → API keys.")
        _note_use(key)
        return AnonymousUser(), key

    def authenticate_header(self, request: Request) -> str:
        return "Bearer"


def _password(credentials: bytes) -> str:
    """Of “public:secret” in base64: clients made for Langfuse send two keys, and the second is the secret one."""
    try:
        return base64.b64decode(credentials, validate=True).decode().rpartition(":")[2]
    except ValueError as error:
        raise AuthenticationFailed("The Basic credentials are not base64 of “name:key”.") from error


def _note_use(key: ApiKey) -> None:
    now = timezone.now()
    if key.last_used_at is None or (now - key.last_used_at).total_seconds() > LAST_USED_RESOLUTION_S:
        ApiKey.objects.filter(pk=key.pk).update(last_used_at=now)


class HasProjectKey(BasePermission):
    message = "Send an API key of the project as “Authorization: Bearer <key>”."

    def has_permission(self, request: Request, view: Any) -> bool:
        return isinstance(request.auth, ApiKey)


class ApiKeyScheme(OpenApiAuthenticationExtension):
    target_class = ApiKeyAuthentication
    name = "ApiKey"

    def get_security_definition(self, auto_schema: Any) -> dict:
        return {"type": "http", "scheme": "bearer", "description": "An API key of the project."}
