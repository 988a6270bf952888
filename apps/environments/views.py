from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render

from apps.core.access import project_view
from apps.core.models import Project
from apps.environments.models import Environment
from workers.environments import load


@project_view()
def listing(request: HttpRequest, project: Project) -> HttpResponse:
    return render(
        request,
        "environments/list.html",
        {
            "environments": project.environments.select_related("verifier", "created_by"),
            "verifiers": project.verifiers.all(),
        },
    )


@project_view()
def detail(request: HttpRequest, project: Project, pk: int) -> HttpResponse:
    environment = get_object_or_404(
        Environment.objects.select_related("verifier", "created_by"), project=project, pk=pk
    )
    return render(
        request,
        "environments/detail.html",
        {
            "environment": environment,
            "tools": load(environment.as_spec()).tools,
            "opening": environment.opening,
        },
    )
