"""Failures of an evaluation become tasks of a draft: those that the filters find, or one."""

from __future__ import annotations

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render

from apps.core.access import project_view
from apps.core.forms import PlainForm, whole
from apps.core.models import Project, Role
from apps.core.query import KEY
from apps.core.routes import SIDES, shows
from apps.evals.actions import EvalSetError
from apps.evals.forms import drafts_of
from apps.evals.from_failures import DRAFT, open_draft
from apps.evals.holdout.view_log import record_refusal
from apps.evals.pages.failures import report_result
from apps.evals.pages.runs import OF_SAMPLES, chosen_filters, row_url, runs_of
from apps.evals.samples.to_tasks import MOST, make_tasks, why_not

PREVIEW = 12


class SampleTasksForm(PlainForm):
    STEP, WHOLE = "step", "whole"

    eval_set = forms.ModelChoiceField(None, label="Draft", empty_label=None)
    cut = forms.ChoiceField(
        choices=[
            (STEP, "At the blamed step, if its correct answer is known"),
            (WHOLE, "Where the evaluated task starts"),
        ],
        initial=STEP,
        label="Start each task",
    )

    def __init__(self, project: Project, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self.fields["eval_set"].queryset = drafts = drafts_of(project).order_by("-created_at")
        if not drafts.exists():  # one is opened with the first task
            del self.fields["eval_set"]


@shows(SIDES)
@project_view(Role.ENGINEER, query=OF_SAMPLES | {"sample": KEY})
def to_tasks(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    run = get_object_or_404(runs_of(project), pk=pk)
    if why := why_not(run):
        messages.error(request, why)
        return redirect(row_url(run))
    data = request.POST if request.method == "POST" else request.GET
    chosen, sample = chosen_filters(request, run, data), whole(data.get("sample"))
    rows = chosen.apply(run).filter(success=False, masked=False)
    rows = rows.filter(pk=sample) if sample else rows
    form = SampleTasksForm(project, request.POST or None)
    if request.method == "POST" and form.is_valid():
        draft, begin = form.cleaned_data.get("eval_set"), form.cleaned_data["cut"]
        try:
            draft = draft or open_draft(project=project, by=request.user)
            made = make_tasks(
                run=run, samples=rows, eval_set=draft, by=request.user, whole=begin == form.WHOLE
            )
        except EvalSetError as error:
            record_refusal(project, error, by=request.user)
            form.add_error(None, str(error))
        else:
            report_result(request, made)
            return redirect("evals:detail", project.slug, draft.pk)
    keys = list(rows.order_by("task_key").values_list("task_key", flat=True).distinct()[: MOST + 1])
    context = {
        "run": run,
        "form": form,
        "filters": chosen,
        "sample": sample,
        "keys": keys[:PREVIEW],
        "count": min(len(keys), MOST),
        "more": len(keys) > MOST,
        "draft": DRAFT,
    }
    return render(request, "evals/sample_tasks.html", context, status=400 if form.errors else 200)
