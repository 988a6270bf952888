"""The form of a fork."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render

from apps.core.access import project_view
from apps.core.errors import Rejected
from apps.core.forms import whole
from apps.core.models import Project, Role
from apps.core.query import whole_number
from apps.training import forking
from apps.training.comparison import runs_of


@project_view(Role.ENGINEER, query={"step": whole_number(0)})
def fork(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    run = get_object_or_404(runs_of(project), pk=pk)
    form = forking.ForkForm(run, request.POST or None, whole(request.GET.get("step"), 0))
    if request.method == "POST" and form.is_valid():
        try:
            made = forking.fork(run=run, by=request.user, **form.cleaned_data)
        except Rejected as error:
            form.add_error(None, str(error))
        else:
            return redirect("training:detail", project.slug, made.pk)
    return render(request, "training/fork.html", {"run": run, "form": form})
