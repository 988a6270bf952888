"""Deleting data: the form with its preview, the deletions so far, and the report of each."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.views.decorators.http import require_POST

from apps.core.access import project_view
from apps.core.models import Project, Role
from apps.core.operations.pages import submitted
from apps.trajectories.erasure import operations
from apps.trajectories.models import DataDeletion


@project_view(Role.ENGINEER)
def listing(request: HttpRequest, project: Project) -> HttpResponse:
    context = {
        "deletions": project.datadeletions.select_related("created_by")[:50],
        "late": project.late_data.all()[:60],
    }
    return render(request, "trajectories/deletions.html", context)


@require_POST
@project_view(Role.OWNER)
def preview(request: HttpRequest, project: Project) -> HttpResponse:
    """What the form would delete; nothing is."""
    form, found = submitted(request, operations.preview)
    problems = [text for field in form.errors.values() for text in field]
    context: dict[str, Any] = {"problems": problems, "found": found}
    return render(request, "trajectories/_deletion_preview.html", context)


@project_view(Role.ENGINEER)
def detail(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    return render(request, "trajectories/deletion.html", _context(project, pk))


@project_view(Role.ENGINEER)
def status(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    return render(request, "trajectories/_deletion_status.html", _context(project, pk))


def _context(project: Project, pk: str) -> dict[str, Any]:
    row = get_object_or_404(
        DataDeletion.objects.select_related("created_by"), project=project, pk=pk
    )
    return {"deletion": row, "is_resumable": operations.is_resumable(row)}
