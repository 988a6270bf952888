"""Latency, tokens and cost as distributions: fragments that pages load later, so that they do not
have to wait.
"""

from __future__ import annotations

from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render

from apps.core.access import project_view
from apps.core.models import Project
from apps.core.query import many
from apps.core.routes import TOTALS, WHEN_EVALUATED, shows
from apps.evals.pages.compare import chosen_of
from apps.evals.pages.runs import OF_SAMPLES, chosen_filters, may_see, runs_of
from apps.evals.samples.distributions import compared, figures, measured


@shows(TOTALS, WHEN_EVALUATED)
@project_view(query=OF_SAMPLES)
def of_run(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    """Of the filtered samples. If a hold-out is not opened: of all, which reveals nothing about
    single tasks.
    """
    run = get_object_or_404(runs_of(project), pk=pk)
    chosen = chosen_filters(request, run) if may_see(request, run) else None
    found = measured(run, chosen.apply(run) if chosen else None)
    return render(
        request, "evals/_distributions.html", {"figures": figures(found), "filters": chosen}
    )


@shows(TOTALS, WHEN_EVALUATED)
@project_view(query={"run": many(UUID)})
def of_several(request: HttpRequest, project: Project) -> HttpResponse:
    runs = chosen_of(project, request.GET.getlist("run"))
    named = [
        (f"{number}. {run.model_version}", measured(run)) for number, run in enumerate(runs, 1)
    ]
    return render(request, "evals/_distributions.html", {"figures": compared(named)})
