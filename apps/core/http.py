"""What views share: values of a query, and answers to htmx."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django_htmx.http import HttpResponseClientRedirect


def uuid_of(text: str | None) -> UUID | None:
    """None for what is no UUID."""
    try:
        return UUID(text or "")
    except ValueError:
        return None


def go(request: HttpRequest, url: str) -> HttpResponse:
    """To another page, as a whole."""
    return HttpResponseClientRedirect(url) if request.htmx else redirect(url)


def progress(request: HttpRequest, template: str, context: dict[str, Any], *, runs: bool) -> HttpResponse:
    """The fragment that the page of a running job asks for; when it runs no more the whole page is loaded again."""
    response = render(request, template, context)
    if not runs:
        response["HX-Refresh"] = "true"
    return response
