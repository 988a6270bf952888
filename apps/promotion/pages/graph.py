"""A version's graph: down to the runs that it learned from, up to the traffic that it served."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render

from apps.core.access import project_view
from apps.core.models import Project
from apps.promotion.effects.graph import HEIGHT, WIDTH, graph_of
from apps.registry.models import ModelVersion


@project_view()
def graph(request: HttpRequest, project: Project, pk: int) -> HttpResponse:
    version = get_object_or_404(
        ModelVersion.objects.select_related("parent"), project=project, pk=pk
    )
    found = graph_of(project, version)
    context = {"version": version, "graph": found, "width": WIDTH, "height": HEIGHT}
    return render(request, "promotion/graph.html", context)
