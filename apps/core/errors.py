"""Error pages that say what to do; JSON for the API."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.template.loader import render_to_string

from apps.core.bus import Event, publish
from apps.core.http import ReadableJson
from apps.core.query import QueryError
from apps.core.stores import StoreError
from flywheel.outages import RETRY_AFTER_S, is_transient

TEXTS = {
    400: ("Bad request", "The request was invalid. Go back and try again."),
    403: (
        "Not allowed",
        "Your role in this project does not allow this. Ask an owner of the project.",
    ),
    404: (
        "Not found",
        "This page does not exist, or belongs to a project you are not a member of.",
    ),
    500: (
        "Something went wrong",
        "The error was logged. Try again; if it persists, contact the operator of this server.",
    ),
    503: (
        "The database is unavailable",
        "It cannot be reached, or does not answer. What you sent was not saved; try again in some"
        " seconds. If it persists, contact the operator of this server.",
    ),
}

STORE_AWAY = (
    "What you sent was not saved; try again in some seconds. If it persists, contact the operator"
    " of this server."
)


class Rejected(Exception):
    """An operation that is not allowed; the message is a sentence for the page.

    The API answers 409, or 400 if `field` names the invalid input ("": the input as a whole).
    """

    field: str | None = None

    def __init__(self, sentence: str = "", field: str | None = None) -> None:
        super().__init__(sentence)
        if field is not None:
            self.field = field


class RefusalShown(Event):
    """The error's sentence is about to be shown to `by`, a person or an API key."""

    project: Any
    error: Rejected
    by: Any


def note_refusal(project: Any, error: Rejected, *, by: Any) -> None:
    """Before its sentence is shown to `by`."""
    publish(RefusalShown(project, error, by))


def _page(
    request: HttpRequest, status: int, detail: str = "", links: Mapping[str, str] | None = None
) -> HttpResponse:
    title, text = TEXTS[status]
    if request.path.startswith("/api/"):
        return ReadableJson({"detail": detail or title}, status=status)
    context = {"status": status, "title": title, "text": detail or text, "links": links or {}}
    return render(request, "error.html", context, status=status)


def invalid_query(request: HttpRequest, error: QueryError) -> HttpResponse:
    """A filter that does not exist, or a value that it cannot have: nothing is listed.

    The error page links to the same page without it, and to the one with the name that was meant.
    """
    links = {}
    if request.method == "GET":
        query = request.GET.copy()
        values = query.pop(error.path, [])
        if error.meant and error.meant not in query:
            meant = query.copy()
            meant.setlist(error.meant, values)
            links[f"Use “{error.meant}” instead"] = f"{request.path}?{meant.urlencode()}"
        links[f"Remove “{error.path}”"] = f"{request.path}?{query.urlencode()}".removesuffix("?")
    return _page(request, 400, error.sentence, links)


def bad_request(request: HttpRequest, exception: Any = None) -> HttpResponse:
    return _page(request, 400)


def forbidden(request: HttpRequest, exception: Any = None) -> HttpResponse:
    return _page(request, 403, str(exception or ""))


def not_found(request: HttpRequest, exception: Any = None) -> HttpResponse:
    return _page(request, 404)


def server_error(request: HttpRequest) -> HttpResponse:
    error = sys.exc_info()[1]
    if isinstance(error, StoreError):
        return _unavailable("Files are unavailable", f"{str(error).capitalize()}. {STORE_AWAY}")
    return _unavailable(*TEXTS[503]) if error and is_transient(error) else _page(request, 500)


def _unavailable(title: str, text: str) -> HttpResponse:
    """Needs neither the database nor who asks."""
    page = render_to_string("error.html", {"status": 503, "title": title, "text": text})
    return HttpResponse(page, status=503, headers={"Retry-After": str(RETRY_AFTER_S)})
