"""The policy's outputs for the same tasks at the start and at checkpoints, side by side."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils.html import format_html
from django.views.decorators.http import require_POST

from apps.core.access import project_view
from apps.core.forms import whole
from apps.core.models import Project, Role
from apps.core.paging import page_of
from apps.core.query import PAGE_NUMBER, whole_number
from apps.training import judged_outputs, outputs
from apps.training.comparison import runs_of
from apps.training.models import TrainingRun
from apps.training.pages.examples import asked

SIZE = 15
SHOWN = 1_200  # characters shown of an output; its page shows all of it


OF_OUTPUTS = {
    "at": whole_number(0, 2**31 - 1),
    "than": whole_number(0, 2**31 - 1),
    "change": outputs.CHANGES,
    "q": None,
    "page": PAGE_NUMBER,
}


@project_view(query=OF_OUTPUTS)
def compare(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    run = get_object_or_404(runs_of(project), pk=pk)
    return render(request, "training/outputs.html", {"run": run} | listed(request, run))


@require_POST
@project_view(Role.ENGINEER)
def send(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    """Send a sample of a step's outputs, or one rollout, to the queue of the reward review."""
    run = get_object_or_404(runs_of(project), pk=pk)
    step, number = (
        whole(request.POST.get("step"), 0, 2**31 - 1),
        whole(request.POST.get("rollout"), 0, 2**63 - 1),
    )
    try:
        review, new = judged_outputs.send(run=run, by=request.user, step=step, number=number)
    except judged_outputs.NothingToSend as error:
        messages.error(request, str(error))
    else:
        link = format_html('<a href="{}">Open the review</a>', review.get_absolute_url())
        said = (
            f"{new} output{'' if new == 1 else 's'} sent to review."
            if new
            else "These outputs are already in the review."
        )
        messages.success(request, format_html("{} {}", said, link))
    if number is not None:
        return (
            redirect("training:rollout", project.slug, pk, number)
            if run.rollouts.filter(pk=number).exists()
            else redirect(run)
        )
    return redirect(
        f"{reverse('training:outputs', args=[project.slug, pk])}?{request.POST.get('query', '')[:500]}"  # noqa: E501
    )


def listed(request: HttpRequest, run: TrainingRun) -> dict[str, Any]:
    filters = outputs.Filters.of(request.GET)
    chosen = outputs.choice_for(run, filters)
    if chosen is None:
        return {"filters": filters, "chosen": None, "rows": []}
    found, counts = outputs.rows_of(run, chosen, filters)
    page = page_of(request, found, SIZE)
    outputs.fill(page.object_list)
    verdicts, judge = judged_outputs.verdicts_of(run), judged_outputs.judge_says(run)
    return {
        "filters": filters,
        "chosen": chosen,
        "steps": chosen.steps,
        "page": page,
        "rows": [row_of(row, chosen, verdicts, judge) for row in page.object_list],
        "changes": [(name, label, counts[name]) for name, label in outputs.CHANGES.items()],
        "reviews": judged_outputs.reviews_of(run),
        "columns": [(step, title_of(step, chosen)) for step in chosen.columns],
    }


def title_of(step: int, chosen: outputs.Chosen) -> str:
    return (
        "Baseline"
        if step == chosen.baseline
        else "This checkpoint"
        if step == chosen.at
        else "Earlier"
    )


def row_of(
    row: outputs.Row,
    chosen: outputs.Chosen,
    verdicts: dict[int, str],
    judge: dict[int, tuple[bool, str]],
) -> dict[str, Any]:
    shown = row.shown or {}
    old, new = shown.get(chosen.than), shown.get(chosen.at)
    diff = None
    if old is not None and new is not None and old.pk != new.pk:
        diff = outputs.words_changed(old.output[:SHOWN], new.output[:SHOWN])
    task = next(iter(shown.values())).task
    cells = [
        {
            "step": step,
            "sample": shown.get(step),
            "cell": row.cells.get(step),
            "verdict": verdicts.get(row.cells[step].first, "") if step in row.cells else "",
            "judge": judge.get(row.cells[step].first) if step in row.cells else None,
            "diff": diff if step == chosen.at else None,
        }
        for step in chosen.columns
    ]
    return {
        "row": row,
        "task": task,
        "asked": asked(task.messages),
        "cells": cells,
        "trains": shown_in_training(shown),
    }


def shown_in_training(shown: dict[int, Any]) -> bool:
    return any(sample.task.split == "train" for sample in shown.values())
