"""The editor of prompt versions: prefilled with what is changed, the difference as one types, saved
as a new version.
"""

from __future__ import annotations

import json
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_POST

from apps.core.access import project_view
from apps.core.diffing import changed_parts
from apps.core.forms import whole
from apps.core.models import Project, Role
from apps.core.query import KEY, Query
from apps.environments.models import Environment
from apps.prompts.forms import PromptForm, initial_of
from apps.prompts.pages.playground import form_page
from apps.registry.actions import ModelError, register_prompt
from apps.registry.models import ModelVersion
from workers.lib.prompts import as_parts, from_harness
from workers.lib.typed import FormError

OF_EDITOR: Query = {"on": KEY, "environment": KEY}


@project_view(Role.ENGINEER, query=OF_EDITOR)
def new(request: HttpRequest, project: Project) -> HttpResponse:
    """`?on=`: the model of the prompt, `?environment=`: the environment whose prompt it starts
    from, if `on` is not a prompt version.
    """
    on = _chosen(project, request.GET.get("on"))
    if on is None:
        versions = project.model_versions.current().run_here()
        return render(request, "prompts/choose.html", {"versions": versions[:200]})
    start = _start(project, on, request.GET.get("environment"))
    form = PromptForm(request.POST or None, initial=_initial(on, start))
    if request.method == "POST" and form.is_valid() and (saved := _save(request, on, start, form)):
        return saved
    return render(request, "prompts/editor.html", _context(project, on, start, form))


def _chosen(project: Project, given: str | None) -> ModelVersion | None:
    if not given:
        return None
    return get_object_or_404(
        project.model_versions.run_here().select_related("parent"), pk=whole(given)
    )


def _start(project: Project, on: ModelVersion, given: str | None) -> Environment | None:
    """The environment whose prompt is changed: the given one, or else the newest; none if `on` has
    a prompt.
    """
    if on.prompt:
        return None
    rows = Environment.objects.filter(project=project)
    return get_object_or_404(rows, pk=whole(given)) if given else rows.order_by("-pk").first()


def _before(on: ModelVersion, start: Environment | None) -> dict[str, Any]:
    return on.prompt or (from_harness(start.harness) if start else {})


def _initial(on: ModelVersion, start: Environment | None) -> dict[str, Any]:
    name = on.name if on.prompt else f"{on.name[:73]}-prompt"
    return initial_of(_before(on, start)) | {"name": name}


def _context(
    project: Project, on: ModelVersion, start: Environment | None, form: PromptForm
) -> dict[str, Any]:
    environments = Environment.objects.current().filter(project=project).order_by("-pk")[:100]
    return {
        "on": on,
        "start": start,
        "form": form,
        "environments": [] if on.prompt else environments,
    }


def _save(
    request: HttpRequest, on: ModelVersion, start: Environment | None, form: PromptForm
) -> HttpResponse | None:
    """Where it leads; None if the model cannot have a prompt, which is then an error of the
    form.
    """
    given = form.cleaned_data
    started_from = {"name": str(start), "prompt": from_harness(start.harness)} if start else None
    try:
        version = register_prompt(
            project=on.project,
            name=given["name"],
            on=on,
            prompt=given["prompt"],
            notes=given["notes"],
            started_from=started_from,
            by=request.user,
        )
    except (ModelError, FormError) as error:
        form.add_error(None, str(error))
        return None
    if version.is_new:
        messages.success(
            request, f"Saved as {version}. Evaluate it, then compare it with what runs now."
        )
    else:
        messages.info(request, f"This prompt is known already: it is {version}.")
    return redirect(version)


@require_POST
@project_view(Role.ENGINEER, query=OF_EDITOR)
def preview(request: HttpRequest, project: Project) -> HttpResponse:
    """The difference between the input and what it started from, or its errors."""
    on = _chosen(project, request.GET.get("on"))
    if on is None:
        return redirect("prompts:new", project.slug)
    start = _start(project, on, request.GET.get("environment"))
    form = PromptForm(request.POST)
    problems = (
        []
        if form.is_valid()
        else [
            (
                (
                    form.fields[name].label or name.replace("_", " ").capitalize()
                    if name in form.fields
                    else ""
                ),
                errors,
            )
            for name, errors in form.errors.items()
        ]
    )
    lines = (
        []
        if problems
        else list(
            changed_parts(as_parts(_before(on, start)), as_parts(form.cleaned_data["prompt"]))
        )
    )
    return render(request, "prompts/_preview.html", {"problems": problems, "lines": lines})


@require_POST
@project_view(Role.ENGINEER, query=OF_EDITOR)
def try_it(request: HttpRequest, project: Project) -> HttpResponse:
    """The playground with the unsaved input next to what it started from; the editor again if it is
    not valid.
    """
    on = _chosen(project, request.GET.get("on"))
    if on is None:
        return redirect("prompts:new", project.slug)
    start = _start(project, on, request.GET.get("environment"))
    form = PromptForm(request.POST)
    if not form.is_valid():
        return render(request, "prompts/editor.html", _context(project, on, start, form))
    rest = {
        name: value
        for name, value in form.cleaned_data["prompt"].items()
        if name != "system_prompt"
    }
    initial = {
        "version_0": on.pk,
        "version_1": on.pk,
        "system_prompt_1": form.cleaned_data["prompt"].get("system_prompt", ""),
        "changes_1": json.dumps(rest, ensure_ascii=False),
    } | ({"environment": start.pk} if start else {})
    return form_page(request, project, None, initial=initial)
