"""What the current rules would change: start, follow, preview, apply or discard."""

from __future__ import annotations

import uuid
from typing import Any

from django.contrib import messages
from django.db.models import F
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_POST

from apps.core.access import project_view
from apps.core.models import Project, Role
from apps.core.paging import page_of
from apps.core.query import PAGE_NUMBER, Query
from apps.core.routes import RUNS, shows
from apps.failures import reclassify
from apps.failures.models import Failure, Reclassification, ReclassificationChange
from apps.trajectories.shown import runs_shown

NONE = "none"  # no failure, in a URL
SHOWN = 20

OF_CHANGES: Query = {"before": None, "after": None, "show": ("people",), "page": PAGE_NUMBER}


@shows(RUNS)
@project_view(query=OF_CHANGES)
def index(request: HttpRequest, project: Project) -> HttpResponse:
    return _page(request, project, project.reclassifications.select_related("created_by").first())


@shows(RUNS)
@project_view(query=OF_CHANGES)
def detail(request: HttpRequest, project: Project, pk: uuid.UUID) -> HttpResponse:
    return _page(request, project, _get(project, pk))


def _get(project: Project, pk: uuid.UUID) -> Reclassification:
    return get_object_or_404(
        Reclassification.objects.select_related("created_by", "project"), project=project, pk=pk
    )


def _page(request: HttpRequest, project: Project, job: Reclassification | None) -> HttpResponse:
    return render(
        request,
        "failures/reclassify.html",
        {
            "job": job,
            "history": project.reclassifications.select_related("created_by")[:SHOWN],
            "is_classified": Failure.objects.filter(project=project).exists(),
            **(_status(job) | _diff(request, project, job) if job else {}),
        },
    )


def _status(job: Reclassification) -> dict[str, Any]:
    return {
        "job": job,
        "is_active": job.is_active,
        "is_applying": job.is_applying,
        "percent": job.percent,
    }


def _diff(request: HttpRequest, project: Project, job: Reclassification) -> dict[str, Any]:
    comparing = job.is_active and not job.is_applying
    if comparing or job.decision == Reclassification.Decision.DISCARDED:
        return {}
    cells = reclassify.matrix(job)
    page = page_of(request, _chosen(request, job).order_by("pk"), SHOWN)
    runs_shown(
        job.project,
        [row.trajectory_id for row in page],
        to=request.user,
        where="preview of changed rules",
    )
    return {
        "changes": sum(cell["n"] for cell in cells),
        "people": reclassify.of_people(job),
        "table": _table(cells, {mode.slug: mode.name for mode in project.failure_modes.all()}),
        "page": page,
        "names": {"": "no failure"}
        | {mode.slug: mode.name for mode in project.failure_modes.all()},
        "before": request.GET.get("before", ""),
        "after": request.GET.get("after", ""),
        "show": request.GET.get("show", ""),
    }


def _chosen(request: HttpRequest, job: Reclassification) -> Any:
    """The changes in a cell of the table, or those where people disagree with the rules."""
    if request.GET.get("show") == "people":
        rows = ReclassificationChange.objects.filter(reclassify.OF_PEOPLE, reclassification=job)
        return rows.exclude(before=F("after")).select_related("trajectory")
    rows = reclassify.changing(job)
    for name in ("before", "after"):
        if value := request.GET.get(name):
            rows = rows.filter(**{name: "" if value == NONE else value})
    return rows


def _table(cells: list[dict[str, Any]], names: dict[str, str]) -> dict[str, Any]:
    """{columns: [name], rows: [{name, cells: [{before, after, n, same}]}]}, no failure last."""
    counts = {(cell["before"], cell["after"]): cell["n"] for cell in cells}
    order = [*names, *sorted({slug for pair in counts for slug in pair} - set(names) - {""}), ""]
    befores = [slug for slug in order if any(before == slug for before, _ in counts)]
    afters = [slug for slug in order if any(after == slug for _, after in counts)]
    return {
        "columns": [names.get(slug, slug) or "No failure" for slug in afters],
        "rows": [
            {
                "name": names.get(slug, slug) or "No failure",
                "cells": [
                    {
                        "before": slug or NONE,
                        "after": other or NONE,
                        "n": counts.get((slug, other), 0),
                        "same": slug == other,
                    }
                    for other in afters
                ],
            }
            for slug in befores
        ],
    }


@project_view()
def status(request: HttpRequest, project: Project, pk: uuid.UUID) -> HttpResponse:
    """Only the progress; when the work is done, the page is told to reload itself with the diff."""
    job = _get(project, pk)
    context = _status(job)
    response = render(request, "failures/_reclassify_status.html", context)
    if request.headers.get("HX-Request") and not context["is_active"]:
        response["HX-Refresh"] = "true"
    return response


@require_POST
@project_view(Role.ENGINEER)
def start(request: HttpRequest, project: Project) -> HttpResponse:
    try:
        job = reclassify.start(project=project, by=request.user)
    except reclassify.ReclassifyError as error:
        messages.error(request, str(error))
        return redirect("failures:reclassify", project.slug)
    return redirect("failures:reclassification", project.slug, job.pk)


@require_POST
@project_view(Role.ENGINEER)
def apply(request: HttpRequest, project: Project, pk: uuid.UUID) -> HttpResponse:
    if not reclassify.apply(job=_get(project, pk), by=request.user):
        messages.error(
            request,
            "Cannot be applied: the preview is still running, or was already applied or discarded.",
        )
    return redirect("failures:reclassification", project.slug, pk)


@require_POST
@project_view(Role.ENGINEER)
def discard(request: HttpRequest, project: Project, pk: uuid.UUID) -> HttpResponse:
    if reclassify.discard(job=_get(project, pk), by=request.user):
        messages.success(request, "Discarded. Nothing was changed.")
    else:
        messages.error(request, "This preview was already applied or discarded.")
    return redirect("failures:reclassify", project.slug)
