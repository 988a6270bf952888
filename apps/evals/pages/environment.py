"""An environment made for a frozen set: the same form as elsewhere, with the set's facts."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_POST

from apps.core.access import project_view
from apps.core.models import Project, Role
from apps.core.routes import SIDES, shows
from apps.environments.forms import EnvironmentForm, builtins
from apps.environments.views import made_by
from apps.evals.actions import EvalSetError
from apps.evals.from_package import set_of_package
from apps.evals.from_production import usual_system_prompt
from apps.evals.holdout.view_log import record_refusal
from apps.evals.models import EvalSet
from apps.evals.pages.failures import report_result


@project_view(Role.ENGINEER)
def for_set(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    eval_set = get_object_or_404(EvalSet, project=project, pk=pk)
    if not eval_set.is_frozen:
        messages.error(request, "Freeze the set first: an environment needs immutable tasks.")
        return redirect("evals:detail", project.slug, eval_set.pk)
    prompt = usual_system_prompt(eval_set)
    initial = {"slug": eval_set.slug, "system_prompt": prompt.text if prompt else ""}
    form = EnvironmentForm(project, request.POST or None, initial=initial)
    if prompt:
        form.fields["system_prompt"].help_text = (
            f"From production: {prompt.count:,} of {prompt.runs:,} runs that this set’s tasks were"
            " made from (without the hold-out) have this one"
        )
    dataset = eval_set.as_dataset
    made = (
        made_by(form, by=request.user, dataset=dataset)
        if request.method == "POST" and form.is_valid()
        else None
    )
    if made is not None:
        messages.success(request, f"{made} is created.")
        evaluate = reverse("evals:new_run", args=[project.slug, eval_set.pk])
        return redirect(f"{evaluate}?environment={made.pk}")
    context = {"form": form, "builtins": builtins(), "eval_set": eval_set, "dataset": dataset}
    return render(request, "environments/new.html", context)


@shows(SIDES)
@require_POST
@project_view(Role.ENGINEER)
def package_tasks(request: HttpRequest, project: Project, pk: int) -> HttpResponse:
    """An eval set with the tasks of the environment's package."""
    environment = get_object_or_404(
        project.environments.select_related("package", "project"), pk=pk
    )
    try:
        eval_set, made = set_of_package(environment=environment, by=request.user)
    except EvalSetError as error:
        record_refusal(project, error, by=request.user)
        messages.error(request, str(error))
        return redirect("environments:detail", project.slug, pk)
    report_result(request, made)
    return redirect("evals:detail", project.slug, eval_set.pk)
