"""One task of a comparison in full: a sample of each of two evaluations side by side, and their
differences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse

from apps.core.access import project_view
from apps.core.forms import whole
from apps.core.models import Project
from apps.core.query import KEY, whole_number
from apps.core.routes import shows
from apps.evals.comparison.tables import read
from apps.evals.comparison.tasks import REGRESSED, TaskRow, TaskTable
from apps.evals.holdout.view_log import view_count
from apps.evals.models import EvalRun, Sample, Task
from apps.evals.pages.compare import OF_COMPARISON, chosen_of, filters_of, query_of
from apps.evals.pages.runs import may_see
from apps.evals.pages.samples import scored_output
from apps.evals.samples.transcript import answered, changes, opening
from apps.trajectories.pages.comparison import align
from apps.trajectories.pages.transcript import fit, turns_of


@dataclass
class Side:
    """An evaluation with its samples of the task, one of which is shown."""

    number: int
    run: EvalRun
    samples: list[Sample]
    shown: Sample
    whole: dict[str, Any]


@shows("a held-out task and outputs on it, once the person has opened them")
@project_view(query=OF_COMPARISON | {"with": whole_number(1), "a": KEY, "b": KEY})
def compared_task(request: HttpRequest, project: Project, task: str) -> HttpResponse:
    """The page; for htmx (j and k) only this task's part. A held-out task first has to be
    opened.
    """
    runs = chosen_of(project, request.GET.getlist("run"))
    named = get_object_or_404(Task, project=project, pk=task)
    query = query_of(runs)
    if len(runs) < 2:
        return redirect(f"{reverse('evals:compare', args=[project.slug])}?{query}")
    if closed := [run for run in runs if not may_see(request, run)]:
        context = {
            "runs": runs,
            "closed": closed,
            "looks": view_count(closed[0].eval_set),
            "task_id": task,
        }
        context["given"] = filters_of(request.GET, runs)
        return render(request, "evals/compared_closed.html", context)
    tables = read(runs)
    number = tables.places.get(str(named.pk))
    if number is None:
        raise Http404("None of these evaluations has this task.")
    table = TaskTable(tables, filters_of(request.GET, runs))
    row = table.row(number)
    context = (
        sides_of(request, runs, row)
        | around(table, number)
        | {
            "runs": runs,
            "row": row,
            "query": query,
        }
    )
    response = render(
        request, f"evals/{'_compared_task' if request.htmx else 'compared_task'}.html", context
    )
    response["Cache-Control"] = "private, no-cache"
    response["Vary"] = "HX-Request"
    return response


def around(table: TaskTable, number: int) -> dict[str, Any]:
    """The tasks before and after this one in the list of the URL's filters."""
    numbers, ids = [other for _, other in table.order], table.tables.ids
    at = numbers.index(number) if number in numbers else None
    return {
        "given": table.given,
        "filters": table.given.query,
        "previous": ids[numbers[at - 1]] if at else None,
        "next": ids[numbers[at + 1]] if at is not None and at + 1 < len(numbers) else None,
        "number": None if at is None else at + 1,
        "count": len(numbers),
    }


def sides_of(request: HttpRequest, runs: Sequence[EvalRun], row: TaskRow) -> dict[str, Any]:
    """The baseline and the evaluation of `with`, or else the one that changed most. `a` and `b`
    name a sample of each.
    """
    with_task = [number for number, cell in enumerate(row.cells) if cell and cell.n + cell.masked]
    first = with_task[0]
    chosen = whole(request.GET.get("with"), 1, len(runs))
    if chosen and chosen - 1 in with_task and chosen - 1 != first:
        second = chosen - 1
    else:
        second = max(
            (n for n in with_task if n != first),
            key=lambda n: distance(row, first, n),
            default=None,
        )
    falls = second is not None and (row.cells[second].rate or 0) < (row.cells[first].rate or 0)
    a = side(runs, row, first, request.GET.get("a"), passing=falls or row.change == REGRESSED)
    found: dict[str, Any] = {"a": a, "others": [n + 1 for n in with_task if n != first]}
    if second is None:
        return found | {"b": None}
    b = side(runs, row, second, request.GET.get("b"), passing=not falls)
    turns = [turns_of(answered(one.shown), one.whole["tools"]) for one in (a, b)]
    prompts = [opening(one.run) for one in (a, b)]
    pairs = list(align(*turns))
    fit([*turns[0], *turns[1]])
    return found | {
        "b": b,
        "pairs": pairs,
        "changes": changes(answered(a.shown), answered(b.shown)),
        "prompt_changes": changes(*prompts) if prompts[0] != prompts[1] else [],
    }


def distance(row: TaskRow, one: int, other: int) -> float:
    return abs((row.cells[one].rate or 0.0) - (row.cells[other].rate or 0.0))


def side(
    runs: Sequence[EvalRun], row: TaskRow, number: int, asked: str | None, *, passing: bool
) -> Side:
    """With the requested sample, or else one that passed, or failed, according to the change."""
    run = runs[number]
    samples = list(
        run.samples.filter(task=row.cells[number].task)
        .order_by("index")
        .only(
            "pk",
            "run",
            "task",
            "index",
            "success",
            "masked",
            "unsafe",
            "valid",
            "truncated",
            "mask_reason",
        )
    )
    if not samples:  # it had some a moment ago
        raise Http404("This evaluation has been deleted.")
    wanted = whole(asked)
    shown = next(
        (one for one in samples if one.pk == wanted),
        min(samples, key=lambda one: (one.masked, one.success != passing, one.index)),
    )
    full = get_object_or_404(run.samples.select_related("task__trajectory"), pk=shown.pk)
    full.run = run
    return Side(number + 1, run, samples, full, scored_output(full))
