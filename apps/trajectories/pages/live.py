"""The live tail: runs as they arrive, within the filters of the list.

It costs the same at any traffic: a poll looks at the SCANNED runs that started last, shows SHOWN of
those that are new, and says how many it left out. New is what was committed since the last look: a
time would miss a batch that is committed later than one that was received after it, so a look
remembers the transactions it could not see yet.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Self

from django.db import connection
from django.db.models import Q
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import render
from django.utils import timezone

from apps.core.access import project_view
from apps.core.models import Project
from apps.core.query import FLAG
from apps.core.routes import RUNS, shows
from apps.core.timeouts import TooLong, patience
from apps.trajectories.filters import (
    EXPOSED,
    FILTERS,
    OF_LISTS,
    active,
    apply_filters,
    refuse_malformed,
    without,
)
from apps.trajectories.models import Outcome, Trajectory
from apps.trajectories.pages.columns import COLUMNS, DEFAULT, Column
from apps.trajectories.pages.listing import UNLISTED, facets
from apps.trajectories.shown import runs_shown

SHOWN, SCANNED, KEPT = 30, 5_000, 200
EVERY_S = 2
LOOK_BACK = timedelta(minutes=10)  # of the first look
LONGEST_STORING = timedelta(hours=1)  # between a run's receipt and its commit
PATIENCE_MS = 1_500
UNKNOWN_HERE = ("since", "from", "to", "cursor", "cols", "after", "paused", "sort")
EPOCH = datetime.fromtimestamp(0, UTC)
CURSOR = re.compile(r"[0-9]{1,16}(\.[0-9]{1,18}){1,500}")


@dataclass(frozen=True)
class Cursor:
    """A look: when it was, and what it could see, as a snapshot of PostgreSQL: the transactions
    below `end` but those of `running`.
    """

    at: datetime
    end: int
    running: tuple[int, ...] = ()

    @classmethod
    def now(cls) -> Self:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_current_snapshot()::text")
            _, end, running = cursor.fetchone()[0].split(":")
        return cls(timezone.now(), int(end), tuple(int(one) for one in running.split(",") if one))

    @classmethod
    def of(cls, text: str) -> Self | None:
        """None for a text that is none."""
        if not CURSOR.fullmatch(text):
            return None
        at, end, *running = map(int, text.split("."))
        now = (timezone.now() - EPOCH) // timedelta(microseconds=1)
        return cls(EPOCH + timedelta(microseconds=min(at, now)), end, tuple(running))

    def __str__(self) -> str:
        at = (self.at - EPOCH) // timedelta(microseconds=1)
        return ".".join(map(str, (at, self.end, *self.running)))

    @property
    def unseen(self) -> Q:
        """The rows that this look could not see."""
        return Q(stored_in__gte=self.end) | Q(stored_in__in=self.running)


@dataclass(frozen=True)
class Tail:
    """`left_out` more are new and not shown, or at least so many where `more`; `after` is where the
    next look begins.
    """

    rows: list[Trajectory]
    left_out: int
    more: bool
    after: Cursor
    too_long: bool = False


def columns() -> list[Column]:
    """Those of the list, with the time itself: “now” would soon be wrong here."""
    usual = [column for column in COLUMNS if column.key in DEFAULT and column.key != "started"]
    return [*usual, Column("started", "Started (UTC)", _time, "num muted")]


def _time(row: Trajectory) -> str:
    """Of today the time, else with its day."""
    today = row.started_at.date() == timezone.now().date()
    return (
        f"{row.started_at:%H:%M:%S}"
        if today
        else f"{row.started_at:%b} {row.started_at.day}, {row.started_at:%H:%M}"
    )


@project_view(query=OF_LISTS)
def page(request: HttpRequest, project: Project) -> HttpResponse:
    refuse_malformed(request.GET, FILTERS)
    chips = active(filters_of(request.GET))
    context = {
        "columns": columns(),
        "chips": [(chip, without(request.GET, chip.name, *UNKNOWN_HERE)) for chip in chips],
        "hidden_filters": sum(chip.name not in EXPOSED for chip in chips),
        "query": without(request.GET, *UNKNOWN_HERE),
        "outcomes": Outcome.choices,
        "facets": facets(project, request.GET),
        "modes": project.failure_modes.values_list("slug", "name"),
        "live": True,
        "kept": KEPT,
        "scanned": SCANNED,
    }
    return render(request, "trajectories/live.html", context)


@shows(RUNS)
@project_view(query=OF_LISTS | {"after": None, "paused": FLAG})
def rows(request: HttpRequest, project: Project) -> HttpResponse:
    """What arrived since the last look, and the element that looks again, unless it is paused."""
    given, since = request.GET, Cursor.of(request.GET.get("after", ""))
    paused = "paused" in given
    tail = (
        Tail([], 0, False, since or Cursor.now())
        if paused
        else read(project, filters_of(given), since)
    )
    runs_shown(
        project, [row.pk for row in tail.rows], to=request.user, where="live tail", previews=True
    )
    context = {
        "tail": tail,
        "table": [(row, [(column, column.cell(row)) for column in columns()]) for row in tail.rows],
        "query": without(given, *UNKNOWN_HERE),
        "paused": paused,
        "first": since is None,
        "every": EVERY_S,
        "width": len(columns()) + 1,
    }
    return render(request, "trajectories/_live_rows.html", context)


def filters_of(given: QueryDict) -> QueryDict:
    found = given.copy()
    for name in UNKNOWN_HERE:
        found.pop(name, None)
    return found


def read(project: Project, given: QueryDict, since: Cursor | None) -> Tail:
    """Of the newest SCANNED runs those that were committed after the look `since`, the newest
    first.
    """
    look = Cursor.now()
    begin = since.at - LONGEST_STORING if since else look.at - LOOK_BACK
    newest = project.trajectories.order_by("-pk").values_list("pk", flat=True)
    try:
        with patience(PATIENCE_MS):
            oldest = newest[SCANNED - 1 : SCANNED].first()
            seen = project.trajectories.filter(received_at__gt=begin).exclude(look.unseen)
            if since:
                seen = seen.filter(since.unseen)
            if oldest:
                seen = seen.filter(pk__gte=oldest)
            found = apply_filters(seen, given)
            n = found.order_by().count()
            shown = list(
                found.defer(*UNLISTED).prefetch_related("failure__mode").order_by("-pk")[:SHOWN]
            )
    except TooLong:
        return Tail([], 0, False, since or look, too_long=True)
    return Tail(shown, n - len(shown), n >= SCANNED, look)
