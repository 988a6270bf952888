from __future__ import annotations

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse

POLICY = (
    "default-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'; object-src 'none'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
# The API's page needs a start-up script of its own.
DOCS_POLICY = POLICY + "; script-src 'self' 'unsafe-inline'"


def content_security_policy(
    get_response: Callable[[HttpRequest], HttpResponse],
) -> Callable[[HttpRequest], HttpResponse]:
    """Scripts come from our own files only: a trajectory that smuggles one in stays text."""

    def middleware(request: HttpRequest) -> HttpResponse:
        response = get_response(request)
        policy = DOCS_POLICY if request.path == "/api/docs/" else POLICY
        response.headers.setdefault("Content-Security-Policy", policy)
        return response

    return middleware
