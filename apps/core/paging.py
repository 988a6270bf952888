from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from django.core.paginator import Page, Paginator
from django.db.models import Q, QuerySet, UUIDField
from django.http import HttpRequest
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core.forms import whole
from apps.core.query import WHOLE, QueryError, number_of

EPOCH = datetime.fromtimestamp(0, UTC)


class NotACursor(QueryError):
    """400 on pages and in the API."""

    def __init__(self, name: str = "cursor") -> None:
        super().__init__(name, "is not a cursor of this list; start without one")


def page_of(request: HttpRequest, rows: Any, size: int = 50) -> Page:
    """The page the URL asks for. For a number beyond the last page, the last one, whose `missing`
    is that number: `_pages.html` says so. After a change rows may have left the page.
    """
    text = request.GET.get("page", "")
    number = max(int(text), 1) if WHOLE.fullmatch(text) else 1
    page = Paginator(rows, size).get_page(number)
    page.missing = number if number > page.number else None  # type: ignore[attr-defined]
    return page


def keyset(
    rows: QuerySet[Any], cursor: str, limit: int, by: str = "created_at"
) -> tuple[list[Any], str | None]:
    """A page of rows, the newest first, and the cursor of the next page (None at the end). Rows
    that come or go meanwhile move nothing: a cursor is the time (the field `by`) and the id of the
    last row shown. Raises NotACursor."""
    if cursor:
        at, _, pk = cursor.partition("_")
        try:
            moment, pk = EPOCH + timedelta(microseconds=int(at)), _key_of(rows, pk)
        except (ValueError, OverflowError) as error:
            raise NotACursor from error
        rows = rows.filter(Q(**{f"{by}__lt": moment}) | Q(**{by: moment, "pk__lt": pk}))
    found = list(rows.order_by(f"-{by}", "-pk")[: limit + 1])
    last = found[limit - 1] if len(found) > limit else None
    return found[:limit], f"{_microseconds(getattr(last, by))}_{last.pk}" if last else None


def listed(
    request: Request,
    rows: QuerySet[Any],
    as_json: Callable[[Request, Any], Any],
    prepare: Callable[[list[Any]], None] | None = None,
    by: str = "created_at",
) -> Response:
    """An answer with a page of rows, newest first; `prepare` reads once for all of them. Raises
    NotACursor.
    """
    limit = number_of(request, "limit")
    found, following = keyset(rows, request.query_params.get("cursor", ""), limit, by)
    if prepare:
        prepare(found)
    return Response({"results": [as_json(request, row) for row in found], "next": following})


def _key_of(rows: QuerySet[Any], text: str) -> UUID | int:
    if isinstance(rows.model._meta.pk, UUIDField):
        return UUID(text)
    if (key := whole(text)) is None:
        raise ValueError(text)
    return key


def _microseconds(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(microseconds=1)
