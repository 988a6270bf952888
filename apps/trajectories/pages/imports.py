"""The upload page: a file is looked at, shown, and imported by a worker while the page shows its
progress.

Between preview and start there is no row: the file waits in the data folder under a random name
that a signed token carries.
"""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.core import signing
from django.core.files.uploadedfile import UploadedFile
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_POST

from apps.core.access import project_view
from apps.core.models import JobState, Project, Role
from apps.trajectories import uploads
from apps.trajectories.actions.mappings import delete_mapping, find_mapping, save_mapping
from apps.trajectories.importers import FORMATS, MAPPED, ImportError_
from apps.trajectories.importers.formats import TABLE
from apps.trajectories.importers.mapping import Mapping, MappingError, as_json, load
from apps.trajectories.models import ImportMapping, Upload
from apps.trajectories.pages import mapping_forms

MAX_UPLOAD = 64 * 1024 * 1024
SALT = "trajectories.import"
SAVED = "mapping:"  # before the name of a saved mapping, among the formats
TOKEN_S = 24 * 3600
GONE = "The file is no longer available. Upload it again."
BY_NAME = sorted(TABLE, key=lambda one: one.name)


@project_view(Role.ENGINEER)
def upload(request: HttpRequest, project: Project) -> HttpResponse:
    """The form; after a POST the preview of the file."""
    if request.method != "POST":
        return _page(request, project)
    given, chosen = request.FILES.get("file"), request.POST.get("format", "auto")
    try:
        format, mapping = _chosen(project, chosen)
    except MappingError as error:
        return _page(request, project, problem=str(error), status=400)
    if problem := _problem(given, format):
        return _page(request, project, problem=problem, status=400)
    file, name = uploads.keep(given.chunks()), given.name[-200:]
    try:
        seen = _seen(request, project, file, name, format, mapping)
        if format == "auto" and seen.get("suggested"):
            seen = _seen(request, project, file, name, MAPPED, load(seen["suggested"])) | {
                "guessed": True,
                "as_chat": True,
            }
        elif seen.get("guessed") and seen["saved"]:
            seen = _seen(request, project, file, name, MAPPED, load(seen["saved"][0].mapping))
    except ImportError_ as error:
        uploads.forget(file)
        return _page(request, project, problem=str(error), status=400)
    return _page(request, project, preview=seen, name=name, size=given.size)


def _chosen(project: Project, chosen: str) -> tuple[str, Mapping | None]:
    """The format of the form, and the mapping where it is a saved one. Raises MappingError."""
    if chosen.startswith(SAVED):
        return MAPPED, find_mapping(project, chosen.removeprefix(SAVED))
    return chosen, None


def _seen(
    request: HttpRequest,
    project: Project,
    file: str,
    name: str,
    format: str,
    mapping: Mapping | None,
    encoding: str = "",
) -> dict[str, Any]:
    """The preview, with the token that stands for the file: also for its encoding as it was
    previewed. Raises ImportError_.
    """
    path = uploads.path_of(file)
    seen = uploads.preview(path, name, format, mapping, encoding)
    token = {"file": file, "name": name, "format": seen["format"], "total": seen["total"]}
    token["encoding"] = seen["encoding"] if seen["encodings"] else ""
    seen["token"] = signing.dumps(
        token | {"project": project.pk, "by": request.user.pk}, salt=SALT, compress=True
    )
    if "mapping" in seen:
        edited = request.POST.get("how") != "fields" and not request.POST.get(
            "use"
        )  # else another layout begins, with fields of its own
        top, adding = (
            (request.POST.getlist("top"), mapping_forms.new_path(request.POST))
            if edited
            else ((), ("", ""))
        )
        seen["inputs"] = mapping_forms.inputs(seen, top, adding)
        seen["open"], seen["save_as"] = (
            request.POST.getlist("open"),
            request.POST.get("save_as", "")[:80],
        )
        seen["saved"] = uploads.saved_mappings(project, path, name, token["encoding"])
        used = next(
            (
                one.name
                for one in seen["saved"]
                if not seen["guessed"] and load(one.mapping) == mapping
            ),
            "",
        )
        seen["used"] = used
        seen["unmapped_roles"] = [
            item["value"] for item in seen["values"]["roles"] if not item["means"]
        ]
    return seen


