"""A page of the list in an order: by time through an index, by other columns the newest that match.
Cursors are places, not numbers: what arrives meanwhile shows no row twice."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from operator import itemgetter
from typing import Any
from uuid import UUID

from django.db.models import QuerySet

from apps.core.paging import NotACursor
from apps.core.sorting import Sorting
from apps.trajectories.filters import SORTS, total_tokens
from apps.trajectories.models import Trajectory

SORTED = 10_000  # of the newest that match: by what has no index, more are not sorted
UUID_LENGTH = 36

Place = tuple[bool, float, int]  # without a value, the value, the id; in the order of the page


def page_of(
    rows: QuerySet[Trajectory], cursor: str | None, limit: int, order: Sorting | None = None
) -> dict[str, Any]:
    """{rows, next, previous}, the last two cursors or None: a direction, an id and the value that
    is sorted by. `sorted` is how many rows were, where that is not by time, and `more` that there
    are others. Raises NotACursor.
    """
    direction, pk, value = _decode(cursor)
    if order and order.chosen not in ("", "started"):
        return _sorted(rows, direction, pk, value, limit, order)
    oldest_first = bool(order and order.chosen == "started" and not order.descending)
    up, down = ("pk__gt", "pk"), ("pk__lt", "-pk")
    (on, onward), (back, backward) = (up, down) if oldest_first else (down, up)
    if direction == "before":
        found = list(rows.filter(**{back: pk}).order_by(backward)[: limit + 1])
        more, found = len(found) > limit, found[:limit][::-1]
        following, preceding = True, more
    else:
        found = list((rows.filter(**{on: pk}) if pk else rows).order_by(onward)[: limit + 1])
        following, preceding = len(found) > limit, pk is not None
        found = found[:limit]
    return {
        "rows": found,
        "next": f"after-{found[-1].pk}" if found and following else None,
        "previous": f"before-{found[0].pk}" if found and preceding else None,
    }


def _sorted(
    rows: QuerySet[Trajectory],
    direction: str,
    pk: UUID | None,
    value: float | None,
    limit: int,
    order: Sorting,
) -> dict[str, Any]:
    column = SORTS[order.chosen].removeprefix("-")
    sign = -1 if order.descending else 1

    def place(value: float | None, pk: UUID) -> Place:
        return (True, 0.0, -pk.int) if value is None else (False, sign * value, sign * pk.int)

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
    found = rows.in_bulk([pk for _, pk, _ in here])
    return {
        "rows": [found[pk] for _, pk, _ in here if pk in found],
        "next": _cursor("after", here[-1]) if here and end < len(places) else None,
        "previous": _cursor("before", here[0]) if here and begin else None,
        "sorted": len(places),
        "more": len(values) > SORTED,
    }


def _cursor(direction: str, at: tuple[Place, UUID, float | None]) -> str:
    _, pk, value = at
    return f"{direction}-{pk}" if value is None else f"{direction}-{pk}-{value!r}"


def _decode(cursor: str | None) -> tuple[str, UUID | None, float | None]:
    if not cursor:
        return "after", None, None
    direction, _, rest = cursor.partition("-")
    try:
        if direction not in ("after", "before"):
            raise ValueError
        value = rest[UUID_LENGTH + 1 :]
        return direction, UUID(rest[:UUID_LENGTH]), float(value) if value else None
    except ValueError as error:
        raise NotACursor from error
