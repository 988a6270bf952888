"""What views share: values of a query, and answers to htmx."""

from __future__ import annotations

from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
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
