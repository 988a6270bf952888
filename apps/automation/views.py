from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any
from uuid import UUID

from django.contrib import messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.views.decorators.http import require_POST

from apps.automation import actions, starts, words
from apps.automation.dry_run import dry_run, forecast
from apps.automation.editor import Editor
from apps.automation.examples import EXAMPLES, example_of, filled
from apps.automation.models import Flow, FlowRun, FlowStep, RunState, StepState
from apps.automation.specs import FlowError, FlowSpec, write_yaml
from apps.automation.steps import jobs_of, used
from apps.core.access import project_view
from apps.core.diffing import changed_lines
from apps.core.http import progress
from apps.core.models import Project, Role
from apps.core.paging import page_of
from apps.core.query import FLAG, PAGE_NUMBER
from apps.core.routes import TOTALS, WHEN_EVALUATED, shows
from apps.teamwork.assigning import assigned_to

UTC = "UTC"
RECENT = 20  # runs on the list of flows


def _flow(project: Project, pk: str) -> Flow:
    return get_object_or_404(actions.with_newest(Flow.objects.filter(project=project)), pk=pk)


def _run(project: Project, pk: str) -> FlowRun:
    return get_object_or_404(
        FlowRun.objects.select_related("version__flow", "version__created_by", "created_by"),
        project=project,
        pk=pk,
    )


@project_view(query={"page": PAGE_NUMBER})
def listing(request: HttpRequest, project: Project) -> HttpResponse:
    page = page_of(request, actions.with_newest(project.flows.all()))
    last = FlowRun.objects.filter(version__flow__in=[flow.pk for flow in page])
    last = (
        last.order_by("version__flow_id", "-created_at")
        .distinct("version__flow_id")
        .select_related("version")
    )
    newest = {run.version.flow_id: run for run in last}
    return render(
        request,
        "automation/list.html",
        {
            "flows": [_listed(flow, newest.get(flow.pk)) for flow in page],
            "page": page,
            "runs": _runs(project)[:RECENT],
            "examples": EXAMPLES,
        },
    )


def _listed(flow: Flow, last: FlowRun | None) -> dict[str, Any]:
    spec = flow.version.readable
    zone = spec.timezone if spec else UTC
    return {"flow": flow, "starts": words.starts_of(spec), "last": last, "zone": zone}


def _runs(project: Project) -> QuerySet[FlowRun]:
    return project.flow_runs.select_related("version__flow", "created_by")


@project_view(query={"state": RunState.values, "flow": UUID, "mine": FLAG, "page": PAGE_NUMBER})
def runs(request: HttpRequest, project: Project) -> HttpResponse:
    """All runs of the project's flows, filtered by ?state=waiting, ?flow=ID and ?mine=1."""
    rows, state, flow = _runs(project), request.GET.get("state", ""), request.GET.get("flow", "")
    if mine := bool(request.GET.get("mine")):
        rows = rows.filter(pk__in=assigned_to(request.user, FlowRun))
    if state in RunState.values:
        rows = rows.filter(state=state)
    with suppress(ValueError):
        rows = rows.filter(version__flow=UUID(flow)) if flow else rows
    context = {
        "page": page_of(request, rows),
        "states": RunState.choices,
        "state": state,
        "flow": flow,
        "mine": mine,
        "flows": project.flows.values_list("pk", "name")[: RECENT * 10],
    }
    return render(request, "automation/runs.html", context)


