"""The alerts of a project, and one with its history."""

from __future__ import annotations

from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import get_object_or_404, render
from django.urls import reverse

from apps.core.access import project_view
from apps.core.models import Project, Role
from apps.trajectories.alerts import MEASURES, RUNS, STEPS, in_words
from apps.trajectories.models import Alert, AlertChange

SHOWN_CHANGES = 50


@project_view()
def listing(request: HttpRequest, project: Project) -> HttpResponse:
    alerts = [(row, in_words(row, row.value)) for row in project.alerts.order_by("state", "name")]
    context = {"alerts": alerts, "may_write": request.membership.may(Role.ENGINEER)}
    return render(request, "trajectories/alerts.html", context)


@project_view()
def alert(request: HttpRequest, project: Project, pk: int) -> HttpResponse:
    row = get_object_or_404(Alert, project=project, pk=pk)
    changes = row.changes.all()[:SHOWN_CHANGES]
    return render(
        request,
        "trajectories/alert.html",
        {
            "alert": row,
            "said": in_words(row, row.value),
            "changes": [(change, rows_of(row, change)) for change in changes],
            "may_write": request.membership.may(Role.ENGINEER),
        },
    )


def rows_of(alert: Alert, change: AlertChange) -> str:
    """The address of the list of what was measured."""
    known = MEASURES[alert.measure].known
    route = "list" if known is RUNS else "steps" if known is STEPS else "scores"
    times = {"from": f"{change.begin:%Y-%m-%dT%H:%M:%SZ}", "to": f"{change.at:%Y-%m-%dT%H:%M:%SZ}"}
    query = urlencode(QueryDict(alert.filters).dict() | times)
    return f"{reverse(f'trajectories:{route}', args=[alert.project.slug])}?{query}"
