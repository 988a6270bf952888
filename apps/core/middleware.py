from __future__ import annotations

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse
from django.urls import Resolver404, resolve

AGENTS = ("/v1/", "/api/v1/", "/api/public/", "/env/")
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


def straight_for_agents(
    get_response: Callable[[HttpRequest], HttpResponse],
) -> Callable[[HttpRequest], HttpResponse]:
    """What agents call goes to its view past the middleware after this one: sessions and pages' headers are for people.

    It is known by its path alone, and proves itself by an API key: no cookie is read there.
    """

    def middleware(request: HttpRequest) -> HttpResponse:
        if request.path_info.startswith(AGENTS):
            try:
                request.resolver_match = match = resolve(request.path_info)
            except Resolver404:
                return get_response(request)
            response = match.func(request, *match.args, **match.kwargs)
            return response.render() if hasattr(response, "render") else response
        return get_response(request)

    return middleware
