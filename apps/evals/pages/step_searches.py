"""Step searches: one with its result, and those of a failure."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render

from apps.core.access import project_view
from apps.core.http import progress
from apps.core.models import JobLog, Project, Role
from apps.core.query import whole_number
from apps.core.routes import RUNS, shows
from apps.evals.models import StepSearch
from apps.evals.replays import results
from apps.evals.replays.searches import searches_of
from apps.failures.actions.replayed import step_of_person
from apps.failures.models import Failure
from apps.trajectories.shown import runs_shown

LOGS = 10


@shows(RUNS)
@project_view(query={"step": whole_number(0)})
def step_search(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    """The result step by step, and one continuation from the chosen step beside what the agent did
    there.
    """
    search = get_object_or_404(searches_of(project), pk=pk)
    failure = search.failure
    values, verdict = results.found(search)
    steps = [value.step for value in values]
    chosen = request.GET.get("step", "")
    step = int(chosen) if chosen.isdecimal() and int(chosen) in steps else verdict.step
    runs_shown(project, [failure.trajectory_id], to=request.user, where="a step search")
    messages = failure.trajectory.messages
    after = next((one for one in steps if step is not None and one > step), len(messages))
    rows = search.continuations.filter(step=step).order_by("-success", "masked", "index")
    context = {
        "failure": failure,
        "values": values,
        "verdict": verdict,
        "step": step,
        "recorded": messages[step:after] if step is not None else [],
        "continuation": rows.first() if step is not None else None,
        "tools": failure.trajectory.tools,
        "chosen_by_person": step_of_person(failure),
        "may_write": request.membership.may(Role.ENGINEER),
    }
    return render(request, "evals/step_search.html", context | _job(search))


@project_view()
def status(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    """The fragment that polls itself; once the job has ended, the whole page is reloaded."""
    search = get_object_or_404(searches_of(project), pk=pk)
    return progress(request, "evals/_step_search_job.html", _job(search), runs=search.is_active)


@project_view()
def of_failure(request: HttpRequest, project: Project, pk: int) -> HttpResponse:
    """The fragment of a failure's page: its newest search."""
    failure = get_object_or_404(Failure, project=project, pk=pk)
    search = searches_of(project).filter(failure=failure).first()
    context: dict[str, Any] = {"failure": failure, "search": search}
    if search:
        context["values"], context["verdict"] = results.found(search)
    return render(request, "evals/_failure_searches.html", context)


def _job(search: StepSearch) -> dict[str, Any]:
    logs = JobLog.objects.filter(job=search.pk).order_by("-pk")[:LOGS]
    used = results.used_of([search])[search.pk]
    return {"search": search, "run": search, "logs": logs, "used": used}
