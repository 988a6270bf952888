from __future__ import annotations

from itertools import chain
from uuid import UUID

from django.contrib import messages
from django.db.models import Count, Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils.text import slugify
from django.views.decorators.http import require_POST

from apps.core.access import project_view
from apps.core.http import uuid_of
from apps.core.models import Project, Role
from apps.core.operations.forms import OperationForm, form_of
from apps.core.paging import page_of
from apps.core.query import FLAG, PAGE_NUMBER, Query
from apps.core.routes import HOW_MANY, SIDES, TOTALS, UNCOUNTED, WHEN_EVALUATED, shows
from apps.core.sorting import Sorting, choices
from apps.evals import actions, drafts, editing
from apps.evals.forms import EvalSetForm, TaskForm
from apps.evals.from_production import candidates
from apps.evals.holdout.view_log import (
    IN_PRODUCTION,
    WHOLE_SET,
    WORN_OUT,
    record_view,
    view_count,
    viewers_of,
    views_of,
)
from apps.evals.meaning.verdicts import review_of
from apps.evals.models import EvalRun, EvalSet, Split, Task
from apps.evals.pages.attempt import attempt
from apps.evals.pages.failures import report_result
from apps.evals.proposals.reviewing import open_count
from apps.evals.variants import batches
from apps.trajectories.models import in_chunks

LARGEST_SUGGESTED = 60  # held-out tasks
SET_COLUMNS = {
    "set": "slug",
    "state": "state",
    "tasks": "-n",
    "train": "-train",
    "holdout": "-holdout",
}
RUN_COLUMNS = {
    "model": "model_version__name",
    "state": "state",
    "success": "-result__metrics__success__mean",
    "reward": "-result__metrics__reward__mean",
    "unsafe": "-result__metrics__unsafe_action__mean",
    "samples": "-result__metrics__counts__samples",
    "when": "-created_at",
}


@shows(TOTALS, WHEN_EVALUATED)
@project_view(
    query={
        "archived": FLAG,
        "sets": choices(SET_COLUMNS),
        "sort": choices(RUN_COLUMNS),
        "page": PAGE_NUMBER,
    }
)
def listing(request: HttpRequest, project: Project) -> HttpResponse:
    archived = "archived" in request.GET
    sets = (
        project.eval_sets.shown(archived)
        .annotate(
            n=Count("tasks"),
            holdout=Count("tasks", filter=Q(tasks__split=Split.HOLDOUT)),
            train=Count("tasks", filter=Q(tasks__split=Split.TRAIN)),
        )
        .order_by("slug", "-version")
    )  # counting drops the model's ordering
    runs = (
        EvalRun.objects.filter(project=project)
        .shown(archived)
        .select_related("model_version", "eval_set", "environment")
    )
    set_order, run_order = (
        Sorting.of(request.GET, SET_COLUMNS, "sets"),
        Sorting.of(request.GET, RUN_COLUMNS),
    )
    context = {
        "archived": archived,
        "sets": (rows := list(set_order.apply(sets))),
        "newest_frozen": max(
            (row for row in rows if row.is_frozen), key=lambda row: row.frozen_at, default=None
        ),
        "form": EvalSetForm(),
        "proposed": open_count(project),
        "page": page_of(request, run_order.apply(runs), 30),
    }
    return render(
        request, "evals/list.html", context | {"set_order": set_order, "run_order": run_order}
    )


@require_POST
@project_view(Role.ENGINEER)
def create(request: HttpRequest, project: Project) -> HttpResponse:
    form = EvalSetForm(request.POST)
    if not form.is_valid():
        wanted = slugify(request.POST.get("slug", ""))[:80]
        example = f" For example: {wanted}" if wanted else ""
        messages.error(request, f"Enter a name: letters a to z, digits and dashes.{example}")
        return redirect("evals:list", project.slug)
    try:
        made = actions.create_eval_set(project=project, by=request.user, **form.cleaned_data)
    except actions.EvalSetError as error:
        messages.error(request, str(error))
        return redirect("evals:list", project.slug)
    return redirect("evals:detail", project.slug, made.pk)


OF_SET: Query = {"split": Split.values, "task": UUID, "tag": None, "q": None, "page": PAGE_NUMBER}


