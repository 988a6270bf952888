"""The signals of a project, and one with its answers."""

from __future__ import annotations

from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.urls import reverse

from apps.core.access import project_view
from apps.core.models import Project, Role
from apps.core.paging import page_of
from apps.core.query import PAGE_NUMBER
from apps.core.routes import RUNS, shows
from apps.failures.actions import signals
from apps.failures.judge import rubrics
from apps.failures.models import Signal
from apps.failures.signals import asking
from apps.trajectories.shown import runs_shown


@project_view()
def listing(request: HttpRequest, project: Project) -> HttpResponse:
    context = {
        "signals": [(row, signals.agreement(row)) for row in project.signals.all()],
        "may_write": request.membership.may(Role.ENGINEER),
        "judge": rubrics.current(project),
    }
    return render(request, "failures/signals.html", context)


@shows(RUNS)
@project_view(query={"page": PAGE_NUMBER})
def signal(request: HttpRequest, project: Project, pk: int) -> HttpResponse:
    row = get_object_or_404(Signal, project=project, pk=pk)
    page = page_of(request, signals.answers(row).filter(version=row.version))
    runs_shown(
        project, [answer.trajectory_id for answer in page], to=request.user, where="a signal"
    )
    scores = reverse("trajectories:scores", args=[project.slug])
    left = signals.left_to_try(row)
    context = {
        "signal": row,
        "page": page,
        "left": left,
        "tried": asking.TRIED,
        "waiting": asking.WAITING,
        "is_asking": row.answers.filter(version=row.version, error=asking.WAITING).exists(),
        "agreement": signals.agreement(row),
        "scores": f"{scores}?{urlencode({'name': row.name})}",
        "may_write": request.membership.may(Role.ENGINEER),
        "judge": rubrics.current(project),
        "cost": rubrics.of_signal(row),
    }
    return render(request, "failures/signal.html", context)
