"""Differences between two versions of a set; its built-in general tasks; its synthetic variants."""

from __future__ import annotations

from collections import Counter

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_POST

from apps.core.access import project_view
from apps.core.models import Project, Role
from apps.core.paging import page_of
from apps.core.query import KEY, PAGE_NUMBER
from apps.core.routes import HOW_MANY, SIDES, UNCOUNTED, shows
from apps.evals.capability.add import add_general
from apps.evals.diffing import diff
from apps.evals.forms import VariantsForm
from apps.evals.holdout.view_log import record_seen
from apps.evals.models import EvalSet, Split, Task
from apps.evals.pages.attempt import attempt
from apps.evals.pages.failures import report_result
from apps.evals.pages.variant_job import OF_JOB, estimate, form_for, shown
from apps.evals.variants import batches, model_job


@shows(HOW_MANY, UNCOUNTED)
@project_view(query={"against": KEY, "page": PAGE_NUMBER})
def versions(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    return _diff(request, project, pk, looked=False)


@shows("the held-out tasks that differ")
@require_POST
@project_view(Role.ENGINEER, query={"against": KEY, "page": PAGE_NUMBER})
def with_holdout(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    """The same with the hold-out's tasks, which is a view."""
    return _diff(request, project, pk, looked=True)


def _diff(request: HttpRequest, project: Project, pk: str, looked: bool) -> HttpResponse:
    eval_set = get_object_or_404(EvalSet, project=project, pk=pk)
    others = list(
        EvalSet.objects.filter(project=project, slug=eval_set.slug)
        .exclude(pk=pk)
        .order_by("-version")
    )
    against = request.GET.get("against", "")
    other = next((one for one in others if str(one.version) == against), None)
    if against and other is None:
        raise Http404
    other = other or next(
        (one for one in others if one.version < eval_set.version), others[0] if others else None
    )
    older, newer = (
        sorted((eval_set, other), key=lambda one: one.version) if other else (None, eval_set)
    )
    changes = diff(older.tasks.all(), newer.tasks.all()) if older else []
    kinds = Counter(change.kind for change in changes)
    page = page_of(request, changes, 50)
    if looked:
        seen = [task.pk for change in page for task in (change.before, change.after) if task]
        tasks = Task.objects.filter(pk__in=seen)
        record_seen(
            project, tasks, by=request.user, detail="differences of versions", each_time=True
        )
    context = {
        "eval_set": eval_set,
        "other": other,
        "others": others,
        "older": older,
        "newer": newer,
        "kinds": kinds,
        "page": page,
        "looked": looked,
        "held": sum(change.is_held_out for change in changes),
    }
    return render(request, "evals/versions.html", context)


@shows(SIDES)
@require_POST
@project_view(Role.ENGINEER)
def general(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    eval_set = get_object_or_404(EvalSet, project=project, pk=pk)
    return attempt(
        request,
        eval_set,
        lambda: report_result(request, add_general(eval_set=eval_set, by=request.user)),
    )


@require_POST
@project_view(Role.REVIEWER)
def confirm_task(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    task = get_object_or_404(
        Task.objects.exclude(split=Split.HOLDOUT).select_related("eval_set"), project=project, pk=pk
    )
    return attempt(request, task.eval_set, lambda: batches.confirm(task=task, by=request.user))


@shows(HOW_MANY, UNCOUNTED)
@project_view(query=OF_JOB)
def variants_page(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    """Makes a batch, or reviews the waiting one."""
    eval_set = get_object_or_404(EvalSet, project=project, pk=pk)
    waiting = batches.waiting_in(eval_set).select_related("variant_of")
    drawn = sorted(
        batches.sample(waiting), key=lambda task: bool(task.metadata["variant"]["verdict"])
    )  # next on top
    model_form = form_for(request, project)
    context = {
        "eval_set": eval_set,
        "review": batches.review_of(eval_set),
        "sample": drawn,
        "following": next(
            (task.pk for task in drawn if not task.metadata["variant"]["verdict"]), None
        ),
        "form": VariantsForm(),
        "seeds": batches.seeds_of(eval_set).count(),
        "share": batches.ACCEPTED_SHARE,
        "used": eval_set.tasks.filter(origin="synthetic").count() - waiting.count(),
        "model_form": model_form,
        "installed": model_job.is_installed(),
    }
    return render(
        request, "evals/variants.html", context | shown(eval_set) | estimate(eval_set, model_form)
    )


@shows(SIDES)
@require_POST
@project_view(Role.ENGINEER)
def make_variants(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    eval_set = get_object_or_404(EvalSet, project=project, pk=pk)
    form = VariantsForm(request.POST)
    if not form.is_valid():
        messages.error(request, "Choose at least one kind, and a number from 1 to 20.")
        return redirect("evals:variants", project.slug, pk)

    def make() -> None:
        made = batches.make_batch(eval_set=eval_set, by=request.user, **form.cleaned_data)
        messages.success(
            request,
            f"{made.made:,} variants are ready for review. Left out: {made.faulty:,} invalid, "
            f"{made.alike:,} near-duplicates, {made.guarded:,} too similar to a hold-out.",
        )

    return attempt(request, eval_set, make, "variants")


@require_POST
@project_view(Role.REVIEWER)
def judge_variant(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    task = get_object_or_404(Task.objects.select_related("eval_set"), project=project, pk=pk)
    verdict = request.POST.get("verdict", "")
    return attempt(
        request,
        task.eval_set,
        lambda: batches.judge(task=task, verdict=verdict, by=request.user),
        "variants",
    )


@require_POST
@project_view(Role.ENGINEER)
def end_batch(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    """Uses the waiting batch, or discards it."""
    eval_set = get_object_or_404(EvalSet, project=project, pk=pk)

    def end() -> None:
        if request.POST.get("do") == "use":
            used = batches.use_batch(eval_set=eval_set, by=request.user)
            messages.success(request, f"{used:,} variants were added to the train split.")
        else:
            gone = batches.discard_batch(eval_set=eval_set, by=request.user)
            messages.success(request, f"{gone:,} variants discarded.")

    return attempt(request, eval_set, end, "variants")
