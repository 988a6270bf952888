"""What was received and could not be indexed or assembled into runs: why, and what to do about it."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_POST

from apps.core.access import project_view
from apps.core.models import Project, Role
from apps.trajectories.actions import arrivals as actions
from apps.trajectories.models import Arrival, Trace

SHOWN = 100


@project_view()
def page(request: HttpRequest, project: Project) -> HttpResponse:
    arrivals = Arrival.objects.set_aside().filter(project=project)
    traces = Trace.objects.set_aside().filter(project=project).order_by("-touched_at")
    context = {
        "arrivals": arrivals[:SHOWN],
        "traces": traces[:SHOWN],
        "total": arrivals.count() + traces.count(),
        "may_write": request.membership.may(Role.MEMBER),
    }
    return render(request, "trajectories/arrivals.html", context)


@require_POST
@project_view(Role.MEMBER)
def retry(request: HttpRequest, project: Project, pk: int) -> HttpResponse:
    arrival = get_object_or_404(Arrival.objects.set_aside(), project=project, pk=pk)
    actions.retry(arrival=arrival, by=request.user)
    messages.success(request, "The batch is indexed again. If that fails, it comes back to this page.")
    return redirect("trajectories:arrivals", project.slug)


@require_POST
@project_view(Role.MEMBER)
def discard(request: HttpRequest, project: Project, pk: int) -> HttpResponse:
    arrival = get_object_or_404(Arrival.objects.set_aside(), project=project, pk=pk)
    actions.discard(arrival=arrival, by=request.user)
    messages.success(request, "Discarded. The trajectories stay in the list.")
    return redirect("trajectories:arrivals", project.slug)


@require_POST
@project_view(Role.MEMBER)
def trace_retry(request: HttpRequest, project: Project, trace_id: str) -> HttpResponse:
    trace = get_object_or_404(Trace.objects.set_aside(), project=project, trace_id=trace_id)
    actions.retry_trace(trace=trace, by=request.user)
    messages.success(request, "The trace is assembled again. If that fails, it comes back to this page.")
    return redirect("trajectories:arrivals", project.slug)


@require_POST
@project_view(Role.MEMBER)
def trace_discard(request: HttpRequest, project: Project, trace_id: str) -> HttpResponse:
    trace = get_object_or_404(Trace.objects.set_aside(), project=project, trace_id=trace_id)
    actions.discard_trace(trace=trace, by=request.user)
    messages.success(request, "Discarded. Runs assembled from this trace before stay in the list.")
    return redirect("trajectories:arrivals", project.slug)
