"""Import and export of tasks.

Between preview and start there is no row: the file waits in the data folder under a random name in
a signed token.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.contrib import messages
from django.core import signing
from django.http import (
    FileResponse,
    HttpRequest,
    HttpResponse,
    HttpResponseBase,
    StreamingHttpResponse,
)
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_POST

from apps.core import jobs
from apps.core.access import project_view
from apps.core.models import Project, Role
from apps.core.routes import HOW_MANY, SIDES, UNCOUNTED, shows
from apps.evals import actions, exporting, importing
from apps.evals.forms import ImportChoiceForm, ImportForm
from apps.evals.holdout.view_log import record_refusal, view_count
from apps.evals.importing import Choice, ImportProblem, Preview
from apps.evals.models import EvalSet, Split, TaskImport

SALT = "evals.import"
TOKEN_S = 24 * 3600


@shows(HOW_MANY, UNCOUNTED)
@project_view(Role.ENGINEER)
def import_file(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    """The form; after a POST the preview of the file. Nothing is stored yet."""
    eval_set = get_object_or_404(EvalSet, project=project, pk=pk)
    if eval_set.is_frozen:
        messages.error(request, actions.FROZEN.format(eval_set))
        return redirect("evals:detail", project.slug, pk)
    form = ImportForm(request.POST or None, request.FILES or None)
    if request.method != "POST" or not form.is_valid():
        return _page(request, eval_set, form=form, status=400 if form.errors else 200)
    given, answers = form.cleaned_data["file"], form.cleaned_data["answers"]
    identity = importing.keep(given.chunks(), answers.chunks() if answers else None)
    name = given.name[-200:]
    try:
        path, truths = importing.paths_of(identity)
        seen = importing.preview(path, name, form.cleaned_data["format"], truths)
    except ImportProblem as problem:
        importing.forget(identity)
        form.add_error("file", str(problem))
        return _page(request, eval_set, form=form, status=400)
    return _preview(request, eval_set, identity, name, seen, path)


def _preview(
    request: HttpRequest, eval_set: EvalSet, identity: str, name: str, seen: Preview, path: Path
) -> HttpResponse:
    columns = sorted(column for column in seen.columns if column != exporting.FLYWHEEL)[:40]
    token = {
        "id": identity,
        "name": name,
        "format": seen.format,
        "rows": seen.good + seen.bad,
        "columns": columns,
        "set": str(eval_set.pk),
        "by": request.user.pk,
    }
    splits = [
        (dict(Split.choices).get(split, "none named"), count)
        for split, count in sorted(seen.splits.items())
    ]
    return _page(
        request,
        eval_set,
        preview=seen,
        name=name,
        size=path.stat().st_size,
        splits=splits,
        choice=ImportChoiceForm(columns),
        token=signing.dumps(token, salt=SALT, compress=True),
    )


@shows(SIDES)
@require_POST
@project_view(Role.ENGINEER)
def import_start(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    """Stores the tasks immediately, or leaves many to a worker."""
    eval_set = get_object_or_404(EvalSet, project=project, pk=pk)
    token = _token(request, eval_set)
    form = ImportChoiceForm(token.get("columns", []), request.POST)
    try:
        path, answers = importing.paths_of(token["id"]) if token else (None, None)
        if (
            path is None
            or not form.is_valid()
            or TaskImport.objects.filter(pk=token["id"]).exists()
        ):
            raise ImportProblem(
                "That file is no longer available or was already imported. Upload it again."
            )
        choice = importing.chosen(Choice(token["format"], **form.cleaned_data), token["columns"])
        if token["rows"] > importing.AT_ONCE:
            importing.submit(
                identity=token["id"],
                eval_set=eval_set,
                name=token["name"],
                choice=choice,
                by=request.user,
                rows=token["rows"],
            )
            return redirect("evals:import_status", project.slug, pk, token["id"])
        done = importing.import_file(
            eval_set=eval_set,
            path=path,
            name=token["name"],
            choice=choice,
            by=request.user,
            answers=answers,
        )
    except (ImportProblem, actions.EvalSetError) as problem:
        record_refusal(project, problem, by=request.user)
        messages.error(request, str(problem))
        return redirect("evals:import", project.slug, pk)
    importing.forget(token["id"])
    return _page(request, eval_set, done=done, name=token["name"])


def _token(request: HttpRequest, eval_set: EvalSet) -> dict[str, Any]:
    """The preview's data; empty if it is not this set's and this person's."""
    try:
        token = signing.loads(request.POST.get("token", ""), salt=SALT, max_age=TOKEN_S)
    except signing.BadSignature:
        return {}
    return token if (token["set"], token["by"]) == (str(eval_set.pk), request.user.pk) else {}


