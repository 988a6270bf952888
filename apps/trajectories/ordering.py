"""A page of the list in an order: by time through an index, by other columns the newest that match.
Cursors are places, not numbers: what arrives meanwhile shows no row twice."""

from __future__ import annotations

import math
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple
from uuid import UUID

from django.db.models import Q, QuerySet

from apps.core.paging import NotACursor
from apps.core.sorting import Sorting
from apps.trajectories.filters import total_tokens

SORTED = 10_000  # of the newest that match: by what has no index, more are not sorted
CURSOR = re.compile(r"(after|before)-([0-9a-f-]{36}(?:\.\d{1,9})?)(?:-(\S+))?")

# The first rows beyond a place ({lookup: primary key}), in an order, so many
First = Callable[[Mapping[str, Any], str, int], list[Any]]
# Without a value, the value, the id as numbers; in the order of the page
Place = tuple[bool, float, tuple[int, ...]]


class Key(NamedTuple):
    """What a list's cursors name a row by: its primary key from a text (raises ValueError), the
    text, and numbers in the same order. `indexed`: what it is sorted by has an index, too."""

    read: Callable[[str], Any]
    text: Callable[[Any], str]
    numbers: Callable[[Any], tuple[int, ...]]
    indexed: bool = False


OF_RUNS = Key(UUID, str, lambda pk: (pk.int,))


def of_steps(project: int) -> Key:
    """Of a step: its run's id and its place among the steps of the run."""

    def read(text: str) -> tuple[int, UUID, int]:
        run, _, number = text.partition(".")
        return project, UUID(run), int(number)

    return Key(read, lambda pk: f"{pk[1]}.{pk[2]}", lambda pk: (pk[1].int, pk[2]), indexed=True)


def page_of(
    rows: QuerySet,
    cursor: str | None,
    limit: int,
    order: Sorting | None = None,
    key: Key = OF_RUNS,
    first: First | None = None,
) -> dict[str, Any]:
    """{rows, next, previous}, the last two cursors or None: a direction, an id and the value that
    is sorted by. `sorted` is how many rows were, where that is not by time, and `more` that there
    are others. `first` reads `rows` by time, if not in the plain way. Raises NotACursor.
    """
    first = first or partial(_first, rows)
    direction, pk, value = _decode(cursor, key)
    if order and order.chosen not in ("", "started"):
        sort = _by_index if key.indexed else _sorted
        return sort(rows, direction, pk, value, limit, order, key)
    oldest_first = bool(order and order.chosen == "started" and not order.descending)
    up, down = ("pk__gt", "pk"), ("pk__lt", "-pk")
    (on, onward), (back, backward) = (up, down) if oldest_first else (down, up)
    if direction == "before":
        found = first({back: pk}, backward, limit + 1)
        more, found = len(found) > limit, found[:limit][::-1]
        following, preceding = True, more
    else:
        found = first({on: pk} if pk else {}, onward, limit + 1)
        following, preceding = len(found) > limit, pk is not None
        found = found[:limit]
    return {
        "rows": found,
        "next": f"after-{key.text(found[-1].pk)}" if found and following else None,
        "previous": f"before-{key.text(found[0].pk)}" if found and preceding else None,
    }


def _first(rows: QuerySet, beyond: Mapping[str, Any], order: str, most: int) -> list[Any]:
    return list(rows.filter(**beyond).order_by(order)[:most])


def _sorted(
    rows: QuerySet,
    direction: str,
    pk: Any,
    value: float | None,
    limit: int,
    order: Sorting,
    key: Key,
) -> dict[str, Any]:
    column = order.columns[order.chosen].removeprefix("-")
    sign = -1 if order.descending else 1

    def place(value: float | None, pk: Any) -> Place:
        if value is None:
            return True, 0.0, tuple(-number for number in key.numbers(pk))
        return False, sign * value, tuple(sign * number for number in key.numbers(pk))

    keyed = rows.annotate(tokens=total_tokens()) if column == "tokens" else rows
    values = list(keyed.order_by("-pk").values_list("pk", column)[: SORTED + 1])
    places = sorted((place(value, pk), pk, value) for pk, value in values[:SORTED])
    begin, end = 0, limit
    if pk and direction == "before":
        end = bisect_left(places, place(value, pk), key=itemgetter(0))
        begin = max(0, end - limit)
    elif pk:
        begin = bisect_right(places, place(value, pk), key=itemgetter(0))
        end = begin + limit
    here = places[begin:end]
    found = {row.pk: row for row in rows.filter(pk__in=[pk for _, pk, _ in here])}
    return {
        "rows": [found[pk] for _, pk, _ in here if pk in found],
        "next": _cursor("after", here[-1], key) if here and end < len(places) else None,
        "previous": _cursor("before", here[0], key) if here and begin else None,
        "sorted": len(places),
        "more": len(values) > SORTED,
    }


def _by_index(
    rows: QuerySet,
    direction: str,
    pk: Any,
    value: float | None,
    limit: int,
    order: Sorting,
    key: Key,
) -> dict[str, Any]:
    """Rows that have a value, sorted by PostgreSQL."""
    column = order.columns[order.chosen].removeprefix("-")
    is_back = direction == "before"
    falls = order.descending != is_back
    rows = rows.filter(**{f"{column}__isnull": False})
    if pk and value is not None:
        side = "lt" if falls else "gt"
        beyond = Q(**{f"{column}__{side}": value}) | Q(**{f"pk__{side}": pk})
        rows = rows.filter(beyond, **{f"{column}__{side}e": value})
    sign = "-" if falls else ""
    found = list(rows.order_by(f"{sign}{column}", f"{sign}pk")[: limit + 1])
    more, found = len(found) > limit, found[:limit]
    if is_back:
        found.reverse()

    def cursor(direction: str, row: Any) -> str:
        return f"{direction}-{key.text(row.pk)}-{getattr(row, column)!r}"

    return {
        "rows": found,
        "next": cursor("after", found[-1]) if found and (more or is_back) else None,
        "previous": cursor("before", found[0]) if found and (more if is_back else pk) else None,
        "sorted": True,
    }


def _cursor(direction: str, at: tuple[Place, Any, float | None], key: Key) -> str:
    _, pk, value = at
    name = f"{direction}-{key.text(pk)}"
    return name if value is None else f"{name}-{value!r}"


def _decode(cursor: str | None, key: Key) -> tuple[str, Any, float | None]:
    if not cursor:
        return "after", None, None
    if (match := CURSOR.fullmatch(cursor)) is None:
        raise NotACursor
    try:
        value = float(match[3]) if match[3] else None
        if value is not None and not math.isfinite(value):
            raise NotACursor
        return match[1], key.read(match[2]), value
    except ValueError as error:
        raise NotACursor from error
