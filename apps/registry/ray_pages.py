"""Pages of Ray clusters."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_POST

from apps.core.access import project_view
from apps.core.form_bounds import bounds_from
from apps.core.forms import PlainForm
from apps.core.models import Project, Role
from apps.core.outgoing_keys import key_hosts
from apps.registry import ray_clusters
from apps.registry.models import RayCluster
from apps.registry.ray_api import NewCluster
from apps.registry.servers import ServerError


@bounds_from(NewCluster)
class RayClusterForm(PlainForm):
    name = forms.SlugField(max_length=80, help_text="Letters, digits, - and _")
    base_url = forms.CharField(
        max_length=500,
        label="Address",
        help_text="URL of the Ray dashboard, where jobs are submitted",
        widget=forms.URLInput(attrs={"placeholder": "http://ray-head:8265"}),
    )
    key_variable = forms.CharField(
        max_length=80,
        required=False,
        label="Key variable",
        widget=forms.TextInput(attrs={"list": "key-variables"}),
        help_text=(
            "Optional: the environment variable of this installation that holds the cluster's token"
            " (RAY_AUTH_MODE=token)"
        ),
    )
    gpus = forms.FloatField(
        initial=1,
        label="GPUs of a job",
        help_text=(
            "For TRL, Unsloth, NeMo AutoModel and prime-rl; veRL and NeMo RL ask Ray for their own"
        ),
    )
    bases_at = forms.CharField(
        max_length=500,
        required=False,
        label="Folder of base models",
        help_text=(
            "Optional: where the nodes have the folders of base models. If empty, a job downloads"
            " its base from this Flywheel"
        ),
        widget=forms.TextInput(attrs={"placeholder": "/shared/models"}),
    )
    flywheel_url = forms.CharField(
        max_length=500,
        required=False,
        label="Address of this Flywheel",
        help_text="Optional: as seen from the nodes, if different from FLYWHEEL_URL",
        widget=forms.URLInput(attrs={"placeholder": "http://flywheel.internal:8000"}),
    )

    def key_variables(self) -> list[str]:
        return sorted(key_hosts())


@project_view()
def listing(request: HttpRequest, project: Project) -> HttpResponse:
    return render(
        request,
        "registry/ray_clusters.html",
        {"clusters": RayCluster.objects.filter(project=project)},
    )


@project_view(Role.OPERATOR)
def new(request: HttpRequest, project: Project) -> HttpResponse:
    form = RayClusterForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        try:
            made = ray_clusters.add_cluster(
                project=project, fields=form.cleaned_data, by=request.user, operator=True
            )
            messages.success(request, f"{made} added. A worker is checking whether it responds.")
            return redirect("registry:ray_clusters", project.slug)
        except ServerError as error:
            form.add_error(error.field or None, str(error))
    return render(request, "registry/ray_cluster_form.html", {"form": form})


@project_view(Role.OPERATOR)
def edit(request: HttpRequest, project: Project, name: str) -> HttpResponse:
    cluster = get_object_or_404(RayCluster, project=project, name=name)
    initial: dict[str, Any] = {
        field: getattr(cluster, field) for field in RayClusterForm.base_fields
    }
    form = RayClusterForm(request.POST or None, initial=initial)
    if request.method == "POST" and form.is_valid():
        try:
            ray_clusters.edit_cluster(
                cluster=cluster, fields=form.cleaned_data, by=request.user, operator=True
            )
            return redirect("registry:ray_clusters", project.slug)
        except ServerError as error:
            form.add_error(error.field or None, str(error))
    return render(request, "registry/ray_cluster_form.html", {"form": form, "cluster": cluster})


@require_POST
@project_view(Role.OPERATOR)
def remove(request: HttpRequest, project: Project, name: str) -> HttpResponse:
    ray_clusters.remove_cluster(
        cluster=get_object_or_404(RayCluster, project=project, name=name), by=request.user
    )
    messages.success(request, f"{name} is removed.")
    return redirect("registry:ray_clusters", project.slug)


@require_POST
@project_view(Role.OPERATOR)
def check(request: HttpRequest, project: Project, name: str) -> HttpResponse:
    cluster = get_object_or_404(RayCluster, project=project, name=name)
    ray_clusters.refresh_soon(cluster.pk)
    messages.info(request, f"A worker is checking {cluster}. Reload the page in a moment.")
    return redirect("registry:ray_clusters", project.slug)
