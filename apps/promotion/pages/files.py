"""A version's files and its model card, for people who are signed in."""

from __future__ import annotations

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import get_object_or_404, redirect
from django.views.decorators.http import require_POST

from apps.core.access import project_view
from apps.core.actions import audit
from apps.core.errors import Rejected
from apps.core.models import Project, Role
from apps.core.query import FLAG
from apps.core.routes import TOTALS, WHEN_EVALUATED, shows
from apps.promotion.pulling.archive import answer_with
from apps.promotion.pulling.card import card_of
from apps.promotion.pulling.links import files_of
from apps.registry import merging
from apps.registry.artifacts import ArtifactError
from apps.registry.models import ModelVersion


@shows(TOTALS, WHEN_EVALUATED)
@project_view(query={"merged": FLAG})
def download(request: HttpRequest, project: Project, pk: int) -> HttpResponseBase:
    """The version's files, with `?merged=1` its merged model's."""
    rows = ModelVersion.objects.select_related("artifact", "project", "merged__artifact")
    version = get_object_or_404(rows, project=project, pk=pk)
    artifact = files_of(version, merged="merged" in request.GET)
    if artifact is None:
        raise Http404
    try:
        answer = answer_with(version, artifact)
    except ArtifactError as error:
        messages.error(request, str(error))
        return redirect("promotion:model", project.slug, pk)
    audit(
        "model_version.downloaded",
        project=project,
        by=request.user,
        target=version,
        name=str(version),
        digest=artifact.pk,
    )
    return answer


@shows(TOTALS, WHEN_EVALUATED)
@project_view()
def card(request: HttpRequest, project: Project, pk: int) -> HttpResponse:
    version = get_object_or_404(
        ModelVersion.objects.select_related("artifact"), project=project, pk=pk
    )
    headers = {"Content-Disposition": 'inline; filename="README.md"'}
    return HttpResponse(
        card_of(version).markdown(), content_type="text/plain; charset=utf-8", headers=headers
    )


@require_POST
@project_view(Role.ENGINEER)
def merge(request: HttpRequest, project: Project, pk: int) -> HttpResponse:
    version = get_object_or_404(ModelVersion, project=project, pk=pk)
    try:
        merging.merge(version=version, by=request.user)
    except Rejected as error:
        messages.error(request, str(error))
    return redirect("promotion:model", project.slug, pk)
