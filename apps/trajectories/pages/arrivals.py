"""Batches that were stored and could not be digested: why, and what to do about it."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_POST

from apps.core.access import project_view
from apps.core.models import Project, Role
from apps.trajectories.actions import arrivals as actions
from apps.trajectories.models import Arrival

SHOWN = 100


@project_view()
def page(request: HttpRequest, project: Project) -> HttpResponse:
    found = Arrival.objects.set_aside().filter(project=project)
    context = {"arrivals": found[:SHOWN], "total": found.count(), "may_write": request.membership.may(Role.MEMBER)}
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
