"""The live tail: runs as they arrive, within the filters of the list.

It costs the same at any traffic: a poll looks at the SCANNED runs that started last, shows SHOWN of those that are new, and says
how many it left out. Runs are shown SETTLED after they were received, so that none that is still being stored is skipped.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import render
from django.utils import timezone

from apps.core.access import project_view
from apps.core.forms import whole
from apps.core.models import Project
from apps.core.timeouts import TooLong, patience
from apps.trajectories.filters import EXPOSED, active, apply_filters, without
from apps.trajectories.models import Outcome, Trajectory
from apps.trajectories.pages.columns import COLUMNS, DEFAULT, Column
from apps.trajectories.pages.listing import UNLISTED, facets
from apps.trajectories.shown import runs_shown

SHOWN, SCANNED, KEPT = 30, 5_000, 200
EVERY_S, SETTLED = 2, timedelta(seconds=2)
LOOK_BACK = timedelta(minutes=10)  # of the first look
PATIENCE_MS = 1_500
UNKNOWN_HERE = ("since", "from", "to", "cursor", "cols", "after", "paused", "sort")
EPOCH = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True)
class Tail:
    """`left_out` more are new and not shown, or at least so many where `more`; `after` is where the next look begins."""

    rows: list[Trajectory]
    left_out: int
    more: bool
    after: int
    too_long: bool = False


def columns() -> list[Column]:
    """Those of the list, with the time of day: “now” would soon be wrong here."""
    usual = [column for column in COLUMNS if column.key in DEFAULT and column.key != "started"]
    return [*usual, Column("started", "Started (UTC)", lambda row: f"{row.started_at:%H:%M:%S}", "num muted")]


@project_view()
def page(request: HttpRequest, project: Project) -> HttpResponse:
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


@project_view()
def rows(request: HttpRequest, project: Project) -> HttpResponse:
    """What arrived since the last look, and the element that looks again, unless it is paused."""
    given, since = request.GET, whole(request.GET.get("after"))
    paused = "paused" in given
    tail = Tail([], 0, False, since or now_us()) if paused else read(project, filters_of(given), since)
    runs_shown(project, [row.pk for row in tail.rows], to=request.user, where="live tail")
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


def now_us() -> int:
    return (timezone.now() - EPOCH) // timedelta(microseconds=1)


def read(project: Project, given: QueryDict, since: int | None) -> Tail:
    """Of the newest SCANNED runs those that were received after `since` (microseconds), the newest first."""
    until = timezone.now() - SETTLED
    after = EPOCH + timedelta(microseconds=min(since, now_us())) if since is not None else until - LOOK_BACK
    cursor = (max(until, after) - EPOCH) // timedelta(microseconds=1)
    newest = project.trajectories.order_by("-pk").values_list("pk", flat=True)
    try:
        with patience(PATIENCE_MS):
            oldest = newest[SCANNED - 1 : SCANNED].first()
            seen = project.trajectories.filter(received_at__gt=after, received_at__lte=until)
            if oldest:
                seen = seen.filter(pk__gte=oldest)
            found = apply_filters(seen, given)
            n = found.order_by().count()
            shown = list(found.defer(*UNLISTED).prefetch_related("failure__mode").order_by("-pk")[:SHOWN])
    except TooLong:
        return Tail([], 0, False, cursor, too_long=True)
    return Tail(shown, n - len(shown), n >= SCANNED, cursor)
