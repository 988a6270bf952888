"""What was received and could not be indexed or assembled into runs: why, and what to do about
it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_POST

from apps.core.access import project_view
from apps.core.models import Project, Role
from apps.trajectories.actions import arrivals as actions
from apps.trajectories.models import Arrival, Facet, Trace
from apps.trajectories.notices import LATEST, notices_of_latest
from apps.trajectories.otlp import BY_SHAPE
from apps.trajectories.silent import silent_traces

SHOWN = 100


@project_view()
def page(request: HttpRequest, project: Project) -> HttpResponse:
    arrivals = Arrival.objects.set_aside().filter(project=project)
    traces = Trace.objects.set_aside().filter(project=project).order_by("-touched_at")
    context = {
        "arrivals": arrivals[:SHOWN],
        "traces": traces[:SHOWN],
        "total": arrivals.count() + traces.count(),
        "silent": silent_traces(project),
        "notices": notices_of_latest(project),
        "noticed_among": LATEST,
        "has_shaped": Facet.objects.filter(
            project=project, kind=Facet.Kind.TAG, value=BY_SHAPE
        ).exists(),
        "by_shape": BY_SHAPE,
        "may_write": request.membership.may(Role.ENGINEER),
    }
    return render(request, "trajectories/arrivals.html", context)


def _decision(
    model: type[Arrival | Trace], action: Callable[..., bool], told: str
) -> Callable[..., HttpResponse]:
    """The view that lets an engineer decide about one row; `told` is what it says then."""

    @require_POST
    @project_view(Role.ENGINEER)
    def decide(request: HttpRequest, project: Project, **key: Any) -> HttpResponse:
        row = get_object_or_404(model._default_manager.set_aside(), project=project, **key)  # type: ignore[attr-defined]
        action(row, by=request.user)
        messages.success(request, told)
        return redirect("trajectories:arrivals", project.slug)

    return decide


RETRIED = "If it fails again, it will be listed here again."
retry = _decision(Arrival, actions.retry, f"The batch is being indexed again. {RETRIED}")
discard = _decision(Arrival, actions.discard, "Discarded. The trajectories stay in the list.")
retry_trace = _decision(Trace, actions.retry, f"The trace is being assembled again. {RETRIED}")
discard_trace = _decision(
    Trace,
    actions.discard_trace,
    "Discarded. Runs assembled from this trace before stay in the list.",
)
