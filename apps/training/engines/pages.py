"""Pages for exporting a run to another engine and importing the result."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render

from apps.core.access import project_view
from apps.core.forms import PlainForm
from apps.core.models import Project, Role
from apps.evals.actions import HoldoutLeak
from apps.evals.holdout.view_log import record_refusal
from apps.registry.actions import ModelError
from apps.registry.bases import folders
from apps.registry.models import RayCluster
from apps.registry.trained_elsewhere import allowed_folder
from apps.reviews.actions import TrainingLocked, environment_locks
from apps.training.actions import TrainingError
from apps.training.comparison import runs_of
from apps.training.engines import exporting, returned
from apps.training.engines.folder import ENGINES, Engine
from apps.training.engines.settings import left_behind
from apps.training.models import PROGRAMS, TrainingRun
from apps.training.reward_lock import uses_reward
from workers.lib.specs.methods import CONFIGS
from workers.lib.typed import convert


class MultipleFiles(forms.FileField):
    """Several files in one field; clean() gives their list."""

    class Input(forms.ClearableFileInput):
        allow_multiple_selected = True

    def __init__(self, **options: Any) -> None:
        super().__init__(widget=self.Input(), **options)

    def clean(self, data: Any, initial: Any = None) -> list[Any]:
        given = [one for one in (data if isinstance(data, list | tuple) else [data]) if one]
        return [super(MultipleFiles, self).clean(one, initial) for one in given]


REFUSALS = (TrainingError, TrainingLocked, HoldoutLeak)


@project_view(Role.ENGINEER)
def export(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    """GET: the engines that can train the run. POST: the folder for one of them."""
    run = get_object_or_404(runs_of(project), pk=pk)
    if request.method == "POST":
        try:
            return as_file(
                exporting.export(run=run, engine=request.POST.get("engine", ""), by=request.user)
            )
        except REFUSALS as error:
            record_refusal(project, error, by=request.user)
            messages.error(request, str(error))
            return redirect("training:export", project.slug, pk)
    lock = None
    if uses_reward(run.method, run.spec.get("sources", ())):
        lock = environment_locks([run.environment], by=request.user)[run.environment.pk]
    context = {
        "run": run,
        "engines": offered(run),
        "lock": lock,
        "clusters": RayCluster.objects.filter(project=project),
    }
    return render(request, "training/engines/export.html", context)


def offered(run: TrainingRun) -> list[tuple[Engine, str, list[str]]]:
    """(engine, why it cannot train this run or "", the settings that it does not support) for all
    engines.
    """
    config = convert(run.spec["config"], CONFIGS[run.method], "config")
    return [
        (
            engine,
            exporting.reason_against(run, engine),
            left_behind(engine.slug, PROGRAMS.get(run.method, run.method), config),
        )
        for engine in ENGINES.values()
    ]


def as_file(made: exporting.Export) -> HttpResponse:
    response = HttpResponse(made.content, content_type="application/zip")
    response["Content-Disposition"] = f'attachment; filename="{made.name}"'
    return response


def choices() -> list[tuple[str, Any]]:
    return [(engine.slug, engine.label) for engine in ENGINES.values()]


class ResultForm(PlainForm):
    """An engine's result: its files, or a folder on the server."""

    files = MultipleFiles(required=False, label="Files")
    folder = forms.CharField(
        max_length=500,
        required=False,
        help_text="Instead of uploading: a folder on the server that contains the files",
    )

    def clean(self) -> dict[str, Any]:
        data = super().clean() or self.cleaned_data
        if bool(data.get("files")) == bool(data.get("folder")):
            raise forms.ValidationError("Choose the files, or name a folder.")
        return data


@project_view(Role.ENGINEER)
def import_result(request: HttpRequest, project: Project) -> HttpResponse:
    form = ResultForm(*((request.POST, request.FILES) if request.method == "POST" else ()))
    if request.method == "POST" and form.is_valid():
        try:
            if folder := form.cleaned_data["folder"]:
                given = returned.from_folder(allowed_folder(folder))
            else:
                given = returned.from_files(
                    [(file.name, file) for file in form.cleaned_data["files"]]
                )
            run = returned.import_result(project=project, returned=given, by=request.user)
        except (returned.ResultError, ModelError) as error:
            form.add_error(None, str(error))
        else:
            if run.model_version:
                messages.success(
                    request,
                    f"{run.model_version} is registered. Evaluate it before it is compared.",
                )
            else:
                messages.error(request, run.error)
            return redirect("training:detail", project.slug, run.pk)
    context = {"form": form, "folders": folders(), "names": returned.NAMES}
    return render(request, "training/engines/import.html", context)
