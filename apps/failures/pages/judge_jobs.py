"""Pages of the rubric's examples, of measurements of the judge, and of searches for a better
rubric.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render

from apps.core.access import project_view
from apps.core.diffing import changed_lines
from apps.core.http import progress
from apps.core.models import Project, Role
from apps.core.operations import NOT_DONE, submitted
from apps.core.routes import RUNS, shows
from apps.failures.actions.judge import STOPPED, set_examples
from apps.failures.judge import people, rubrics
from apps.failures.judge.examples import offered
from apps.failures.models import JudgeMeasurement, Rubric, RubricSearch
from apps.trajectories.shown import runs_shown

# (measure, its title, whether less is better)
MEASURES = (
    ("agreement", "Agrees with people", False),
    ("recall", "Failures found", False),
    ("false_alarms", "False alarms", True),
    ("same_mode", "Same mode", False),
    ("step", "Exact step", False),
    ("near", "Within one step", False),
)


def _measurement(request: HttpRequest, project: Project, pk: UUID) -> dict[str, Any]:
    rows = JudgeMeasurement.objects.select_related("created_by", "project", "rubric")
    job = get_object_or_404(rows, project=project, pk=pk)
    is_of_rubrics = job.kind == job.Kind.RUBRICS
    titles = dict(Rubric.Strategy.choices)
    variants = [
        row | {"title": row["name"] if is_of_rubrics else titles[row["name"]]}
        for row in job.result.get("variants", [])
    ]
    return {
        "job": job,
        "run": job,
        "variants": variants,
        "measures": [
            {
                "title": title,
                "cells": [
                    (variant["shares"][name], _tone(variant["differences"].get(name), is_less))
                    for variant in variants
                ],
            }
            for name, title, is_less in MEASURES
            if variants
            and name in variants[0]["shares"]
            and (is_of_rubrics or name != "agreement")  # all runs failed
        ],
        "better": titles.get(job.result.get("better", "")),
        "resumable": job.state in STOPPED,
        "used": rubrics.current(project),
        "old": job.spec["variants"][0] if is_of_rubrics else None,
        "new": job.spec["variants"][-1] if is_of_rubrics else None,
        "operator": request.membership.may(Role.OPERATOR),
        "writes": request.membership.may(Role.ENGINEER),
    }


def _tone(difference: list[float] | None, is_less: bool) -> dict[str, Any] | None:
    """A difference in points, and whether its interval shows that it is better or worse."""
    if difference is None:
        return None
    value, low, high = difference
    better, worse = (high < 0, low > 0) if is_less else (low > 0, high < 0)
    tone = "good" if better else "bad" if worse else ""
    return {"value": value, "low": low, "high": high, "tone": tone}


@project_view()
def measurement(request: HttpRequest, project: Project, pk: UUID) -> HttpResponse:
    context = _measurement(request, project, pk)
    return render(request, "failures/judge_measurement.html", context)


@project_view()
def measurement_status(request: HttpRequest, project: Project, pk: UUID) -> HttpResponse:
    context = _measurement(request, project, pk)
    return progress(request, "_job.html", context, runs=context["job"].is_active)


def _search(request: HttpRequest, project: Project, pk: UUID) -> dict[str, Any]:
    rows = RubricSearch.objects.select_related("created_by", "project", "rubric")
    job = get_object_or_404(rows, project=project, pk=pk)
    # those of a search that failed are in its cursor
    candidates = job.result.get("candidates") or job.cursor.get("candidates", [])
    prompts = {row["number"]: row["prompt"] for row in candidates}
    return {
        "job": job,
        "run": job,
        "candidates": [
            row | {"lines": list(_changed(prompts.get(row["parent"], ""), row["prompt"]))}
            for row in reversed(candidates)
        ],
        "made": project.rubrics.filter(search=job).first(),
        "current": rubrics.current(project),
        "resumable": job.state in STOPPED,
        "writes": request.membership.may(Role.ENGINEER),
    }


def _changed(before: str, after: str) -> Any:
    return changed_lines(before.splitlines(), after.splitlines())


@project_view()
def search(request: HttpRequest, project: Project, pk: UUID) -> HttpResponse:
    return render(request, "failures/rubric_search.html", _search(request, project, pk))


@project_view()
def search_status(request: HttpRequest, project: Project, pk: UUID) -> HttpResponse:
    context = _search(request, project, pk)
    return progress(request, "_job.html", context, runs=context["job"].is_active)


@shows(RUNS)
@project_view(Role.OPERATOR)
def examples(request: HttpRequest, project: Project) -> HttpResponse:
    form, returned = submitted(request, set_examples)
    if isinstance(returned, HttpResponse):
        return returned
    if returned is not NOT_DONE:
        text = f"Version {returned.version} has these examples. Compare it before you use it."
        messages.success(request, text)
        return redirect("failures:rubric", project.slug)
    context = {"form": form} | _examples(request, project)
    return render(request, "failures/rubric_examples.html", context)


def _examples(request: HttpRequest, project: Project) -> dict[str, Any]:
    last = project.rubrics.first()
    kept = list(last.examples.select_related("trajectory")) if last else []
    runs = {row.trajectory_id for row in kept}
    decided = people.decisions(project)
    offers = [row for row in offered(project, decided) if row.decision.run not in runs]
    shown = [*runs, *(row.decision.run for row in offers)]
    runs_shown(project, shown, to=request.user, where="examples of the judge's rubric")
    return {
        "newest": last,
        "kept": kept,
        "offers": offers,
        "most": rubrics.MOST_EXAMPLES,
        "counts": people.Counts.of(decided),
        "modes": {mode.slug: mode.name for mode in project.failure_modes.all()},
    }
