"""Checks: people are asked about runs that nobody flagged, one after another. Each answer leads to
the next run.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils.cache import patch_vary_headers
from django.views.decorators.http import require_POST

from apps.core.access import project_view
from apps.core.following import ASKED, asked_at, followed
from apps.core.forms import PlainForm
from apps.core.models import Project, Role
from apps.core.routes import RUNS, shows
from apps.failures.actions.decisions import Refused
from apps.failures.models import Failure, OutcomeCheck, OutcomeEstimate
from apps.failures.outcomes import checks
from apps.failures.outcomes.estimates import FLAGGED_TIMES
from apps.trajectories.models import Trajectory
from apps.trajectories.pages.detail import show_part
from apps.trajectories.pages.parts import Reader
from apps.trajectories.shown import runs_shown

DRAWN_WITHIN = timedelta(seconds=90)
SAID = {
    "failed": "Saved: the run failed. It is now in the triage inbox.",
    "fine": "Saved: the run succeeded.",
    "unsure": "Saved: unsure.",
}


class ShareForm(PlainForm):
    percent = forms.FloatField(min_value=0, max_value=100, label="Runs to check, %")


@shows(RUNS)
@project_view(query={"run": None} | ASKED)
def page(request: HttpRequest, project: Project) -> HttpResponse:
    """The next run, or `?run=`."""
    asked = request.GET.get("run")
    return _show(request, project, _find_run(project, asked) if asked else _next(project))


def _show(
    request: HttpRequest,
    project: Project,
    row: Trajectory | None,
    *,
    note: str = "",
    error: str = "",
) -> HttpResponse:
    """A run, as a page or as its htmx fragment; the URL is that of the page which shows it
    again.
    """
    context = _context(request, project, row) | {"note": note, "error": error}
    response = render(request, f"failures/{'_check' if request.htmx else 'checks'}.html", context)
    if request.htmx:
        url = reverse("failures:checks", args=[project.slug])
        response["HX-Replace-Url"] = (
            f"{url}?run={row.pk}" if row and context["check"] and context["check"].answer else url
        )
    response["Cache-Control"] = "private, no-cache"
    patch_vary_headers(response, ["HX-Request"])
    return response


def _next(project: Project) -> Trajectory | None:
    found = checks.next_check(project)
    return project.trajectories.filter(pk=found.trajectory).first() if found else None


def _find_run(project: Project, given: str) -> Trajectory:
    try:
        pk = UUID(given)
    except ValueError:
        pk = UUID(int=0)
    return get_object_or_404(Trajectory, project=project, pk=pk)


def _context(request: HttpRequest, project: Project, row: Trajectory | None) -> dict[str, Any]:
    context: dict[str, Any] = {
        "row": row,
        "left": checks.waiting(project).count(),
        "percent": round(100 * (share := checks.share_of(project)), 2),
        "flagged_percent": round(100 * min(1.0, share * FLAGGED_TIMES), 2),
        "is_drawing": row is None and asked_at(request, within=DRAWN_WITHIN) is not None,
        "may_write": request.membership.may(Role.REVIEWER),
        "may_undo": (
            OutcomeCheck.objects.filter(project=project, by=request.user)
            .exclude(answer="")
            .exists()
        ),
        "may_set": request.membership.may(Role.ENGINEER),
    }
    if row is None:
        return context | {"check": None}
    runs_shown(project, [row.pk], to=request.user, where="check")
    check = OutcomeCheck.objects.filter(trajectory=row).select_related("by").first()
    return context | {
        "check": check,
        "random": bool(check and check.probability),
        "estimate": (
            OutcomeEstimate.objects.filter(trajectory=row).select_related("model").first()
            if check and check.answer
            else None
        ),
        "failure": Failure.objects.filter(trajectory=row).select_related("mode").first(),
        **Reader(row).opened_at(0),
    }


@shows(RUNS)
@project_view()
def part(request: HttpRequest, project: Project, trajectory: UUID, first: int) -> HttpResponse:
    """The messages of one part of a long run, without the blamed step: people judge the run before
    they see what was found.
    """
    row = get_object_or_404(Trajectory, project=project, pk=trajectory)
    return show_part(request, row, first, where="check", blamed=None)


@require_POST
@project_view(Role.REVIEWER)
def answer(request: HttpRequest, project: Project, trajectory: UUID) -> HttpResponse:
    row = get_object_or_404(Trajectory, project=project, pk=trajectory)
    said, error, note = request.POST.get("answer", ""), "", ""
    layers = checks.in_words(row)  # before the answer, which changes what they say
    try:
        checks.answer(trajectory=row, answer=said, by=request.user)
        note = f"{SAID[said]} {layers}"
    except Refused as refused:
        error = str(refused)
    if request.htmx:
        return _show(request, project, _next(project), note=note, error=error)
    if error:
        messages.error(request, error)
    else:
        messages.success(request, note)
    return redirect("failures:checks", project.slug)


@require_POST
@project_view(Role.REVIEWER)
def undo(request: HttpRequest, project: Project) -> HttpResponse:
    row = checks.undo(project=project, by=request.user)
    note = "Your last answer was undone." if row else "Nothing to undo."
    if request.htmx:
        return _show(request, project, row or _next(project), note=note)
    messages.info(request, note)
    url = reverse("failures:checks", args=[project.slug])
    return redirect(f"{url}?run={row.pk}" if row else url)


@require_POST
@project_view(Role.ENGINEER)
def share(request: HttpRequest, project: Project) -> HttpResponse:
    form = ShareForm(request.POST)
    if form.is_valid():
        checks.set_share(project=project, share=form.cleaned_data["percent"] / 100, by=request.user)
        messages.success(
            request,
            f"Random share set to {form.cleaned_data['percent']:g}%. More runs are drawn within a"
            " minute if it was raised.",
        )
        return redirect(followed(reverse("failures:checks", args=[project.slug])))
    messages.error(request, "Enter a number between 0 and 100.")
    return redirect("failures:checks", project.slug)
