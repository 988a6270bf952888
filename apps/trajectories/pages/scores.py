"""The list of scores: filters, a chart, files."""

from __future__ import annotations

from functools import partial
from typing import Any

from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.shortcuts import render

from apps.core.access import project_view
from apps.core.models import Project
from apps.core.paging import keyset
from apps.core.query import Query
from apps.core.routes import RUNS, shows
from apps.core.timeouts import TooLong, patience
from apps.trajectories import score_rows
from apps.trajectories.filters import SINCE, without
from apps.trajectories.models import Score
from apps.trajectories.pages.alerts import new_alert
from apps.trajectories.score_rows import (
    BY,
    FILTERS,
    active_filters,
    apply_filters,
    names_of,
)
from apps.trajectories.scores_api import file_of
from apps.trajectories.shown import figures_shown, runs_shown

PAGE, NAMES = 50, 200
CHART_MS = 4_000
EXPOSED = {"name", "source", "kind", "since", "score_is"}
QUERY: Query = FILTERS | {"by": tuple(BY)}


@shows(RUNS)
@project_view(query=QUERY | {"cursor": None})
def scores(request: HttpRequest, project: Project) -> HttpResponse:
    given = request.GET
    rows, following = keyset(apply_filters(project, given), given.get("cursor", ""), PAGE)
    runs = {row.trajectory_id for row in rows if row.trajectory_id}
    runs_shown(project, runs, to=request.user, where="scores")
    chips = active_filters(given)
    return render(
        request,
        "trajectories/scores.html",
        {
            "rows": rows,
            "next": following,
            "chips": [(chip, without(given, chip.name)) for chip in chips],
            "cleared": without(given, *(chip.name for chip in chips)),
            "hidden_filters": sum(chip.name not in EXPOSED for chip in chips),
            "query": without(given),
            "names": names_of(project, NAMES),
            "sources": Score.Source.choices,
            "kinds": Score.Kind.choices,
            "since": SINCE,
            "groups": {name: title for name, (title, _) in BY.items()},
            "by": given.get("by") or "agent_version",
            "new_alert": new_alert(project, "score", given),
        },
    )


@shows(RUNS)
@project_view(query=QUERY)
def chart(request: HttpRequest, project: Project) -> HttpResponse:
    context: dict[str, Any] = {"too_long": False}
    try:
        with patience(CHART_MS):
            answer = score_rows.ask(project, request.GET)
            runs = partial(score_rows.runs_of, project, request.GET)
            figures_shown(project, runs, request.GET, to=request.user, where="chart of scores")
    except TooLong:
        context["too_long"] = True
    else:
        title = BY[answer.by][0]
        context |= {"answer": answer, "by": title, "figures": score_rows.figures(answer)}
    return render(request, "trajectories/_scores_chart.html", context)


@shows(RUNS)
@project_view(query=QUERY | {"format": tuple(score_rows.FILES)})
def export(request: HttpRequest, project: Project) -> StreamingHttpResponse:
    return file_of(project, request.GET, to=request.user)
