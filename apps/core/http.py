"""What views share: values of a query, and answers to htmx."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from django.core.serializers.json import DjangoJSONEncoder
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django_htmx.http import HttpResponseClientRedirect

LONGEST_FILTER = 120  # characters


class ReadableJson(HttpResponse):
    """An error for a terminal: nothing is escaped in it but what UTF-8 cannot write."""

    def __init__(self, data: Any, status: int, headers: Mapping[str, str] | None = None) -> None:
        text = json.dumps(data, ensure_ascii=False, cls=DjangoJSONEncoder)
        content = text.encode("utf-8", "backslashreplace")
        super().__init__(content, "application/json", status, headers=dict(headers or {}))


@dataclass(frozen=True)
class QueryFilters:
    """Filters that a page's address carries: a subclass has a text field for each parameter, "" if
    it is not given.
    """

    @classmethod
    def texts(cls, query: Mapping[str, str]) -> dict[str, str]:
        return {
            field.name: str(query.get(field.name) or "").strip()[:LONGEST_FILTER]
            for field in fields(cls)
        }

    @property
    def given(self) -> dict[str, str]:
        return {field.name: value for field in fields(self) if (value := getattr(self, field.name))}

    @cached_property
    def query(self) -> str:
        return urlencode(self.given)


def uuid_of(text: str | None) -> UUID | None:
    """None for what is no UUID."""
    try:
        return UUID(text or "")
    except ValueError:
        return None


def row_number(text: str | int) -> int | None:
    """None for what is no number that a row can have, such as one of 5,000 digits."""
    digits = str(text)
    number = int(digits) if digits.isdecimal() and len(digits) < 20 else 2**63
    return number if number < 2**63 else None


def go(request: HttpRequest, url: str) -> HttpResponse:
    """To another page, as a whole."""
    return HttpResponseClientRedirect(url) if request.htmx else redirect(url)


def progress(
    request: HttpRequest, template: str, context: dict[str, Any], *, runs: bool
) -> HttpResponse:
    """The fragment that the page of a running job asks for; when it runs no more the whole page is
    loaded again.
    """
    response = render(request, template, context)
    if not runs:
        response["HX-Refresh"] = "true"
    return response
