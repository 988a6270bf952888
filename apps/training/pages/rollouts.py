"""One rollout of a training run in full: request, output and expected answer, its reward, and its
effect on training.
"""

from __future__ import annotations

from statistics import fmean, stdev
from typing import Any

from django.db.models.functions import Left
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse

from apps.core.access import project_view
from apps.core.models import Project
from apps.core.paging import page_of
from apps.core.query import PAGE_NUMBER, whole_number
from apps.evals.pages.samples import part_of, scored_output
from apps.training.comparison import runs_of
from apps.training.models import Rollout, TrainingRun
from apps.training.rollouts import (
    OUTCOME,
    Filters,
    group_of,
    neighbours,
    rewards_of,
    same_task,
    standing,
    with_advantages,
)

SIZE, SHOWN = 20, 220
LISTED = (
    "run",
    "phase",
    "step",
    "index",
    "task__key",
    "reward",
    "components",
    "success",
    "valid",
    "unsafe",
    "masked",
    "mask_reason",
    "truncated",
)
OF_THE_STEP = (
    ("train/loss", "Loss"),
    ("train/reward_mean", "Reward, mean of the step"),
    ("train/kl", "KL to the start"),
    ("train/entropy", "Entropy"),
    ("train/logp_diff_mean", "|Δ log p| sampler to trainer, mean"),
    ("train/logp_diff_max", "|Δ log p| sampler to trainer, max"),
    ("train/clip_low", "Tokens clipped below"),
    ("train/clip_high", "Tokens clipped above"),
    ("train/grad_norm", "Gradient norm"),
    ("train/learning_rate", "Learning rate"),
)


OF_ROLLOUTS = {
    "phase": Rollout.Phase.values,
    "outcome": OUTCOME,
    "step": whole_number(0, 2**31 - 1),
    "q": None,
    "page": PAGE_NUMBER,
}


def listed(request: HttpRequest, run: TrainingRun) -> dict[str, Any]:
    """The rollouts selected by the URL."""
    chosen = Filters.of(request.GET)
    rows = (
        chosen.apply(run)
        .select_related("task")
        .only(*LISTED)
        .annotate(head=Left("output", SHOWN + 1))
    )
    page = page_of(request, rows, SIZE)
    page.object_list = with_advantages(run, page.object_list)
    return {
        "run": run,
        "page": page,
        "filters": chosen,
        "phases": Rollout.Phase.choices,
        "outcomes": [(value, label) for value, (label, _) in OUTCOME.items()],
    }


@project_view(query=OF_ROLLOUTS)
def rollouts(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    """The fragment with the filtered rollouts. Its URL is that of the page that shows them."""
    run = get_object_or_404(runs_of(project), pk=pk)
    page = reverse("training:detail", args=[project.slug, pk])
    if not request.htmx:
        return redirect(f"{page}?{request.GET.urlencode()}")
    context = listed(request, run)
    response = render(request, "training/_rollouts.html", context)
    response["HX-Push-Url"] = f"{page}?{context['filters'].query}"
    return response


@project_view(query=OF_ROLLOUTS | {"part": None})
def rollout(request: HttpRequest, project: Project, pk: str, number: int) -> HttpResponse:
    """The page, or for htmx (j and k) only the part about this rollout."""
    run = get_object_or_404(runs_of(project), pk=pk)
    row = get_object_or_404(run.rollouts.select_related("task__trajectory"), pk=number)
    row.run = run
    if (text := part_of(request, row)) is not None:
        return text
    context = {"run": run, "filters": (chosen := Filters.of(request.GET))} | context_of(row, chosen)
    response = render(
        request, f"training/{'_rollout' if request.htmx else 'rollout'}.html", context
    )
    response["Cache-Control"] = "private, no-cache"
    response["Vary"] = "HX-Request"
    return response


def context_of(row: Rollout, chosen: Filters) -> dict[str, Any]:
    run, group = row.run, group_of(row)
    earlier, later = neighbours(chosen, run, row)
    values = dict(run.metrics.filter(step=row.step).values_list("name", "value"))
    rewards = rewards_of(group)
    return scored_output(row) | {
        "group": group,
        "advantage": next(other.advantage for other in group if other.pk == row.pk),
        "turn_advantages": next(
            getattr(other, "turn_advantages", []) for other in group if other.pk == row.pk
        ),
        "standing": standing(row, group, "train/loss" in values),
        "mean": fmean(rewards) if rewards else None,
        "spread": stdev(rewards) if len(rewards) > 1 else None,
        "scaled": run.spec["config"].get("scale_rewards", "group") == "group",
        "step_values": [(title, values[name]) for name, title in OF_THE_STEP if name in values],
        "same_task": same_task(row),
        "previous": earlier,
        "next": later,
    }
