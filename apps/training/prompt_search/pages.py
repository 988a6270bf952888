"""The pages of prompt searches: all of them, a new one, one with its candidates."""

from __future__ import annotations

from itertools import accumulate
from typing import Any
from uuid import UUID

from django.contrib import messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_POST

from apps.core.access import project_view
from apps.core.charts import lines
from apps.core.diffing import changed_lines
from apps.core.gepa import absent
from apps.core.http import progress
from apps.core.models import JobLog, Project, Role
from apps.core.paging import page_of
from apps.core.query import KEY, PAGE_NUMBER
from apps.core.routes import SIDES, shows
from apps.evals.actions import HoldoutLeak
from apps.evals.holdout.view_log import record_refusal
from apps.registry.actions import ModelError
from apps.registry.engines import in_words
from apps.reviews.actions import TrainingLocked
from apps.training.actions import TrainingError
from apps.training.models import PromptCandidate, PromptSearch
from apps.training.prompt_search import actions
from apps.training.prompt_search.forms import SearchForm
from apps.training.prompt_search.job import save_prompt
from workers.lib.typed import FormError

MOST_POINTS = 2_000
LIMITS = ("most_usd", "most_tokens")
OTHER_LABELS = {
    "most_characters": "Max characters per prompt",
    "reflection_tokens": "Max tokens per proposal",
}
NEEDS = {
    "version": ("a model version", "registry:register"),
    "eval_set": ("a frozen eval set", "evals:list"),
    "environment": ("an environment", "environments:list"),
    "server": ("a server whose model writes proposals", "registry:servers"),
}


def _searches(project: Project) -> QuerySet[PromptSearch]:
    return PromptSearch.objects.filter(project=project).select_related(
        "version",
        "model_version",
        "dataset__eval_set",
        "environment__verifier",
        "created_by",
        "project",
    )


@project_view(query={"page": PAGE_NUMBER})
def listing(request: HttpRequest, project: Project) -> HttpResponse:
    return render(
        request, "training/prompt_search/list.html", {"page": page_of(request, _searches(project))}
    )


@shows(SIDES)
@project_view(Role.ENGINEER, query={"version": KEY, "eval_set": UUID, "environment": KEY})
def new(request: HttpRequest, project: Project) -> HttpResponse:
    form = SearchForm(project, request.POST or None, initial=_initial(request))
    if request.method == "POST" and form.is_valid():
        try:
            search = actions.submit_search(project=project, by=request.user, **form.wanted())
        except (TrainingError, TrainingLocked) as error:
            record_refusal(project, error, by=request.user)
            form.add_error(None, str(error))
        else:
            return redirect("training:search", project.slug, search.pk)
    missing = [words for name, words in NEEDS.items() if not form.fields[name].queryset.exists()]
    context = {
        "form": form,
        "missing": missing,
        "absent": absent(),
    }
    return render(request, "training/prompt_search/new.html", context)


def _initial(request: HttpRequest) -> dict[str, str]:
    """The values that the advisor's link sets."""
    return {
        name: request.GET[name]
        for name in ("version", "eval_set", "environment")
        if request.GET.get(name)
    }


@project_view(query={"page": PAGE_NUMBER})
def detail(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    search = get_object_or_404(_searches(project), pk=pk)
    resumable = search.state in actions.RESUMABLE
    context = live(request, search) | {
        "resumable": resumable,
        "engine": in_words(search.spec["engine"], search.version),
        "settings": settings_in_words(search.spec["config"]),
    }
    return render(request, "training/prompt_search/detail.html", context)


def settings_in_words(config: dict[str, Any]) -> list[tuple[str, Any]]:
    """(label, value) as the form words them; 0 stands for no limit."""
    labels = {
        name: field.label for name, field in SearchForm.base_fields.items() if field.label
    } | OTHER_LABELS
    return [
        (
            labels.get(name, name.replace("_", " ").capitalize()),
            "no limit" if not value and name in LIMITS else value,
        )
        for name, value in config.items()
    ]


@project_view(query={"page": PAGE_NUMBER})
def status(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    """The fragment that a running search's page polls; when it has ended, the whole page is
    reloaded.
    """
    search = get_object_or_404(_searches(project), pk=pk)
    return progress(
        request, "training/prompt_search/_status.html", live(request, search), runs=search.is_active
    )


def live(request: HttpRequest, search: PromptSearch) -> dict[str, Any]:
    page = page_of(request, search.candidates.order_by("-number"), 20)
    rows = list(page.object_list)
    parents = search.candidates.filter(
        number__in={row.parent for row in rows if row.parent is not None}
    )
    prompts = dict(parents.values_list("number", "prompt"))
    for row in rows:
        row.lines = list(
            changed_lines(prompts.get(row.parent, "").splitlines(), row.prompt.splitlines())
        )
    page.object_list = rows
    scored = search.candidates.exclude(state=PromptCandidate.State.REJECTED)
    points = [
        point
        for point in scored.values_list("calls", "score", "number")[:MOST_POINTS]
        if point[1] is not None
    ]
    best = max(points, key=lambda point: (point[1], -point[2]), default=None)
    return {
        "search": search,
        "run": search,
        "page": page,
        "figure": _curve(points) if len(points) > 1 else None,
        "start": next((point for point in points if not point[2]), None),
        "best": best,
        "logs": JobLog.objects.filter(job=search.pk).order_by("-pk")[:30],
    }


def _curve(points: list[tuple[int, float, int]]) -> dict:
    calls, scores = [point[0] for point in points], [point[1] for point in points]
    series = {"best so far": (calls, list(accumulate(scores, max))), "candidates": (calls, scores)}
    figure = lines(series, "Validation score by agent calls", x="calls", y="score")
    for trace, changes in zip(
        figure["data"],
        ({"mode": "lines", "line": {"shape": "hv"}}, {"mode": "markers", "marker": {"size": 7}}),
        strict=True,
    ):
        trace.update(
            {
                name: {**trace[name], **value} if isinstance(value, dict) else value
                for name, value in changes.items()
            }
        )
    return figure


@shows(SIDES)
@require_POST
@project_view(Role.ENGINEER)
def save(request: HttpRequest, project: Project, pk: str, number: int) -> HttpResponse:
    """Save one candidate as a prompt version, even if the search was stopped."""
    search = get_object_or_404(_searches(project), pk=pk)
    candidate = get_object_or_404(search.candidates, number=number)
    try:
        version = save_prompt(search, candidate.prompt, number=candidate.number, by=request.user)
    except (HoldoutLeak, ModelError, FormError) as error:
        record_refusal(project, error, by=request.user)
        messages.error(request, str(error))
        return redirect("training:search", project.slug, pk)
    messages.success(request, f"Saved as {version}. Evaluate it on a hold-out next.")
    return redirect(version)
