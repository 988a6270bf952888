from __future__ import annotations

from typing import Any

from django.core.paginator import Page, Paginator
from django.http import HttpRequest


def page_of(request: HttpRequest, rows: Any, size: int = 50) -> Page:
    """The page the URL asks for; the nearest there is for one out of range."""
    return Paginator(rows, size).get_page(request.GET.get("page"))
