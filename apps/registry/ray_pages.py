"""The page of Ray clusters; what is done on it are operations of `ray_clusters`."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from apps.core.access import project_view
from apps.core.models import Project
from apps.registry.models import RayCluster


@project_view()
def listing(request: HttpRequest, project: Project) -> HttpResponse:
    return render(
        request,
        "registry/ray_clusters.html",
        {"clusters": RayCluster.objects.filter(project=project)},
    )
