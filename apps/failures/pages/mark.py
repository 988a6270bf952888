"""A failure that no rule found: a person gives the mode and the blamed step."""

from __future__ import annotations

from uuid import UUID

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render

from apps.core.access import project_view
from apps.core.forms import PlainForm, whole
from apps.core.models import Project, Role
from apps.core.query import whole_number
from apps.core.routes import RUNS, shows
from apps.failures.actions.decisions import Refused, mark_failure
from apps.failures.actions.modes import ensure_modes
from apps.failures.models import Failure, FailureMode
from apps.trajectories.models import Trajectory
from apps.trajectories.shown import runs_shown


class MarkForm(PlainForm):
    mode = forms.ModelChoiceField(
        FailureMode.objects.none(), to_field_name="slug", empty_label=None
    )
    blamed_message = forms.IntegerField(
        min_value=0,
        required=False,
        label="Blamed step",
        help_text="The message number shown in the conversation",
    )

    def __init__(self, *args: object, project: Project, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self.fields["mode"].queryset = project.failure_modes.all()


@shows(RUNS)
@project_view(Role.REVIEWER, query={"step": whole_number(0, 10**9)})
def mark(request: HttpRequest, project: Project, trajectory: UUID) -> HttpResponse:
    row = get_object_or_404(Trajectory, project=project, pk=trajectory)
    runs_shown(project, [trajectory], to=request.user, where="run")
    ensure_modes(project)
    there = Failure.objects.filter(trajectory=row).select_related("mode").first()
    form = MarkForm(request.POST or None, project=project, initial=_initial(request, there))
    if request.method == "POST" and form.is_valid():
        try:
            failure = mark_failure(trajectory=row, by=request.user, **form.cleaned_data)
        except Refused as refused:
            form.add_error(None, str(refused))
        else:
            messages.success(request, f"Marked as “{failure.mode}”.")
            return redirect("failures:case", project.slug, failure.pk)
    return render(request, "failures/mark.html", {"row": row, "form": form, "there": there})


def _initial(request: HttpRequest, there: Failure | None) -> dict:
    if (step := whole(request.GET.get("step"), 0, 10**9)) is not None:
        return {"blamed_message": step} | ({"mode": there.mode.slug} if there else {})
    return {"mode": there.mode.slug, "blamed_message": there.blamed_message} if there else {}
