from __future__ import annotations

import json
from collections.abc import Iterator

from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.shortcuts import get_object_or_404, render
from rest_framework.exceptions import ValidationError

from apps.core.access import project_view
from apps.core.models import Project
from apps.trajectories.api import as_json, page_of
from apps.trajectories.filters import SINCE, apply_filters
from apps.trajectories.models import Facet, Outcome, Trajectory, in_chunks

PAGE = 50
CHOICES = 100


@project_view()
def listing(request: HttpRequest, project: Project) -> HttpResponse:
    rows = apply_filters(project.trajectories.all(), request.GET)
    try:
        page = page_of(rows.select_related("failure__mode"), request.GET.get("cursor"), PAGE)
    except ValidationError:
        page = page_of(rows.select_related("failure__mode"), None, PAGE)
    return render(
        request,
        "trajectories/list.html",
        {
            "page": page,
            "count": rows.count(),
            "outcomes": Outcome.choices,
            "since": SINCE,
            "versions": choices(project, Facet.Kind.VERSION),
            "models": choices(project, Facet.Kind.MODEL),
            "modes": project.failure_modes.values_list("slug", "name"),
            "filtered": any(request.GET.get(name) for name in request.GET if name != "cursor"),
        },
    )


def choices(project: Project, kind: Facet.Kind) -> list[str]:
    """The values there are, the most frequent first."""
    found = project.facets.filter(kind=kind, trajectories__gt=0).order_by("-trajectories", "value")
    return list(found.values_list("value", flat=True)[:CHOICES])


@project_view()
def detail(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    row = get_object_or_404(Trajectory.objects.select_related("failure__mode"), project=project, pk=pk)
    around = apply_filters(project.trajectories.all(), request.GET)
    newer = around.filter(pk__gt=row.pk).order_by("pk")
    older = around.filter(pk__lt=row.pk).order_by("-pk")
    failure = getattr(row, "failure", None)
    return render(
        request,
        "trajectories/detail.html",
        {
            "row": row,
            "failure": failure,
            "blamed": failure.blamed_message if failure else None,
            "newer": newer.values_list("pk", flat=True).first(),
            "older": older.values_list("pk", flat=True).first(),
            "raw": as_json(row),
            "revisions": row.revisions.all()[:20],
            "tasks": row.tasks.select_related("eval_set")[:20],
        },
    )


@project_view()
def export(request: HttpRequest, project: Project) -> StreamingHttpResponse:
    """The filtered trajectories as JSONL, in the form in which they can be sent again."""
    rows = apply_filters(project.trajectories.all(), request.GET).order_by("pk")

    def lines() -> Iterator[str]:
        for chunk in in_chunks(rows, 200):
            for row in chunk:
                yield json.dumps(as_json(row), default=str) + "\n"

    headers = {"Content-Disposition": f'attachment; filename="{project.slug}-trajectories.jsonl"'}
    return StreamingHttpResponse(lines(), content_type="application/x-ndjson", headers=headers)