@shows(HOW_MANY, UNCOUNTED)
@project_view(Role.ENGINEER)
def import_status(request: HttpRequest, project: Project, pk: str, identity: str) -> HttpResponse:
    """The import by a worker, or the fragment of it that the page polls."""
    eval_set = get_object_or_404(EvalSet, project=project, pk=pk)
    job = get_object_or_404(TaskImport, eval_set=eval_set, pk=identity)
    context = {"eval_set": eval_set, "job": job, "name": job.name, "done": job.result}
    return render(
        request, "evals/_import_status.html" if request.htmx else "evals/import.html", context
    )


@require_POST
@project_view(Role.ENGINEER)
def import_cancel(request: HttpRequest, project: Project, pk: str, identity: str) -> HttpResponse:
    job = get_object_or_404(TaskImport, eval_set__project=project, eval_set=pk, pk=identity)
    if jobs.cancel(job, by=request.user):
        messages.success(
            request, "Cancelled. Nothing is stored unless the tasks were already being written."
        )
    else:
        messages.error(request, "This import has already finished.")
    return redirect("evals:import_status", project.slug, pk, identity)


def _page(
    request: HttpRequest, eval_set: EvalSet, status: int = 200, **context: Any
) -> HttpResponse:
    return render(request, "evals/import.html", {"eval_set": eval_set} | context, status=status)


# To files


@shows(SIDES)
@project_view(query={"split": Split.values, "format": list(exporting.FORMATS)})
def export(request: HttpRequest, project: Project, pk: str) -> HttpResponseBase:
    """A file of one split; without one, the page to choose it. The hold-out's requires a POST."""
    eval_set = get_object_or_404(EvalSet, project=project, pk=pk)
    split, format = request.GET.get("split", ""), request.GET.get("format", "flywheel")
    if split in Split.values and split != Split.HOLDOUT:
        return _file(request, eval_set, Split(split), format)
    counts = {split: exporting.tasks_of(eval_set, split).count() for split in Split}
    context = {
        "eval_set": eval_set,
        "formats": exporting.FORMATS.items(),
        "looks": view_count(eval_set),
        "rows": [
            (split, counts[split]) for split in Split if split != Split.HOLDOUT and counts[split]
        ],
        "held": counts[Split.HOLDOUT],
    }
    return render(request, "evals/export.html", context)


@shows("the held-out tasks, as a file")
@require_POST
@project_view(Role.ENGINEER)
def export_holdout(request: HttpRequest, project: Project, pk: str) -> HttpResponseBase:
    """The hold-out's file, after confirming that this is a view."""
    eval_set = get_object_or_404(EvalSet, project=project, pk=pk)
    if "confirmed" not in request.POST:
        messages.error(request, "Confirm that this counts as a view to export the hold-out.")
        return redirect("evals:export", project.slug, pk)
    return _file(request, eval_set, Split.HOLDOUT, request.POST.get("format", "flywheel"))


def _file(request: HttpRequest, eval_set: EvalSet, split: Split, format: str) -> HttpResponseBase:
    try:
        made = exporting.export(eval_set=eval_set, format=format, split=split, by=request.user)
    except actions.EvalSetError as error:
        record_refusal(eval_set.project, error, by=request.user)
        messages.error(request, str(error))
        return redirect("evals:export", eval_set.project.slug, eval_set.pk)
    if made.kind == "application/zip":
        return FileResponse(
            made.chunks, as_attachment=True, filename=made.name, content_type=made.kind
        )
    headers = {"Content-Disposition": f'attachment; filename="{made.name}"'}
    return StreamingHttpResponse(made.chunks, content_type=made.kind, headers=headers)
