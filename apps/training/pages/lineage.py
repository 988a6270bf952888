"""Fragments for other pages: what learned from a trajectory, and what learned from a task."""

from __future__ import annotations

from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render

from apps.core.access import project_view
from apps.core.models import Project
from apps.evals.models import Task
from apps.training.lineage import learners_of_task, learners_of_trajectory
from apps.trajectories.models import Trajectory


@project_view()
def of_trajectory(request: HttpRequest, project: Project, pk: UUID) -> HttpResponse:
    get_object_or_404(Trajectory.objects.only("pk"), project=project, pk=pk)
    return render(request, "training/_learned.html", {"learners": learners_of_trajectory(pk)})


@project_view()
def of_task(request: HttpRequest, project: Project, pk: UUID) -> HttpResponse:
    """404 for a held-out task: it never trains."""
    task = get_object_or_404(Task.objects.only("pk", "key"), project=project, pk=pk)
    return render(
        request, "training/_learned.html", {"learners": learners_of_task(pk), "task": task}
    )
