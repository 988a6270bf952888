"""The alerts of a project, and one with its chart and its history."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import partial
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import get_object_or_404, render
from django.urls import reverse

from apps.core.access import project_view
from apps.core.models import Project, Role
from apps.core.routes import RUNS, shows
from apps.trajectories import alert_chart
from apps.trajectories.alerts import MEASURES, amount, crosses, in_words, limit_of
from apps.trajectories.models import Alert, AlertPoint
from apps.trajectories.shown import figures_shown

SHOWN_CHANGES, SHOWN_POINTS = 50, 60


@project_view()
def listing(request: HttpRequest, project: Project) -> HttpResponse:
    alerts = [(row, _measured(row)) for row in project.alerts.order_by("state", "name")]
    context = {"alerts": alerts, "may_write": request.membership.may(Role.ENGINEER)}
    return render(request, "trajectories/alerts.html", context)


@shows(RUNS)
@project_view()
def alert(request: HttpRequest, project: Project, pk: int) -> HttpResponse:
    row = get_object_or_404(Alert, project=project, pk=pk)
    changes, points = row.changes.all()[:SHOWN_CHANGES], list(row.points.all())
    given = QueryDict(row.filters)
    runs = partial(MEASURES[row.measure].source.ids, project, given)
    figures_shown(project, runs, given, to=request.user, where="alert")
    return render(
        request,
        "trajectories/alert.html",
        {
            "alert": row,
            "said": _measured(row),
            "limit": limit_of(row),
            "figure": points and alert_chart.figure(row, points, partial(rows_at, row)),
            "points": [_shown(row, point) for point in reversed(points[-SHOWN_POINTS:])],
            "changes": [(change, rows_between(row, change.begin, change.at)) for change in changes],
            "may_write": request.membership.may(Role.ENGINEER),
        },
    )


def _measured(alert: Alert) -> str:
    """Of nothing even a sum says nothing, where nothing is decided by it."""
    if alert.checked_at is None:
        return "Not checked yet"
    is_of_nothing = alert.unmeasured_since is not None and not alert.n
    return in_words(alert, None if is_of_nothing else alert.value)


def _shown(alert: Alert, point: AlertPoint) -> dict:
    value = point.value
    return {
        "at": point.at,
        "n": point.n,
        "value": "too little" if value is None else amount(alert, value),
        "is_bad": value is not None and crosses(alert, value, point),
        "href": rows_at(alert, point),
    }


def rows_at(alert: Alert, point: AlertPoint) -> str:
    return rows_between(alert, point.at - timedelta(minutes=alert.window_minutes), point.at)


def rows_between(alert: Alert, begin: datetime, end: datetime) -> str:
    """The address of the list of what was measured."""
    times = {"from": f"{begin:%Y-%m-%dT%H:%M:%SZ}", "to": f"{end:%Y-%m-%dT%H:%M:%SZ}"}
    route = f"trajectories:{MEASURES[alert.measure].source.route}"
    query = urlencode(QueryDict(alert.filters).dict() | times)
    return f"{reverse(route, args=[alert.project.slug])}?{query}"


def new_alert(project: Project, measure: str, given: QueryDict) -> str:
    """The address of the form of an alert on what a list shows."""
    known = MEASURES[measure].source.known
    filters = urlencode({name: value for name, value in given.items() if value and name in known})
    query = urlencode({"measure": measure, "filters": filters})
    return f"{reverse('trajectories:alert_new', args=[project.slug])}?{query}"
