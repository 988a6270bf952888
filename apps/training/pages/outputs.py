"""What the policy says to the same tasks at the start and at its checkpoints, side by side."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render

from apps.core.access import project_view
from apps.core.models import Project
from apps.core.paging import page_of
from apps.training import outputs
from apps.training.comparison import runs_of
from apps.training.models import TrainingRun
from apps.training.pages.examples import asked

SIZE = 15
SHOWN = 1_200  # characters of an output; its page has all of it


@project_view()
def compare(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    run = get_object_or_404(runs_of(project), pk=pk)
    return render(request, "training/outputs.html", {"run": run} | listed(request, run))


def listed(request: HttpRequest, run: TrainingRun) -> dict[str, Any]:
    filters = outputs.Filters.of(request.GET)
    steps = outputs.steps_of(run)
    chosen = outputs.choose(steps, filters)
    if chosen is None:
        return {"filters": filters, "chosen": None, "rows": []}
    found, counts = outputs.rows_of(run, chosen, filters)
    page = page_of(request, found, SIZE)
    outputs.fill(page.object_list)
    return {
        "filters": filters, "chosen": chosen, "steps": steps, "page": page,
        "rows": [row_of(row, chosen) for row in page.object_list],
        "changes": [(name, label, counts[name]) for name, label in outputs.CHANGES.items()],
        "columns": [(step, title_of(step, chosen)) for step in chosen.columns],
    }  # fmt: skip


def title_of(step: int, chosen: outputs.Chosen) -> str:
    return "Baseline" if step == chosen.baseline else "This checkpoint" if step == chosen.at else "Earlier"


def row_of(row: outputs.Row, chosen: outputs.Chosen) -> dict[str, Any]:
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
            "diff": diff if step == chosen.at else None,
        }
        for step in chosen.columns
    ]
    return {"row": row, "task": task, "asked": asked(task.messages), "cells": cells, "trains": shown_in_training(shown)}


def shown_in_training(shown: dict[int, Any]) -> bool:
    return any(sample.task.split == "train" for sample in shown.values())
