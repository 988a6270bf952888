"""Tasks from one failure, and from many successes at once."""

from __future__ import annotations

import json
from typing import Any

from django.contrib import messages
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils.html import format_html

from apps.core.access import project_view
from apps.core.forms import whole
from apps.core.models import Project, Role
from apps.core.query import whole_number
from apps.core.routes import RUNS, SIDES, shows
from apps.evals import actions, from_failures
from apps.evals.forms import FROM_FAILURE, FailureTaskForm, drafts_of
from apps.evals.from_failures import make_task, open_draft
from apps.evals.from_production import MOST, newest
from apps.evals.holdout.leaks import Leak
from apps.evals.holdout.view_log import record_leak_views, record_refusal
from apps.evals.models import EvalSet, Split
from apps.evals.source_runs import RunStep, recorded_results
from apps.evals.suggestions import (
    Suggestion,
    demonstration_of,
    planned,
    suggestion_of,
    suggestions,
)
from apps.failures.actions.decisions import Refused
from apps.failures.models import Failure
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
    plan = planned(failure, whole(request.POST.get("cut") or request.GET.get("cut")))
    if plan is None:
        messages.error(request, "The agent took no step in this run, so no task can be created.")
        return redirect("failures:case", project.slug, pk)
    step = plan.step
    suggested = list(suggestions(step))
    form = FailureTaskForm(
        project,
        step.source.groups.offered,
        request.POST or None,
        initial=_initial(request, project, suggested),
    )
    leak = None
    if request.method == "POST" and form.is_valid():
        leak = _save(request, failure, step, suggested, form)
        if leak is None and not form.errors:
            return redirect("failures:triage", project.slug)
    runs_shown(project, [failure.trajectory_id], to=request.user, where="run")
    context = {
        "failure": failure,
        "row": step.source.row,
        "form": form,
        "step": step,
        "plan": plan,
        "leak": leak,
        "suggested": list(enumerate(suggested)),
        "chosen": _chosen(request, suggested),
        "numbered_from": step.cut - len(step.prompt),
        "draft": from_failures.DRAFT,
        "there": from_failures.sets_with(step),
        "recorded": len(recorded_results(step.source.run)),
    }
    return render(
        request, "evals/task_from_failure.html", context, status=400 if form.errors or leak else 200
    )


def _chosen(request: HttpRequest, suggested: list[Suggestion]) -> int | None:
    return whole(request.GET.get("suggestion", "0"), 0, len(suggested) - 1)


def _initial(request: HttpRequest, project: Project, suggested: list[Suggestion]) -> dict[str, Any]:
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


def _save(
    request: HttpRequest,
    failure: Failure,
    step: RunStep,
    suggested: list[Suggestion],
    form: FailureTaskForm,
) -> Leak | None:
    """Stores the task and confirms the failure. Returns a leak; any other problem is a form
    error.
    """
    project, by, data = failure.project, request.user, dict(form.cleaned_data)
    eval_set, answer = data.pop("eval_set", None), suggestion_of(data.pop("expected"), suggested)
    try:
        with transaction.atomic():
            eval_set = eval_set or open_draft(project=project, by=by)
            made = make_task(
                failure=failure, step=step, answer=answer, eval_set=eval_set, by=by, **data
            )
    except (actions.EvalSetError, Refused) as error:
        record_refusal(project, error, by=by)
        form.add_error(None, str(error))
        return None
    if made.made:
        request.session[LAST] = {"eval_set": str(eval_set.pk), "split": data["split"]}
        link = reverse("evals:detail", args=[project.slug, eval_set.pk])
        sentence = 'A task was added to <a href="{}">{}</a>, {}.'
        messages.success(request, format_html(sentence, link, eval_set, data["split"].label))
        return None
    if other := made.same_as:
        form.add_error(
            None,
            f"{other.eval_set} already has this request, as {other.key}. The failure is counted"
            " there.",
        )
        return None
    leak = made.crossings[0]
    if data["split"] != Split.HOLDOUT:  # seeing a held-out request is a view
        record_leak_views(project, [leak], by=by)
    return leak


@shows(RUNS)
@project_view(Role.ENGINEER, query=OF_LISTS)
def from_successes(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    """Turns filtered successes into tasks that guard what already works."""
    eval_set = get_object_or_404(EvalSet, project=project, pk=pk)
    filters = request.GET.copy()
    filters["outcome"] = Outcome.SUCCESS
    rows = apply_filters(project.trajectories.all(), filters).order_by("-pk")
    if request.method == "POST":
        chosen = request.POST.get("split")
        split = Split(chosen) if chosen in dict(FROM_FAILURE) else Split.REGRESSION
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
    keys = list(rows[: MOST + 1].values_list("pk", flat=True))
    first = list(rows[:SEEN])
    runs_shown(
        project, [row.pk for row in first], to=request.user, where="successes", previews=True
    )
    context = {
        "eval_set": eval_set,
        "rows": first,
        "count": min(len(keys), MOST),
        "filters": request.GET,
        "more": len(keys) > MOST,
        "splits": FROM_FAILURE,
        "split": Split.REGRESSION,
        "periods": SINCE,
    }
    return render(request, "evals/from_successes.html", context)


def report_result(request: HttpRequest, made: actions.TasksMade) -> None:
    """The result for many tasks in one message, without held-out requests."""
    parts = [f"{made.made:,} tasks added"]
    if made.duplicates:
        parts.append(f"{made.duplicates:,} already existed")
    if made.without_expected:
        parts.append(f"{made.without_expected:,} skipped: no expected answer")
    if made.left_out:
        parts.append(
            f"{made.left_out:,} skipped: too similar to, or in the same group as, the other side of"
            " a hold-out"
        )
    messages.success(request, "; ".join(parts) + ".")
