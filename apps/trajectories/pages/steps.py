"""The list of steps: filters, a chart, files."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from django.http import HttpRequest, HttpResponse, QueryDict, StreamingHttpResponse
from django.shortcuts import render
from django.urls import reverse

from apps.core.access import project_view
from apps.core.models import Project, Role
from apps.core.query import Query
from apps.core.routes import RUNS, shows
from apps.core.sorting import Sorting
from apps.core.timeouts import TooLong, patience
from apps.trajectories import step_figures, step_rows
from apps.trajectories.filters import SINCE, without
from apps.trajectories.models import SavedView, Step
from apps.trajectories.pages.alerts import new_alert
from apps.trajectories.pages.listing import facets, saved_views
from apps.trajectories.shown import figures_shown, runs_shown
from apps.trajectories.step_figures import BY, MEASURES, SPEC, Group
from apps.trajectories.step_filters import (
    FILTERS,
    SORTED_BY,
    SORTS,
    active_filters,
    runs_of,
)
from apps.trajectories.steps import KINDS, STATUSES
from apps.trajectories.steps_api import figures_file, file_of

PAGE = 50
LIST_MS, CHART_MS = 10_000, 4_000
EXPOSED = {"kind", "name", "status", "since", "agent_version", "arguments"}
QUERY: Query = FILTERS | SORTED_BY | SPEC
VIEWS = (
    ("Failed tool calls", "kind=tool&measure=errors&status=error"),
    ("Slow tools (> 2 s)", "duration_min=2&kind=tool&sort=-duration"),
    ("Failed or slow by version", "by=agent_version&failed_or_over=2&kind=tool&measure=steps"),
    ("p95 by version", "by=name&kind=tool&measure=p95&split=agent_version"),
    ("Model cost", "by=model&kind=model&measure=cost"),
)


@shows(RUNS)
@project_view(query=QUERY)
def steps(request: HttpRequest, project: Project) -> HttpResponse:
    given = request.GET
    page, too_long = read_page(project, given)
    runs = {row.trajectory_id for row in page["rows"]}
    runs_shown(project, runs, to=request.user, where="steps")
    chips = active_filters(given)
    order = Sorting.of(given, SORTS)
    return render(
        request,
        "trajectories/steps.html",
        {
            "page": page,
            "rows": [(row, place_of(project, row)) for row in page["rows"]],
            "has": {
                name: any(getattr(row, name) for row in page["rows"])
                for name in ("model", "total_tokens", "cost_usd")
            },
            "too_long": too_long,
            "order": order,
            "oldest_first": order.chosen == "started" and not order.descending,
            "chips": [(chip, without(given, chip.name)) for chip in chips],
            "cleared": without(given, *(chip.name for chip in chips)),
            "hidden_filters": sum(chip.name not in EXPOSED for chip in chips),
            "query": without(given),
            "kinds": KINDS,
            "statuses": STATUSES,
            "since": SINCE,
            "facets": facets(project, given),
            "measures": {name: measure.title for name, measure in MEASURES.items()},
            "groups": BY,
            "spec": {"measure": given.get("measure") or "p95", "by": given.get("by") or "name"},
            "new_alert": new_alert(project, _alerted(given), given),
            "usual_views": [
                {"name": name, "query": query, "at": query == without(given)}
                for name, query in VIEWS
            ],
            "views": saved_views(project, request.user, given, SavedView.Page.STEPS),
            "may": {
                "write": request.membership.may(Role.REVIEWER),
                "delete": request.membership.may(Role.OWNER),
            },
        },
    )


def _alerted(given: QueryDict) -> str:
    """What an alert on these steps is likely to be about."""
    is_slow = given.get("duration_min") or given.get("measure") in ("p50", "p95", "p99")
    return "step_p95" if is_slow else "step_error_rate"


def read_page(project: Project, given: QueryDict) -> tuple[dict[str, Any], bool]:
    """A page, and whether it was given up because it would read too much."""
    try:
        with patience(LIST_MS):
            return step_rows.page(project, given, PAGE), False
    except TooLong:
        return {"rows": [], "next": None, "previous": None}, True


def place_of(project: Project, row: Step) -> str:
    """The address of a step in its run: its message, else its span."""
    run = reverse("trajectories:detail", args=[project.slug, row.trajectory_id])
    if row.message_index is not None:
        return f"{run}#m{row.message_index}"
    is_span = row.started_at is not None and not row.key.startswith("#")
    return f"{run}spans/?{_query(span=row.key)}" if is_span else run


def _query(**values: str) -> str:
    query = QueryDict(mutable=True)
    query.update(values)
    return query.urlencode()


@shows(RUNS)
@project_view(query=QUERY | {"format": ("csv",)})
def chart(request: HttpRequest, project: Project) -> HttpResponse:
    """The chart of the steps that match, and its figures as a table, or as a file."""
    given = request.GET
    context: dict[str, Any] = {"too_long": False}
    try:
        with patience(CHART_MS):
            answer = step_figures.ask(project, given)
            runs = partial(runs_of, project, given)
            figures_shown(project, runs, given, to=request.user, where="chart of steps")
    except TooLong:
        context["too_long"] = True
    else:
        if given.get("format"):
            return figures_file(project, answer)
        link = linking(given, answer.by, answer.split)
        context |= {
            "answer": answer,
            "title": step_figures.title_of(answer),
            "figure": step_figures.figure(answer, link),
            "table": step_figures.table(answer, link),
            "by": BY[answer.by],
            "split": BY.get(answer.split, ""),
        }
    return render(request, "trajectories/_steps_chart.html", context)


def linking(given: QueryDict, by: str, split: str) -> Callable[[Group], str]:
    """The address of the steps of a group."""

    def link(group: Group) -> str:
        names = {by: group.value} | ({split: group.part} if split else {})
        query = QueryDict(without(given, *names, "sort"), mutable=True)
        for name, value in names.items():
            if value:
                query[name] = value
        return f"?{query.urlencode()}"

    return link


@shows(RUNS)
@project_view(query=FILTERS | SORTED_BY | SPEC | {"format": tuple(step_rows.FILES)})
def export(request: HttpRequest, project: Project) -> StreamingHttpResponse:
    return file_of(project, request.GET, to=request.user)
