"""Browsers that have logged in to an account before, by a signed cookie: others' failures at their
address do not hold them up (`attempts`). It proves nothing else.
"""

from __future__ import annotations

import hashlib
from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse

COOKIE, SALT = "known_accounts", "known accounts"
AGE_S = 180 * 24 * 3600
MOST = 5  # accounts of one browser


def is_known(request: HttpRequest, username: str) -> bool:
    return _mark(username) in _marks(request)


def remember(request: HttpRequest, response: HttpResponse, username: str) -> None:
    mark = _mark(username)
    marks = [mark, *(other for other in _marks(request) if other != mark)][:MOST]
    options: dict[str, Any] = {"httponly": True, "samesite": "Lax"}
    secure = settings.SESSION_COOKIE_SECURE
    response.set_signed_cookie(
        COOKIE, ".".join(marks), SALT, max_age=AGE_S, secure=secure, **options
    )


def _marks(request: HttpRequest) -> list[str]:
    value = request.get_signed_cookie(COOKIE, "", salt=SALT, max_age=AGE_S)
    return value.split(".") if value else []


def _mark(username: str) -> str:
    return hashlib.sha256(username.encode("utf-8", "replace")).hexdigest()[:16]
