"""The page of two evaluations: what is measured of both, what is missing, and the gate's reports on
them.
"""

from __future__ import annotations

from django import forms
from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_POST

from apps.core.access import project_view
from apps.core.form_bounds import bounds_from
from apps.core.http import progress
from apps.core.models import Project, Role
from apps.core.routes import TOTALS, WHEN_EVALUATED, shows
from apps.evals.models import EvalRun, LatencyMeasurement, Split
from apps.promotion import preparation
from apps.promotion.models import GateReport
from apps.promotion.preparation_api import Prepare


@bounds_from(Prepare)
class PrepareForm(forms.Form):
    general_tasks = forms.IntegerField(required=False)
    adapters = forms.ChoiceField(choices=LatencyMeasurement.Adapters.choices, required=False)


def pair_of(project: Project, *keys: object) -> list[EvalRun]:
    """The evaluations with these keys, in this order. Raises Http404."""
    runs = EvalRun.objects.filter(project=project).select_related(
        "model_version", "eval_set", "environment__verifier", "project"
    )
    try:
        return [get_object_or_404(runs, pk=key) for key in keys]
    except ValidationError as error:  # not a UUID
        raise Http404 from error


@shows(TOTALS, WHEN_EVALUATED)
@project_view()
def pair(request: HttpRequest, project: Project, baseline: str, candidate: str) -> HttpResponse:
    before, after = pair_of(project, baseline, candidate)
    context = live(before, after) | {
        "reports": (
            GateReport.objects.filter(baseline=before, candidate=after).select_related("created_by")
        ),
        "general": after.eval_set.tasks.filter(split=Split.GENERAL).count(),
        "general_tasks": preparation.GENERAL_TASKS,
        "adapters": LatencyMeasurement.Adapters.choices,
        "channels": project.channels.current(),
    }
    return render(request, "promotion/pair.html", context)


@shows(TOTALS, WHEN_EVALUATED)
@project_view()
def pair_parts(
    request: HttpRequest, project: Project, baseline: str, candidate: str
) -> HttpResponse:
    """The fragment that is polled while something is running; then the whole page is reloaded."""
    context = live(*pair_of(project, baseline, candidate))
    return progress(request, "promotion/_parts.html", context, runs=context["running"])


def live(before: EvalRun, after: EvalRun) -> dict:
    parts = preparation.parts(before, after)
    return {
        "baseline": before,
        "candidate": after,
        "parts": parts,
        "running": any(job.is_active for part in parts for job in part.jobs),
        "missing": any(part.state in ("missing", *preparation.ENDED_BADLY) for part in parts),
    }


@require_POST
@project_view(Role.ENGINEER)
def prepare(request: HttpRequest, project: Project, baseline: str, candidate: str) -> HttpResponse:
    before, after = pair_of(project, baseline, candidate)
    form = PrepareForm(request.POST)
    if form.is_valid():
        given = {name: value for name, value in form.cleaned_data.items() if value}
        problems = preparation.prepare(baseline=before, candidate=after, by=request.user, **given)
    else:
        problems = [f"{name}: {text}" for name, errors in form.errors.items() for text in errors]
    for problem in problems:
        messages.error(request, problem)
    return redirect("promotion:pair", project.slug, before.pk, after.pk)
