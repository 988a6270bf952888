from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from functools import lru_cache

from django.http import HttpRequest, HttpResponse
from django.urls import Resolver404, ResolverMatch, resolve

from apps.core.access import address_fields
from apps.core.http import ReadableJson
from apps.core.storable import refuse_unstorable_fields
from flywheel.logs import PROBES
from flywheel.outages import RETRY_AFTER_S, is_transient
from flywheel.receiving import receivers
from workers.lib.typed import FormError

log = logging.getLogger(__name__)
AGENTS = ("/v1/", "/api/v1/", "/api/public/", "/env/", "/rollout/")
READ_ONLY = "This is read by GET."
POLICY = (
    "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none';"
    " form-action 'self'; frame-ancestors 'none'"
)


def content_security_policy(
    get_response: Callable[[HttpRequest], HttpResponse],
) -> Callable[[HttpRequest], HttpResponse]:
    """Scripts and styles come only from our own files: markup smuggled in by a trajectory neither
    runs nor covers the page.
    """

    def middleware(request: HttpRequest) -> HttpResponse:
        response = get_response(request)
        response.headers.setdefault("Content-Security-Policy", POLICY)
        return response

    return middleware


def straight_for_agents(
    get_response: Callable[[HttpRequest], HttpResponse],
) -> Callable[[HttpRequest], HttpResponse]:
    """What agents call goes to its view past the middleware after this one: sessions and pages'
    headers are for people. So do probes and metrics, which balancers and Prometheus ask for by the
    address of a machine, whatever ALLOWED_HOSTS says.

    It is known by its path alone, with or without the last slash (a redirected POST would become a
    GET), and proves itself by an API key, or the address of a rollout: no cookie is read there. A
    path or query that cannot be stored is answered with 400. An outage is answered with 503:
    exporters drop what gets a 500.
    """

    def middleware(request: HttpRequest) -> HttpResponse:
        is_straight = request.path_info.startswith(AGENTS) or request.path_info in PROBES
        match = _match(request.path_info) if is_straight else None
        if match is None:
            return get_response(request)
        request.resolver_match = match
        if request.path_info in PROBES and request.method not in ("GET", "HEAD"):
            return ReadableJson({"detail": READ_ONLY}, status=405, headers={"Allow": "GET, HEAD"})
        try:
            refuse_unstorable_fields(address_fields(request))
        except FormError as error:
            return ReadableJson({"path": error.path, "error": error.problem}, status=400)
        if request.method != "POST":
            return _answer(request, match)
        began = time.monotonic()
        response = _answer(request, match)
        if receivers.worked(began):
            response.headers["Connection"] = "close"
        return response

    return middleware


def _answer(request: HttpRequest, match: ResolverMatch) -> HttpResponse:
    try:
        response = match.func(request, *match.args, **match.kwargs)
        return response.render() if hasattr(response, "render") else response
    except Exception as error:
        if not is_transient(error):
            raise
        log.warning("%s %s answered with 503", request.method, request.path, exc_info=error)
        detail = (
            "The database cannot be reached or is busy. Nothing was acknowledged; send this again."
        )
        return ReadableJson(
            {"detail": detail}, status=503, headers={"Retry-After": str(RETRY_AFTER_S)}
        )


@lru_cache(maxsize=256)
def _match(path: str) -> ResolverMatch | None:
    """Remembered: of hundreds of patterns most are tried for a path."""
    for written in (path, path.removesuffix("/") if path.endswith("/") else f"{path}/"):
        with contextlib.suppress(Resolver404):
            return resolve(written)
    return None
