"""The semantic check: start it, follow it, and decide on its pairs."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_POST

from apps.core.access import project_view
from apps.core.http import progress
from apps.core.models import JobLog, Project, Role
from apps.core.paging import page_of
from apps.core.query import PAGE_NUMBER
from apps.core.routes import shows
from apps.evals.actions import EvalSetError
from apps.evals.forms import MeaningForm
from apps.evals.meaning import check, verdicts
from apps.evals.meaning.texts import TRAINS
from apps.evals.meaning.verdicts import Shown, review_of
from apps.evals.models import EvalSet, MeaningPair
from apps.evals.pages.attempt import attempt

PAGE = 20
FILTERS = {"open": "Undecided", "same": "Same task", "different": "Different", "all": "All"}


@shows("held-out requests next to similar ones")
@project_view(Role.ENGINEER, query={"show": list(FILTERS), "page": PAGE_NUMBER})
def page(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    """The pairs, most similar first. They show held-out requests, which is a view."""
    eval_set = get_object_or_404(EvalSet.objects.select_related("project"), project=project, pk=pk)
    return _page(request, eval_set, MeaningForm(project))


def _page(
    request: HttpRequest, eval_set: EvalSet, form: MeaningForm, status: int = 200
) -> HttpResponse:
    review = review_of(eval_set)
    show = request.GET.get("show", "")
    show = show if show in FILTERS else "open"
    rows = page_of(request, [one for one in review.pairs if _is(one, show)] if review else [], PAGE)
    verdicts.record_pairs_view(eval_set.project, rows, by=request.user)
    counts = eval_set.tasks.values_list("split", flat=True)
    context = {
        "eval_set": eval_set,
        "review": review,
        "page": rows,
        "show": show,
        "filters": FILTERS,
        "form": form,
        "held": sum(split == "holdout" for split in counts),
        "others": sum(split in TRAINS for split in counts),
    }
    return render(request, "evals/meaning.html", context | _job(eval_set), status=status)


def _is(pair: Shown, show: str) -> bool:
    return show == "all" or (
        pair.open if show == "open" else bool(pair.verdict) and pair.verdict.verdict == show
    )


def _job(eval_set: EvalSet) -> dict[str, Any]:
    """The newest job, while it says more than the pairs do."""
    job = eval_set.meaning_checks.first()
    if job is None or job.state == "succeeded":
        return {"run": None}
    return {"run": job, "logs": JobLog.objects.filter(job=job.pk).order_by("-pk")[:10]}


@shows(
    "the part of the hold-out that is sent to a server; the pairs of the last check, if the form is"
    " invalid"
)
@require_POST
@project_view(Role.ENGINEER)
def start(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    eval_set = get_object_or_404(EvalSet.objects.select_related("project"), project=project, pk=pk)
    form = MeaningForm(project, request.POST)
    if form.is_valid():
        try:
            check.submit(
                eval_set=eval_set,
                source=form.source(),
                by=request.user,
                most=form.cleaned_data["most"],
            )
            return redirect("evals:meaning", project.slug, pk)
        except EvalSetError as error:
            form.add_error(None, str(error))
    return _page(request, eval_set, form)


@project_view(Role.ENGINEER)
def status(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    """The fragment that polls itself; once the job has ended, the whole page is reloaded."""
    eval_set = get_object_or_404(EvalSet, project=project, pk=pk)
    context = _job(eval_set)
    return progress(
        request,
        "evals/_meaning_job.html",
        {"eval_set": eval_set} | context,
        runs=context["run"] is not None and context["run"].is_active,
    )


@require_POST
@project_view(Role.ENGINEER)
def stop(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    eval_set = get_object_or_404(EvalSet, project=project, pk=pk)
    return attempt(
        request, eval_set, lambda: check.stop(eval_set=eval_set, by=request.user), "meaning"
    )


@shows("held-out requests next to similar ones")
@require_POST
@project_view(Role.ENGINEER)
def decide(request: HttpRequest, project: Project, pk: int) -> HttpResponse:
    pair = _find(project, pk)
    return _decided(
        request,
        pair,
        lambda: verdicts.decide(
            pair=pair, verdict=request.POST.get("verdict", ""), by=request.user
        ),
    )


@shows("held-out requests next to similar ones")
@require_POST
@project_view(Role.ENGINEER)
def undo(request: HttpRequest, project: Project, pk: int) -> HttpResponse:
    pair = _find(project, pk)
    return _decided(request, pair, lambda: verdicts.undo(pair=pair, by=request.user))


def _find(project: Project, pk: int) -> MeaningPair:
    rows = MeaningPair.objects.select_related("job__eval_set__project")
    return get_object_or_404(rows, job__project=project, pk=pk)


def _decided(request: HttpRequest, pair: MeaningPair, act: Any) -> HttpResponse:
    """For htmx the pair's new state, with any error; for a plain form the page again."""
    eval_set, problem = pair.job.eval_set, ""
    try:
        act()
    except EvalSetError as error:
        problem = str(error)
    if request.headers.get("HX-Request") != "true":
        if problem:
            messages.error(request, problem)
        return redirect("evals:meaning", eval_set.project.slug, eval_set.pk)
    fresh = MeaningPair.objects.select_related("held", "other", "job").get(pk=pair.pk)
    [one] = verdicts.shown([fresh], eval_set.project)
    verdicts.record_pairs_view(eval_set.project, [one], by=request.user)
    review = review_of(eval_set)
    context = {
        "pair": one,
        "eval_set": eval_set,
        "at": True,
        "problem": problem,
        "review": review,
        "swapped": True,
    }
    return render(request, "evals/_meaning_pair.html", context)
