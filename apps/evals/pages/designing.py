"""Variants that a model writes: the form, how far it is, and how it ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_POST

from apps.core.access import project_view
from apps.core.models import Project, Role
from apps.evals import actions, designer, variants
from apps.evals.designer import Wanted
from apps.evals.forms import DesignForm
from apps.evals.models import EvalSet


@require_POST
@project_view(Role.MEMBER)
def start(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    eval_set = get_object_or_404(EvalSet, project=project, pk=pk)
    form = form_for(request, project, request.POST)
    if not form.is_valid():
        for field, errors in form.errors.items():
            messages.error(request, f"{form.fields[field].label}: {' '.join(errors)}")
        return redirect("evals:variants", project.slug, pk)
    given = {name: form.cleaned_data[name] for name in ("base_url", "model", "key_variable", "kinds", "each")}
    return _try(request, eval_set, lambda: designer.submit(eval_set=eval_set, wanted=Wanted(**given), by=request.user))


@require_POST
@project_view(Role.MEMBER)
def stop(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    eval_set = get_object_or_404(EvalSet, project=project, pk=pk)
    return _try(request, eval_set, lambda: designer.stop(eval_set=eval_set, by=request.user))


@project_view()
def status(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    """The fragment that asks for itself; once the job has ended, the page comes anew."""
    eval_set = get_object_or_404(EvalSet, project=project, pk=pk)
    job = designer.state_of(eval_set.pk)
    if designer.is_active(job):
        designer.settle(job)
    response = render(request, "evals/_design.html", {"eval_set": eval_set} | shown(eval_set))
    if not designer.is_active(designer.state_of(eval_set.pk)):
        response["HX-Refresh"] = "true"
    return response


def form_for(request: HttpRequest, project: Project, data: Any = None) -> DesignForm:
    return DesignForm(designer.judge_server(project), request.membership.may(Role.ADMIN), data, prefix="design")


def shown(eval_set: EvalSet) -> dict[str, Any]:
    """The set's last job, as long as it says something about what is on the page."""
    job = designer.state_of(eval_set.pk)
    review = variants.review_of(eval_set)
    if job and job["state"] == "succeeded" and (review is None or job["result"]["batch"] != review.batch):
        job = None
    percent = 100 * job["done"] / max(1, job["total"]) if job else 0
    left = designer.left_out(job["result"]) if job and "result" in job else ""
    return {"design": job, "designing": designer.is_active(job), "percent": percent, "left_out": left}


def _try(request: HttpRequest, eval_set: EvalSet, act: Callable[[], object]) -> HttpResponse:
    try:
        act()
    except actions.EvalSetError as error:
        messages.error(request, str(error))
    return redirect("evals:variants", eval_set.project.slug, eval_set.pk)
