"""An environment made for a frozen set: the same form as elsewhere, with the set's facts."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render

from apps.core.access import project_view
from apps.core.models import Project, Role
from apps.environments.forms import EnvironmentForm, builtins
from apps.environments.views import made_by
from apps.evals.models import EvalSet


@project_view(Role.ENGINEER)
def for_set(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    eval_set = get_object_or_404(EvalSet, project=project, pk=pk)
    if not eval_set.is_frozen:
        messages.error(request, "Freeze the set first: an environment needs tasks that cannot change.")
        return redirect("evals:detail", project.slug, eval_set.pk)
    form = EnvironmentForm(project, request.POST or None, initial={"slug": eval_set.slug})
    dataset = eval_set.as_dataset
    made = made_by(form, by=request.user, dataset=dataset) if request.method == "POST" and form.is_valid() else None
    if made is not None:
        return redirect("environments:detail", project.slug, made.pk)
    context = {"form": form, "builtins": builtins(), "eval_set": eval_set, "dataset": dataset}
    return render(request, "environments/new.html", context)