@shows(HOW_MANY, UNCOUNTED)
@project_view(query=OF_SET)
def detail(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    return show(request, project, pk, looked=False)


def show(request: HttpRequest, project: Project, pk: str, looked: bool) -> HttpResponse:
    eval_set = get_object_or_404(
        EvalSet.objects.select_related("frozen_by"), project=project, pk=pk
    )
    tasks = eval_set.tasks.select_related("trajectory")
    split = request.GET.get("split", "")
    if split in Split.values:
        tasks = tasks.filter(split=split)
    if one := uuid_of(request.GET.get("task", "")):
        tasks = tasks.filter(pk=one)
    tags = editing.tags_in(eval_set)
    if (tag := request.GET.get("tag", "")) in tags:
        tasks = tasks.filter(editing.tagged(tag)).exclude(split=Split.HOLDOUT)
    if q := request.GET.get("q", "").strip()[
        :120
    ]:  # a match would reveal what a held-out task asks
        tasks = tasks.search(q).exclude(split=Split.HOLDOUT)
    recent = views_of(eval_set).select_related("by", "api_key", "eval_set")[:10]
    counts = dict(eval_set.tasks.values_list("split").annotate(n=Count("pk")).order_by("split"))
    return render(
        request,
        "evals/detail.html",
        {
            "eval_set": eval_set,
            "edits": not eval_set.is_frozen and request.membership.may(Role.ENGINEER),
            "confirms": not eval_set.is_frozen and request.membership.may(Role.REVIEWER),
            "page": page_of(request, tasks),
            "split": split,
            "one": one,
            "looked": looked,
            "splits": Split.choices,
            "counts": counts,
            "uses": drafts.uses_of(eval_set)
            if eval_set.is_frozen and not counts.get(Split.HOLDOUT)
            else [],
            "total": sum(counts.values()),
            "q": q,
            "tags": tags,
            "tag": tag,
            "looks": view_count(eval_set),
            "worn_out": WORN_OUT,
            "viewers": viewers_of(eval_set),
            "recent_views": recent,
            "seen_in_production": any(view.detail.startswith(IN_PRODUCTION) for view in recent),
            "runs": eval_set.runs.current().select_related("model_version", "environment")[:10],
            "waiting": batches.waiting_in(eval_set).count(),
            "meaning": review_of(eval_set),
            "task_form": TaskForm(),
            "split_form": _split_form(sum(counts.values())),
            "candidates": candidates(project).count() if not eval_set.is_frozen else 0,
        },
    )


@shows("the held-out tasks")
@require_POST
@project_view(Role.ENGINEER, query=OF_SET)
def show_holdout(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    """Shows the hold-out's tasks, and counts the view."""
    eval_set = get_object_or_404(EvalSet, project=project, pk=pk)
    record_view(eval_set=eval_set, by=request.user, detail=WHOLE_SET)
    request.GET = request.GET.copy()
    request.GET["split"] = Split.HOLDOUT
    request.GET["page"] = request.POST.get("page", "1")
    return show(request, project, pk, looked=True)


@shows(SIDES)
@require_POST
@project_view(Role.ENGINEER)
def add_trajectories(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    eval_set = get_object_or_404(EvalSet, project=project, pk=pk)
    rows = chain.from_iterable(in_chunks(candidates(project).order_by("pk")))

    def add() -> None:
        report_result(
            request,
            actions.tasks_from_trajectories(eval_set=eval_set, trajectories=rows, by=request.user),
        )

    return attempt(request, eval_set, add)


@shows(SIDES)
@require_POST
@project_view(Role.ENGINEER)
def add_task(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    eval_set = get_object_or_404(EvalSet, project=project, pk=pk)
    form = TaskForm(request.POST)
    if not form.is_valid():
        for name, errors in form.errors.items():
            messages.error(request, f"{name}: {' '.join(errors)}")
        return redirect("evals:detail", project.slug, pk)
    data = form.cleaned_data | {"split": Split(form.cleaned_data["split"])}
    return attempt(
        request, eval_set, lambda: actions.add_task(eval_set=eval_set, by=request.user, **data)
    )


def _split_form(tasks: int) -> OperationForm:
    """With half of the tasks held out, at most LARGEST_SUGGESTED."""
    suggested = max(1, min(tasks // 2, LARGEST_SUGGESTED))
    return form_of(drafts.split_by_group.operation)(initial={"holdout_size": suggested})


@require_POST
@project_view(Role.ENGINEER)
def remove_task(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    task = get_object_or_404(Task.objects.select_related("eval_set"), project=project, pk=pk)
    return attempt(request, task.eval_set, lambda: actions.remove_task(task=task, by=request.user))
