"""Variants written by a model: the form, the progress, and the result."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.urls import reverse
from django.views.decorators.http import require_POST

from apps.core.access import project_view
from apps.core.forms import query_of
from apps.core.http import progress
from apps.core.models import JobState, Project, Role
from apps.core.query import Query
from apps.evals import actions, costs
from apps.evals.forms import ModelVariantsForm
from apps.evals.models import EvalSet, VariantJob
from apps.evals.pages.attempt import attempt
from apps.evals.variants import batches, model_job
from apps.evals.variants.model_job import WriteOrder
from workers.lib.prices import price_from_json

PREFIX = "design"
OF_JOB: Query = {f"{PREFIX}-{name}": kind for name, kind in query_of(ModelVariantsForm).items()}
ASKED: dict[str, Any] = {
    "base_url": "",
    "model": "",
    "key_variable": "",
    "kinds": [],
    "each": 0,
    "tokens": 0,
}


@require_POST
@project_view(Role.ENGINEER)
def start(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    eval_set = get_object_or_404(EvalSet, project=project, pk=pk)
    form = form_for(request, project, request.POST)
    if not form.is_valid():
        for field, errors in form.errors.items():
            messages.error(request, f"{form.fields[field].label}: {' '.join(errors)}")
        return _again(request, eval_set)
    wanted = WriteOrder(**{name: form.cleaned_data[name] for name in ASKED})
    try:
        model_job.submit(eval_set=eval_set, wanted=wanted, by=request.user)
    except actions.EvalSetError as error:
        messages.error(request, str(error))
        return _again(request, eval_set)
    return redirect("evals:variants", project.slug, pk)


def _again(request: HttpRequest, eval_set: EvalSet) -> HttpResponse:
    """The page with the form as it was filled in."""
    given = {
        f"{PREFIX}-{name}": request.POST.getlist(f"{PREFIX}-{name}") for name in ("server", *ASKED)
    }
    address = reverse("evals:variants", args=[eval_set.project.slug, eval_set.pk])
    return redirect(f"{address}?{urlencode(given, doseq=True)}")


@require_POST
@project_view(Role.ENGINEER)
def stop(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    eval_set = get_object_or_404(EvalSet, project=project, pk=pk)
    return attempt(
        request, eval_set, lambda: model_job.stop(eval_set=eval_set, by=request.user), "variants"
    )


@project_view()
def status(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    """The fragment that polls itself; once the job has ended, the page is reloaded."""
    eval_set = get_object_or_404(EvalSet, project=project, pk=pk)
    context = shown(eval_set)
    return progress(
        request,
        "evals/_variant_job.html",
        {"eval_set": eval_set} | context,
        runs=context["job"] is not None and context["job"].is_active,
    )


def form_for(request: HttpRequest, project: Project, data: Any = None) -> ModelVariantsForm:
    """Empty, or filled in from what was posted or from the page's own address."""
    if data is None and f"{PREFIX}-each" in request.GET:
        data = request.GET
    return ModelVariantsForm(
        model_job.judge_server(project), request.membership.may(Role.OPERATOR), data, prefix=PREFIX
    )


def estimate(eval_set: EvalSet, form: ModelVariantsForm) -> dict[str, Any]:
    """The estimated cost of this form's job: {cost, usd}, or {no_cost} with the reason why there is
    none.
    """
    form.is_valid()
    for name in ("kinds", "each"):
        if name in form.errors:
            return {"no_cost": f"{form.fields[name].label}: {' '.join(form.errors[name])}"}
    given = (
        {name: form.fields[name].initial for name in ASKED}
        | (form.judge or {})
        | getattr(form, "cleaned_data", {})
    )
    wanted = WriteOrder(**{name: given[name] or default for name, default in ASKED.items()})
    try:
        cost = model_job.cost_of(batches.usable_seeds(eval_set), wanted)
    except actions.EvalSetError as error:
        return {"no_cost": str(error)}
    price = model_job.price_of(eval_set.project, wanted)
    usd = costs.cost(price, cost.input_tokens, cost.output_tokens)
    return {"cost": cost, "usd": usd}


def _spent(job: VariantJob) -> float | None:
    if not job.used:
        return None
    price = price_from_json(job.spec["price"])
    return costs.cost(price, job.used["input_tokens"], job.used["output_tokens"])


def shown(eval_set: EvalSet) -> dict[str, Any]:
    """The set's last job, as long as it says something about what is on the page."""
    job = model_job.latest(eval_set)
    review = batches.review_of(eval_set)
    if (
        job
        and job.state == JobState.SUCCEEDED
        and (review is None or job.result["batch"] != review.batch)
    ):
        job = None
    if job is None:
        return {"job": None}
    used = job.used
    return {
        "job": job,
        "wanted": job.spec["wanted"],
        "left_out": model_job.left_out(job.result) if job.result else "",
        "tokens": used["input_tokens"] + used["output_tokens"] if used else 0,
        "spent": _spent(job),
    }
