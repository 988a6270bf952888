"""The signals of a project, and one with its answers."""

from __future__ import annotations

from urllib.parse import urlencode
from uuid import UUID

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_POST

from apps.core.access import project_view
from apps.core.errors import Rejected
from apps.core.following import ASKED, asked_at
from apps.core.models import Project, Role
from apps.core.paging import page_of
from apps.core.query import PAGE_NUMBER
from apps.core.routes import RUNS, shows
from apps.failures.actions import signals
from apps.failures.judge import rubrics
from apps.failures.models import Signal
from apps.failures.signals import asking
from apps.trajectories.actions import scores
from apps.trajectories.models import Trajectory
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
@project_view(query={"page": PAGE_NUMBER} | ASKED)
def signal(request: HttpRequest, project: Project, pk: int) -> HttpResponse:
    row = get_object_or_404(Signal, project=project, pk=pk)
    page = page_of(request, signals.answers(row).filter(version=row.version))
    listed = reverse("trajectories:scores", args=[project.slug])
    left = signals.left_to_try(row)
    blocking = signals.blocking(row) if left and not row.on_since else []
    shown = [answer.trajectory_id for answer in [*page, *blocking]]
    runs_shown(project, shown, to=request.user, where="a signal")
    said = signals.said_by_people(row, [answer.trajectory_id for answer in page])
    context = {
        "signal": row,
        "said": said,
        "told": signals.told(row),
        "may_label": request.membership.may(Role.REVIEWER),
        "page": page,
        "left": left,
        "blocking": blocking,
        "tried": asking.TRIED,
        "waiting": asking.WAITING,
        "is_asking": _is_asking(request, row, left),
        "agreement": signals.agreement(row),
        "scores": f"{listed}?{urlencode({'name': row.name})}",
        "may_write": request.membership.may(Role.ENGINEER),
        "judge": rubrics.current(project),
        "cost": rubrics.of_signal(row),
    }
    return render(request, "failures/signal.html", context)


@require_POST
@project_view(Role.REVIEWER)
def label(request: HttpRequest, project: Project, pk: int, trajectory: UUID) -> HttpResponse:
    """A person's own answer about a run: their score of the signal's name."""
    row = get_object_or_404(Signal, project=project, pk=pk)
    run = get_object_or_404(Trajectory, project=project, pk=trajectory)
    value, error = request.POST.get("value", ""), ""
    try:
        if value not in row.answers_offered:
            raise Rejected(f"The answer must be one of: {', '.join(row.answers_offered)}.")
        scores.give(trajectory=run, by=request.user, name=row.name, value=value)
    except Rejected as refused:
        error = str(refused)
    if not request.htmx:
        if error:
            messages.error(request, error)
        return redirect(row)
    context = {
        "signal": row,
        "answer": get_object_or_404(signals.answers(row), trajectory=run, version=row.version),
        "said": signals.said_by_people(row, [run.pk]).get(run.pk),
        "agreement": signals.agreement(row),
        "error": error,
        "may_label": True,
        "swap": True,
    }
    return render(request, "failures/_signal_labelled.html", context)


def _is_asking(request: HttpRequest, row: Signal, left: int) -> bool:
    """Whether an answer is awaited, or the trial that this page asked for is not done."""
    waits = row.answers.filter(version=row.version, error=asking.WAITING).exists()
    return waits or bool(left and asked_at(request))
