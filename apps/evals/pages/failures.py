"""Tasks from one failure, and from many successes at once."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

from django.contrib import messages
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils.html import format_html
from django.views.decorators.http import require_POST

from apps.core.access import project_view
from apps.core.forms import whole
from apps.core.models import Project, Role
from apps.core.query import whole_number
from apps.core.routes import RUNS, SIDES, shows
from apps.evals import actions, from_failures
from apps.evals.forms import FROM_FAILURE, FailureTaskForm, drafts_of
from apps.evals.from_failures import demonstration_of
from apps.evals.from_production import MOST, newest
from apps.evals.holdout import groups
from apps.evals.holdout.leaks import Leak, request_of, same
from apps.evals.holdout.view_log import record_leak_views, record_refusal
from apps.evals.models import EvalSet, Split
from apps.failures.actions.decisions import Refused, decide
from apps.failures.models import Failure, FailureCluster, FailureState
from apps.trajectories.filters import OF_LISTS, SINCE, apply_filters
from apps.trajectories.models import Outcome
from apps.trajectories.shown import runs_shown

SEEN = 12
LAST = "evals.last_task"


@shows(f"{RUNS}; {SIDES}")
@project_view(Role.ENGINEER, query={"cut": whole_number(0), "suggestion": whole_number(0)})
def task_from_failure(request: HttpRequest, project: Project, pk: int) -> HttpResponse:
    """One task from one failure. Suggestions name their source; a person confirms or changes
    them.
    """
    failure = get_object_or_404(
        Failure.objects.select_related("trajectory", "mode"), project=project, pk=pk
    )
    steps = from_failures.steps_of(failure.trajectory.messages)
    cut = _cut(request, failure, steps)
    if cut is None:
        messages.error(request, "The agent took no step in this run, so no task can be created.")
        return redirect("failures:case", project.slug, pk)
    suggested = from_failures.suggestions(failure.trajectory, cut)
    offered = groups.groups_of(failure.trajectory)
    form = FailureTaskForm(
        project,
        offered,
        request.POST or None,
        initial=_initial(request, project, failure, suggested),
    )
    leak = None
    if request.method == "POST" and form.is_valid():
        leak = _save(request, failure, cut, form)
        if leak is None and not form.errors:
            return redirect("failures:triage", project.slug)
    runs_shown(project, [failure.trajectory_id], to=request.user, where="run")
    prompt = from_failures.prompt_at(failure.trajectory.messages, cut)
    context = {
        "failure": failure,
        "row": failure.trajectory,
        "form": form,
        "steps": steps,
        "cut": cut,
        "leak": leak,
        "suggested": list(enumerate(suggested)),
        "chosen": _chosen(request, suggested),
        "prompt": prompt,
        "numbered_from": cut - len(prompt),
        "draft": from_failures.DRAFT,
        "there": from_failures.sets_with(failure.trajectory, cut),
        "recorded": len(from_failures.results_for(failure.trajectory, None)),
    }
    return render(
        request, "evals/task_from_failure.html", context, status=400 if form.errors or leak else 200
    )


@shows(SIDES)
@require_POST
@project_view(Role.ENGINEER)
def tasks_from_cluster(request: HttpRequest, project: Project, pk: UUID) -> HttpResponse:
    """A task for each failure of a cluster whose expected answer is known."""
    cluster = get_object_or_404(
        FailureCluster.objects.select_related("project"), project=project, pk=pk
    )
    try:
        draft, made = from_failures.tasks_of_cluster(cluster=cluster, by=request.user)
    except actions.EvalSetError as error:
        record_refusal(project, error, by=request.user)
        messages.error(request, str(error))
        return redirect("failures:cluster", project.slug, pk)
    report_result(request, made)
    return redirect("evals:detail", project.slug, draft.pk)


def _cut(request: HttpRequest, failure: Failure, steps: list[int]) -> int | None:
    """The selected step, or else the blamed one."""
    given = whole(request.POST.get("cut") or request.GET.get("cut"))
    if given in steps:
        return given
    return from_failures.default_cut(failure.trajectory.messages, failure.blamed_message)


def _chosen(request: HttpRequest, suggested: list) -> int | None:
    return whole(request.GET.get("suggestion", "0"), 0, len(suggested) - 1)


def _initial(
    request: HttpRequest, project: Project, failure: Failure, suggested: list
) -> dict[str, Any]:
    last = request.session.get(LAST, {})  # whoever goes through many failures chooses once
    drafts = drafts_of(project)
    draft = drafts.filter(pk=last.get("eval_set")).first() or drafts.order_by("-created_at").first()
    initial: dict[str, Any] = {
        "split": last.get("split", Split.TRAIN),
        "replayable": True,
        "eval_set": draft,
    }
    number = _chosen(request, suggested)
    if number is not None:
        expected = suggested[number].expected
        initial["expected"] = json.dumps(expected, indent=2, ensure_ascii=False)
        initial["demonstration"] = demonstration_of(expected)
    return initial


def _save(request: HttpRequest, failure: Failure, cut: int, form: FailureTaskForm) -> Leak | None:
    """Stores the task and confirms the failure. Returns a leak; any other problem is a form
    error.
    """
    given: dict[str, Any] = {"eval_set": None} | form.cleaned_data
    try:
        with transaction.atomic():
            given["eval_set"] = given["eval_set"] or from_failures.open_draft(
                project=failure.project, by=request.user
            )
            made = from_failures.make_task(failure=failure, cut=cut, by=request.user, **given)
            if made.made and failure.state == FailureState.OPEN:
                decide(failure=failure, by=request.user)
    except (actions.EvalSetError, Refused) as error:
        record_refusal(failure.project, error, by=request.user)
        form.add_error(None, str(error))
        return None
    if made.made:
        request.session[LAST] = {"eval_set": str(given["eval_set"].pk), "split": given["split"]}
        link = reverse("evals:detail", args=[failure.project.slug, given["eval_set"].pk])
        said = 'A task was added to <a href="{}">{}</a>, {}.'
        messages.success(request, format_html(said, link, given["eval_set"], given["split"].label))
    elif made.duplicates:
        form.add_error(
            None, f"{given['eval_set']} already has this request. Choose another step or set."
        )
    else:
        return _leak(request, failure, cut, given, made)
    return None


def _leak(
    request: HttpRequest, failure: Failure, cut: int, given: dict, made: actions.TasksMade
) -> Leak:
    """The two requests; seeing a held-out one is a view."""
    leak = made.leaks[0] if made.leaks else exact_leak(failure, cut, given)
    if given["split"] != Split.HOLDOUT:
        record_leak_views(failure.project, [leak], by=request.user)
    return leak


def exact_leak(failure: Failure, cut: int, given: dict) -> Leak:
    """The task on the other side with the same request or one of its groups."""
    task = from_failures.task_of(failure.trajectory, given["eval_set"], cut, given["expected"])
    task.split, task.group = given["split"], given["group"]
    for _, other in groups.conflicts(failure.project, [task]):
        return same(task, other)
    return Leak(task.key, request_of(task), "", "", 1.0)  # deleted in the meantime


@shows(RUNS)
@project_view(Role.ENGINEER, query=OF_LISTS)
def from_successes(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    """Turns filtered successes into tasks that guard what already works."""
    eval_set = get_object_or_404(EvalSet, project=project, pk=pk)
    filters = request.GET.copy()
    filters["outcome"] = Outcome.SUCCESS
    rows = apply_filters(project.trajectories.all(), filters).order_by("-pk")
    if request.method == "POST":
        given = request.POST.get("split")
        split = Split(given) if given in dict(FROM_FAILURE) else Split.REGRESSION
        try:
            made = actions.tasks_from_trajectories(
                eval_set=eval_set, trajectories=newest(rows), by=request.user, split=split
            )
        except actions.EvalSetError as error:
            record_refusal(project, error, by=request.user)
            messages.error(request, str(error))
        else:
            report_result(request, made)
            return redirect("evals:detail", project.slug, pk)
    found = list(rows[: MOST + 1].values_list("pk", flat=True))
    first = list(rows[:SEEN])
    runs_shown(
        project, [row.pk for row in first], to=request.user, where="successes", previews=True
    )
    context = {
        "eval_set": eval_set,
        "rows": first,
        "count": min(len(found), MOST),
        "filters": request.GET,
        "more": len(found) > MOST,
        "splits": FROM_FAILURE,
        "split": Split.REGRESSION,
        "periods": SINCE,
    }
    return render(request, "evals/from_successes.html", context)


def report_result(request: HttpRequest, made: actions.TasksMade) -> None:
    """The result for many tasks in one message, without held-out requests."""
    near = made.guarded + len(made.leaks)
    parts = [f"{made.made:,} tasks added"]
    parts += [f"{made.duplicates:,} already existed"] if made.duplicates else []
    parts += (
        [f"{made.without_expected:,} skipped: no expected answer"] if made.without_expected else []
    )
    parts += (
        [f"{near:,} skipped: too similar to, or in the same group as, the other side of a hold-out"]
        if near
        else []
    )
    messages.success(request, "; ".join(parts) + ".")
