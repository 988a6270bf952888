"""The page of one task: its request, its expected answer, its origin, and how each evaluation did
on it.
"""

from __future__ import annotations

from typing import Any

from django.db.models import Avg, Count, Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_POST

from apps.core.access import project_view
from apps.core.models import Project, Role
from apps.core.routes import OUTPUTS, shows
from apps.evals.editing import TAGS, tags_of
from apps.evals.holdout.view_log import has_opened_task, record_task_view, view_count
from apps.evals.models import EvalRun, Sample, Task
from apps.evals.pages.runs import may_see
from apps.evals.proposals.same import seen_in
from apps.evals.samples.transcript import request_of
from workers.lib.messages import functions_of

EVALUATIONS, VARIANTS = 50, 20


@shows("a held-out task, once the person has opened it")
@project_view()
def task(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    """A held-out task first has to be opened."""
    row = get_object_or_404(
        Task.objects.select_related(
            "project", "eval_set", "trajectory", "confirmed_by", "variant_of__eval_set"
        ),
        project=project,
        pk=pk,
    )
    if not may_see_task(request, row):
        context = {"task": row, "eval_set": row.eval_set, "looks": view_count(row.eval_set)}
        return render(request, "evals/task_closed.html", context)
    return render(request, "evals/task.html", context_of(request, row))


def may_see_task(request: HttpRequest, row: Task) -> bool:
    """Of a hold-out, engineers who have opened it."""
    return row.split != "holdout" or (
        request.membership.may(Role.ENGINEER) and has_opened_task(row, by=request.user)
    )


@shows(OUTPUTS)
@require_POST
@project_view(Role.ENGINEER)
def open_task(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    """Opens a held-out task to this person: one view."""
    row = get_object_or_404(Task.objects.select_related("project"), project=project, pk=pk)
    record_task_view(row, by=request.user)
    return redirect("evals:task", project.slug, pk)


def context_of(request: HttpRequest, row: Task) -> dict[str, Any]:
    # The same request in other versions of its set, or in other sets, is the same task.
    alike = Task.objects.filter(
        project=row.project, canonical_hash=row.canonical_hash
    ).select_related("eval_set")
    runs = EvalRun.objects.select_related("model_version", "eval_set").in_bulk(
        Sample.objects.filter(task__in=alike.order_by())
        .order_by()
        .values_list("run", flat=True)
        .distinct()
    )
    newest = sorted(runs.values(), key=lambda run: run.created_at, reverse=True)[:EVALUATIONS]
    opened = [run for run in newest if may_see(request, run)]
    scores = (
        Sample.objects.filter(run__in=opened, task__in=alike.order_by())
        .order_by()
        .values("run", "task")
        .annotate(
            n=Count("pk", filter=Q(masked=False)),
            passed=Count("pk", filter=Q(success=True, masked=False)),
            reward=Avg("reward"),
        )
    )
    by_run = {score["run"]: score for score in scores}
    return {
        "task": row,
        "request_text": request_of(row.messages),
        "tool_lines": [
            (name, function.get("description") or "") for name, function in functions_of(row.tools)
        ],
        "metadata": {
            name: value for name, value in row.metadata.items() if name not in ("variant", TAGS)
        },
        "tags": tags_of(row.metadata),
        "also_in": [
            other
            for other in alike.order_by("eval_set__slug", "-eval_set__version")
            if other.pk != row.pk
        ],
        "seen": seen_in(row.project, [row.canonical_hash]).get(row.canonical_hash, 0),
        "variants": list(row.variants.select_related("eval_set").order_by("key")[:VARIANTS]),
        "results": [(run, by_run.get(run.pk)) for run in newest],
    }
