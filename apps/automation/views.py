from __future__ import annotations

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_POST

from apps.automation import actions
from apps.automation.models import Schedule, Step
from apps.core.access import project_view
from apps.core.forms import PlainForm
from apps.core.models import Project, Role
from apps.failures import classify_job


class ScheduleForm(PlainForm):
    step = forms.ChoiceField(choices=Step.choices)
    every_minutes = forms.IntegerField(min_value=1, max_value=60 * 24 * 30, initial=60, label="Every (minutes)")
    enabled = forms.BooleanField(required=False, initial=True)


@project_view()
def listing(request: HttpRequest, project: Project) -> HttpResponse:
    context = {
        "schedules": project.schedules.all(),
        "form": ScheduleForm(),
        "latest": classify_job.summary(project.classifications.first()),
    }
    return render(request, "automation/list.html", context)


@require_POST
@project_view(Role.MEMBER)
def set_schedule(request: HttpRequest, project: Project) -> HttpResponse:
    form = ScheduleForm(request.POST)
    if form.is_valid():
        actions.set_schedule(project=project, by=request.user, **form.cleaned_data)
    else:
        messages.error(request, "The interval must be a whole number of minutes, from 1 to 43,200 (30 days).")
    return redirect("automation:list", project.slug)


@require_POST
@project_view(Role.MEMBER)
def run_now(request: HttpRequest, project: Project, pk: int) -> HttpResponse:
    schedule = get_object_or_404(Schedule, project=project, pk=pk)
    messages.success(request, f"{schedule.get_step_display()}: {actions.run(schedule, by=request.user)}.")
    return redirect("automation:list", project.slug)