@project_view(query={"page": PAGE_NUMBER})
def flow(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    row = _flow(project, pk)
    spec, versions = row.version.readable, list(row.versions.select_related("created_by"))
    texts = [write_yaml(version.spec) for version in versions]
    changed = [
        list(changed_lines(before.splitlines(), after.splitlines()))
        for after, before in zip(texts, [*texts[1:], ""], strict=True)
    ]
    return render(
        request,
        "automation/flow.html",
        {
            "flow": row,
            "spec": spec,
            "starts": words.starts_of(spec),
            "steps": words.steps_of(spec),
            "limits": words.limits_of(spec),
            "zone": spec.timezone if spec else UTC,
            "coming": starts.coming(spec, timezone.now()) if spec and row.enabled else [],
            "calls": words.is_called(spec),
            "page": page_of(
                request,
                FlowRun.objects.filter(version__flow=row).select_related("version", "created_by"),
            ),
            "versions": list(zip(versions, changed, strict=True)),
        },
    )


@project_view(Role.OPERATOR, query={"from": [one.slug for one in EXAMPLES]})
def new(request: HttpRequest, project: Project) -> HttpResponse:
    example = example_of(request.GET.get("from", "")) or EXAMPLES[0]
    template = filled(example, project)
    shown = Editor.of_text(project, template.text)
    return _edit(request, project, None, example.name, shown, missing=template.missing)


@project_view(Role.OPERATOR)
def edit(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    row = _flow(project, pk)
    return _edit(request, project, row, row.name, Editor.of_value(project, row.version.spec))


def _edit(
    request: HttpRequest,
    project: Project,
    row: Flow | None,
    name: str,
    shown: Editor,
    missing: Sequence[str] = (),
) -> HttpResponse:
    wrong_name = ""
    if request.method == "POST":
        name, shown = request.POST.get("name", ""), Editor.sent(project, request.POST)
        try:
            saved = actions.save_flow(
                project=project, name=name, spec=shown.spec(), by=request.user, flow=row
            )
        except FlowError as error:
            if error.field == "name":
                wrong_name = str(error)
            else:
                shown = shown.with_error(error)
        else:
            messages.success(request, f"Version {saved.versions.count()} of “{saved}” saved.")
            for step in forecast(project, saved.version.form):
                if step.problem:
                    sentence = step.sentence.rstrip(".")
                    messages.warning(request, f"It would fail at {step.key} now: {sentence}.")
            return redirect("automation:flow", project.slug, saved.pk)
    context = {
        "flow": row,
        "name": name,
        "wrong_name": wrong_name,
        "editor": shown,
        "examples": EXAMPLES,
        "missing": missing if request.method == "GET" else (),
        "kinds": words.KINDS,
    }
    return render(request, "automation/edit.html", context)


@require_POST
@project_view(Role.OPERATOR)
def editor(request: HttpRequest, project: Project) -> HttpResponse:
    """The editor after one of its buttons: a part added, removed or moved, or the view switched."""
    shown = Editor.sent(project, request.POST).after(request.POST.get("act", ""), request.POST)
    return render(request, "automation/_editor.html", {"editor": shown})


@require_POST
@project_view(Role.OPERATOR)
def check(request: HttpRequest, project: Project) -> HttpResponse:
    """What the edited flow would do: the dry run next to the editor."""
    try:
        spec = Editor.sent(project, request.POST).spec()
    except FlowError as error:
        return render(request, "automation/_dry_run.html", {"error": str(error)})
    return render(request, "automation/_dry_run.html", {"found": dry_run(project, spec)})


@project_view()
def try_it(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    try:
        spec = _flow(project, pk).version.form
    except FlowError as error:
        return render(request, "automation/_dry_run.html", {"error": str(error)})
    return render(request, "automation/_dry_run.html", {"found": dry_run(project, spec)})


@require_POST
@project_view(Role.ENGINEER)
def run_now(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    row = _flow(project, pk)
    try:
        run = actions.run_now(flow=row, by=request.user)
    except FlowError as error:
        messages.error(request, str(error))
        return redirect("automation:flow", project.slug, pk)
    return redirect("automation:run", project.slug, run.pk)


@require_POST
@project_view(Role.OPERATOR)
def secret(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    row = _flow(project, pk)
    return render(
        request,
        "automation/secret.html",
        {"flow": row, "secret": actions.make_secret(flow=row, by=request.user)},
    )


@require_POST
@project_view(Role.OPERATOR)
def delete(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    row = _flow(project, pk)
    try:
        actions.delete(flow=row, by=request.user)
    except FlowError as error:
        messages.error(request, str(error))
        return redirect("automation:flow", project.slug, pk)
    messages.success(request, f"“{row.name}” deleted. What its runs created is kept.")
    return redirect("automation:list", project.slug)


@shows(TOTALS, WHEN_EVALUATED)
@project_view()
def run(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    return render(request, "automation/run.html", _timeline(_run(project, pk)))


@shows(TOTALS, WHEN_EVALUATED)
@project_view()
def run_status(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    row = _run(project, pk)
    return progress(request, "automation/_timeline.html", _timeline(row), runs=row.is_open)


def _timeline(row: FlowRun) -> dict[str, Any]:
    spec, steps = row.version.readable, list(row.steps.all())
    shown = [_shown(step, spec) for step in steps]
    waiting = next(
        (step for step in steps if step.state == StepState.WAITING and step.kind == "ask"), None
    )
    return {
        "run": row,
        "steps": shown,
        "asks": waiting,
        "seconds": sum(one["seconds"] for one in shown),
        "usd": sum(one["usd"] for one in shown),
        "zone": spec.timezone if spec else UTC,
    }


def _shown(step: FlowStep, spec: FlowSpec | None) -> dict[str, Any]:
    going, jobs = step.state in (StepState.RUNNING, StepState.WAITING), jobs_of(step)
    seconds, usd = used(step) if going else (0.0, 0.0)
    slug = step.run.project.slug
    has_one_reason = step.state == StepState.FAILED and len(step.failures) == 1
    shown = [] if has_one_reason else step.failures
    failures = [(datetime.fromisoformat(one["at"]), one["said"]) for one in shown]
    return {
        "step": step,
        "going": step.state == StepState.RUNNING and bool(step.jobs),
        "label": step.asked(spec).label if spec else step.kind,
        "name": step.key if step.key != step.kind else "",
        "given": words.given(step.asked(spec)) if spec else [],
        "links": [words.link_of(job, slug) for job in jobs],
        "made": words.made(step),
        "rows": words.rows_of(step),
        "seconds": step.seconds + seconds,
        "usd": step.usd + usd,
        "attempts": words.attempts_of(step, spec),
        "failures": failures,
        "said": "" if failures and not going else step.said,
    }
