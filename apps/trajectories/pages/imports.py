"""The upload page: a file is looked at, shown, and imported by a worker while the page shows its progress.

Between preview and start there is no row: the file waits in the data folder under a random name that a signed token carries.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.contrib import messages
from django.core import signing
from django.core.files.uploadedfile import UploadedFile
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_POST

from apps.core import jobs
from apps.core.access import project_view
from apps.core.models import JobState, Project, Role
from apps.trajectories import uploads
from apps.trajectories.importers import FORMATS, ImportError_
from apps.trajectories.models import Upload

MAX_UPLOAD = 64 * 1024 * 1024
SALT = "trajectories.import"
TOKEN_S = 24 * 3600


@project_view(Role.ENGINEER)
def upload(request: HttpRequest, project: Project) -> HttpResponse:
    """The form; after a POST the preview of the file."""
    if request.method != "POST":
        return _page(request, project)
    given, format = request.FILES.get("file"), request.POST.get("format", "auto")
    if problem := _problem(given, format):
        return _page(request, project, problem=problem, status=400)
    path = uploads.keep(given.chunks())
    name = given.name[-200:]
    try:
        seen = uploads.preview(path, name, format)
    except ImportError_ as error:
        path.unlink(missing_ok=True)
        return _page(request, project, problem=str(error), status=400)
    token = {"file": path.name, "name": name, "format": seen["format"], "total": seen["total"]}
    seen["token"] = signing.dumps(token | {"project": project.pk, "by": request.user.pk}, salt=SALT, compress=True)
    return _page(request, project, preview=seen, name=name, size=path.stat().st_size)


@require_POST
@project_view(Role.ENGINEER)
def start(request: HttpRequest, project: Project) -> HttpResponse:
    try:
        token = signing.loads(request.POST.get("token", ""), salt=SALT, max_age=TOKEN_S)
    except signing.BadSignature:
        token = {}
    path = uploads.folder() / token.get("file", "missing")
    if (token.get("project"), token.get("by")) != (project.pk, request.user.pk) or not path.is_file():
        messages.error(request, "That file is no longer available. Upload it again.")
        return redirect("trajectories:import", project.slug)
    if Upload.objects.filter(project=project, path=str(path)).exists():
        messages.error(request, "That file was imported already; its import is in the list below.")
        return redirect("trajectories:import", project.slug)
    made = uploads.submit(project=project, by=request.user, path=path, token=token)
    return redirect("trajectories:import_detail", project.slug, made.pk)


@project_view(Role.ENGINEER)
def detail(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    return _page(request, project, upload=get_object_or_404(Upload, project=project, pk=pk))


@project_view(Role.ENGINEER)
def status(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    found = get_object_or_404(Upload, project=project, pk=pk)
    return render(request, "trajectories/_import_status.html", _state(found))


@require_POST
@project_view(Role.ENGINEER)
def retry(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    found = get_object_or_404(Upload, project=project, pk=pk)
    if not Path(found.path).is_file():
        messages.error(request, "The file is no longer available. Upload it again.")
    elif not uploads.resubmit(upload=found, by=request.user):
        messages.error(request, "This import is not one that failed.")
    return redirect("trajectories:import_detail", project.slug, pk)


@require_POST
@project_view(Role.ENGINEER)
def cancel(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    if jobs.cancel(get_object_or_404(Upload, project=project, pk=pk), by=request.user):
        messages.success(request, "The import stops after the batch it is storing. Rows stored so far are kept.")
    else:
        messages.error(request, "This import has already ended.")
    return redirect("trajectories:import_detail", project.slug, pk)


def _page(request: HttpRequest, project: Project, status: int = 200, **context: Any) -> HttpResponse:
    if shown := context.get("upload"):
        context |= _state(shown)
    recent = project.uploads.select_related("created_by")[:20]
    context |= {"formats": FORMATS, "recent": recent, "limit_mib": MAX_UPLOAD // 2**20}
    return render(request, "trajectories/import.html", context, status=status)


def _state(found: Upload) -> dict[str, Any]:
    summary = found.summary
    return {
        "upload": found,
        "summary": summary,
        "percent": min(100, 100 * found.done / found.total) if found.total else None,
        "more": max(0, summary.get("rejected", 0) - len(summary.get("errors", []))),
        "may_retry": found.state == JobState.FAILED and Path(found.path).is_file(),
    }


def _problem(given: UploadedFile | None, format: str) -> str:
    if given is None:
        return "Choose a file."
    if format not in ("auto", *FORMATS):
        return "Choose one of the formats."
    if not given.size:
        return f"{given.name} is empty."
    if given.size > MAX_UPLOAD:
        return (
            f"{given.name} is larger than {MAX_UPLOAD // 2**20} MiB. Pack it with gzip, split it, or import it on the server: "
            "python manage.py import_trajectories FILE --project SLUG."
        )
    return ""
