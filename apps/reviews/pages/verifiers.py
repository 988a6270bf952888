"""A verifier's page: its spec, versions, probes, reviews, and where it is used."""

from __future__ import annotations

import re
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_POST

from apps.core.access import project_view
from apps.core.http import progress
from apps.core.jobs import cancel
from apps.core.models import Project, Role
from apps.environments.models import EnvironmentKind, Verifier
from apps.environments.reward_models import measured_of, models_in
from apps.evals.models import Task
from apps.reviews import rescoring, specs
from apps.reviews.actions import environment_locks, lock_state
from apps.reviews.forms import ProbeForm
from apps.reviews.lock import ReviewError
from apps.reviews.models import ProbeRun
from apps.reviews.waivers import waive

ELSEWHERE = (EnvironmentKind.REMOTE, EnvironmentKind.MCP, EnvironmentKind.OPENENV)
UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@project_view()
def detail(request: HttpRequest, project: Project, pk: int) -> HttpResponse:
    verifier = get_object_or_404(
        Verifier.objects.select_related("created_by"), project=project, pk=pk
    )
    versions = list(
        project.verifiers.filter(name=verifier.name)
        .select_related("created_by")
        .order_by("-version")
    )
    before = next((row for row in versions if row.version < verifier.version), None)
    rest, code, field = specs.split_code(verifier.spec)
    environments = list(verifier.environments.select_related("verifier", "project"))
    locks = environment_locks(environments)
    return render(
        request,
        "reviews/verifier.html",
        {
            "verifier": verifier,
            "versions": versions,
            "before": before,
            "lines": list(specs.diff(before.spec, verifier.spec)) if before else [],
            "spec": specs.shown(rest),
            "code": code,
            "field": field,
            "lock": lock_state(verifier),
            "reward_models": [(version, measured_of(version)) for version in models_in(verifier)],
            "environments": [(environment, locks[environment.pk]) for environment in environments],
            "others": (
                project.environments.current()
                .exclude(kind__in=ELSEWHERE)
                .order_by("-created_at")[:5]
            ),
            "probe_form": ProbeForm(verifier),
            "probe": verifier.probe_runs.first(),
            "reviews": verifier.reviews.select_related("created_by"),
        },
    )


@require_POST
@project_view(Role.ENGINEER)
def run_probe(request: HttpRequest, project: Project, pk: int) -> HttpResponse:
    verifier = get_object_or_404(Verifier, project=project, pk=pk)
    form = ProbeForm(verifier, request.POST)
    if not form.is_valid():
        of_cheat = [
            str(error[0]) for name, error in form.errors.items() if name.startswith("cheat_")
        ]
        usual = (
            "Choose an environment that uses this verifier, and a set whose tasks the probes use."
        )
        messages.error(request, " ".join(of_cheat) or usual)
        return redirect("reviews:verifier", project.slug, pk)
    try:
        run = rescoring.submit_probe(**form.cleaned_data, by=request.user)
    except rescoring.RescoringError as error:
        messages.error(request, str(error))
        return redirect("reviews:verifier", project.slug, pk)
    return redirect("reviews:probe", project.slug, run.pk)


@project_view()
def probe(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    run = get_object_or_404(
        ProbeRun.objects.select_related("verifier", "environment", "eval_set"),
        project=project,
        pk=pk,
    )
    keys = {
        str(pk): key
        for pk, key in Task.objects.filter(pk__in=run.spec.get("tasks", [])).values_list(
            "pk", "key"
        )
    }
    applied, idle = by_use(run.result)
    context = {
        "run": run,
        "report": run.result,
        "findings": grouped(run.result, keys),
        "waivers": run.waivers.select_related("by"),
        "applied": applied,
        "idle": idle,
    }
    return render(request, "reviews/probe.html", context)


def grouped(report: dict[str, Any], keys: dict[str, str]) -> list[tuple[str, list[dict[str, Any]]]]:
    """A report's findings by probe, in the order of the worst of each; tasks by their keys."""
    found: dict[str, list[dict[str, Any]]] = {}
    for finding in report.get("failed", []):
        named = {part: _with_keys(finding.get(part), keys) for part in ("task", "what", "reason")}
        found.setdefault(finding["probe"].replace("_", " "), []).append(finding | named)
    return list(found.items())


def _with_keys(text: Any, keys: dict[str, str]) -> str:
    return UUID.sub(lambda one: keys.get(one[0], one[0]), str(text or ""))


def by_use(report: dict[str, Any]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """A report's probes: those that ran, failed ones first, and those that do not apply to this
    verifier and its tasks.
    """
    rows = [one | {"name": one["name"].replace("_", " ")} for one in report.get("probes", [])]
    applied = [one for one in rows if one["status"] != "not_applicable"]
    idle = [one for one in rows if one["status"] == "not_applicable"]
    return sorted(applied, key=lambda one: one["status"] != "failed"), idle


@project_view()
def probe_status(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    run = get_object_or_404(ProbeRun, project=project, pk=pk)
    return progress(request, "reviews/_probe_status.html", {"run": run}, runs=run.is_active)


@require_POST
@project_view(Role.ENGINEER)
def cancel_probe(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    run = get_object_or_404(ProbeRun, project=project, pk=pk)
    if not cancel(run, by=request.user):
        messages.info(request, "These probes have already finished.")
    return redirect("reviews:probe", project.slug, pk)


@require_POST
@project_view(Role.OWNER)
def waive_probe(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    run = get_object_or_404(ProbeRun.objects.select_related("project"), project=project, pk=pk)
    try:
        waive(
            run=run,
            probe=request.POST.get("probe", ""),
            reason=request.POST.get("reason", ""),
            by=request.user,
        )
    except ReviewError as error:
        messages.error(request, str(error))
    return redirect("reviews:probe", project.slug, pk)