@require_POST
@project_view(Role.ENGINEER)
def preview(request: HttpRequest, project: Project) -> HttpResponse:
    """The preview again, by the mapping in the form: what htmx asks for while it is edited.
    `how=fields` begins a mapping, `use` takes a saved one."""
    if (token := _uploaded_file(request, project)) is None:
        return _gone(request, project)
    format, mapping, encoding = MAPPED, None, token["encoding"]
    saved = ""
    if "encoding" in request.POST:  # other texts, perhaps with other columns: all is guessed again
        format, encoding = "auto", request.POST["encoding"]
    elif saved := request.POST.get("use", ""):
        try:
            mapping = find_mapping(project, saved)
        except MappingError as error:
            return _page(request, project, problem=str(error), status=400)
    elif request.POST.get("how") != "fields":
        mapping = mapping_forms.read(request.POST)
    elif layout := request.POST.get("as", ""):
        path = uploads.path_of(token["file"])
        mapping = uploads.guess_layout(path, token["name"], layout, encoding)
    try:
        seen = _seen(request, project, token["file"], token["name"], format, mapping, encoding)
    except ImportError_ as error:
        return _page(request, project, problem=str(error), status=400)
    if "mapping" in seen:
        seen["guessed"] |= not saved and request.POST.get("guessed") == "1"
    context = {
        "preview": seen,
        "name": token["name"],
        "size": uploads.size_of(token["file"]),
        "layouts": mapping_forms.LAYOUTS,
        "roles": mapping_forms.ROLES,
        "outcomes": ("success", "failure", "unknown"),
    }
    if request.headers.get("HX-Request"):
        return render(request, "trajectories/_import_preview.html", context)
    return _page(request, project, **context)


@require_POST
@project_view(Role.ENGINEER)
def start(request: HttpRequest, project: Project) -> HttpResponse:
    if (token := _uploaded_file(request, project)) is None:
        return _gone(request, project)
    if Upload.objects.filter(project=project, file=token["file"]).exists():
        messages.error(request, "This file was already imported; see the list below.")
        return redirect("trajectories:import", project.slug)
    if token["format"] == MAPPED:
        try:
            mapping = load(as_json(mapping_forms.read(request.POST)))
            if name := request.POST.get("save_as", "").strip():
                save_mapping(project=project, name=name, mapping=mapping, by=request.user)
        except MappingError as error:
            messages.error(request, str(error))
            return preview(request, slug=project.slug)
        token["mapping"] = as_json(mapping)
    made = uploads.submit(project=project, by=request.user, file=token["file"], token=token)
    return redirect("trajectories:import_detail", project.slug, made.pk)


def _uploaded_file(request: HttpRequest, project: Project) -> dict[str, Any] | None:
    """What is known of the file that was uploaded before; None if it is gone, or somebody
    else's.
    """
    try:
        token = signing.loads(request.POST.get("token", ""), salt=SALT, max_age=TOKEN_S)
    except signing.BadSignature:
        return None
    own = (token.get("project"), token.get("by")) == (project.pk, request.user.pk)
    return token if own and uploads.is_kept(token["file"]) else None


def _gone(request: HttpRequest, project: Project) -> HttpResponse:
    messages.error(request, GONE)
    response = redirect("trajectories:import", project.slug)
    if request.headers.get("HX-Request"):
        response = HttpResponse(headers={"HX-Redirect": response.url})
    return response


@require_POST
@project_view(Role.ENGINEER)
def forget_mapping(request: HttpRequest, project: Project, pk: int) -> HttpResponse:
    saved = get_object_or_404(ImportMapping, project=project, pk=pk)
    delete_mapping(saved=saved, by=request.user)
    messages.success(request, f"The mapping “{saved.name}” is deleted.")
    return redirect("trajectories:import", project.slug)


@project_view(Role.ENGINEER)
def detail(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    return _page(request, project, upload=get_object_or_404(Upload, project=project, pk=pk))


@project_view(Role.ENGINEER)
def status(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    found = get_object_or_404(Upload, project=project, pk=pk)
    return render(request, "trajectories/_import_status.html", _state(found))


def _page(
    request: HttpRequest, project: Project, status: int = 200, **context: Any
) -> HttpResponse:
    if shown := context.get("upload"):
        context |= _state(shown)
    recent = project.uploads.select_related("created_by")[:20]
    context |= {"formats": BY_NAME, "recent": recent, "limit_mib": MAX_UPLOAD // 2**20}
    context |= {
        "layouts": mapping_forms.LAYOUTS,
        "roles": mapping_forms.ROLES,
        "outcomes": ("success", "failure", "unknown"),
    }
    context["mappings"] = project.import_mappings.select_related("by")
    return render(request, "trajectories/import.html", context, status=status)


def _state(found: Upload) -> dict[str, Any]:
    summary = found.summary
    return {
        "upload": found,
        "summary": summary,
        "percent": min(100, 100 * found.done / found.total) if found.total else None,
        "more": max(0, summary.get("rejected", 0) - len(summary.get("errors", []))),
        "more_warned": max(0, summary.get("warned", 0) - len(summary.get("warnings", []))),
        "may_retry": found.state == JobState.FAILED and uploads.is_kept(found.file),
    }


def _problem(given: UploadedFile | None, format: str) -> str:
    if given is None:
        return "Choose a file."
    if format not in ("auto", MAPPED, *FORMATS):
        return "Choose one of the formats."
    if not given.size:
        return f"{given.name} is empty."
    if given.size > MAX_UPLOAD:
        return (
            f"{given.name} is larger than {MAX_UPLOAD // 2**20} MiB. Pack it with gzip, split it,"
            " or import it on the server: python manage.py import_trajectories FILE --project"
            " SLUG."
        )
    return ""
