from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.views.decorators.http import require_POST

from apps.automation import actions, engine, starts, words
from apps.automation.dry_run import dry_run
from apps.automation.examples import EXAMPLES, example_of, filled
from apps.automation.models import Flow, FlowRun, FlowStep, StepState
from apps.automation.specs import LARGEST, FlowError, FlowSpec, read_yaml, write_yaml
from apps.automation.steps import jobs_of, used_by
from apps.core.access import project_view
from apps.core.diffing import changed_lines
from apps.core.forms import PlainForm
from apps.core.http import progress
from apps.core.models import Project, Role
from apps.core.paging import page_of
from apps.teamwork.assigning import assigned_to


class FlowForm(PlainForm):
    name = forms.CharField(max_length=80)
    text = forms.CharField(
        label="Flow", strip=False, max_length=LARGEST,
        widget=forms.Textarea({"rows": 26, "class": "mono", "spellcheck": "false"}),
    )  # fmt: skip

    spec: FlowSpec

    def clean_text(self) -> str:
        text: str = self.cleaned_data["text"]
        try:
            self.spec = read_yaml(text)
        except FlowError as error:
            raise forms.ValidationError(str(error)) from error
        return text


def _flow(project: Project, pk: str) -> Flow:
    return get_object_or_404(actions.with_newest(Flow.objects.filter(project=project)), pk=pk)


def _run(project: Project, pk: str) -> FlowRun:
    return get_object_or_404(
        FlowRun.objects.select_related("version__flow", "version__created_by", "created_by"), project=project, pk=pk
    )


@project_view()
def listing(request: HttpRequest, project: Project) -> HttpResponse:
    runs = project.flow_runs.select_related("version__flow", "created_by")
    mine = bool(request.GET.get("mine"))
    if mine:
        runs = runs.filter(pk__in=assigned_to(request.user, FlowRun))
    last = (
        FlowRun.objects.filter(project=project).order_by("version__flow_id", "-created_at").distinct("version__flow_id")
    )
    newest = {run.version.flow_id: run for run in last.select_related("version")}
    flows = actions.with_newest(project.flows.all())
    return render(
        request,
        "automation/list.html",
        {
            "flows": [(flow, words.starts_of(flow.version.form), newest.get(flow.pk)) for flow in flows],
            "page": page_of(request, runs),
            "mine": mine,
            "examples": EXAMPLES,
        },
    )


@project_view()
def flow(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    row = _flow(project, pk)
    spec, versions = row.version.form, list(row.versions.select_related("created_by"))
    texts = [write_yaml(version.form) for version in versions]
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
            "coming": starts.coming(spec, timezone.now()) if row.enabled else [],
            "calls": words.is_called(spec),
            "page": page_of(request, FlowRun.objects.filter(version__flow=row).select_related("version", "created_by")),
            "versions": list(zip(versions, changed, strict=True)),
        },
    )


@project_view(Role.OPERATOR)
def new(request: HttpRequest, project: Project) -> HttpResponse:
    example = example_of(request.GET.get("from", "")) or EXAMPLES[0]
    initial = {"name": example.name, "text": filled(example, project)}
    return _edit(request, project, None, initial)


@project_view(Role.OPERATOR)
def edit(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    row = _flow(project, pk)
    return _edit(request, project, row, {"name": row.name, "text": write_yaml(row.version.form)})


def _edit(request: HttpRequest, project: Project, row: Flow | None, initial: dict[str, Any]) -> HttpResponse:
    form = FlowForm(request.POST or None, initial=initial)
    if request.method == "POST" and form.is_valid():
        try:
            saved = actions.save_flow(
                project=project, name=form.cleaned_data["name"], spec=form.spec, by=request.user, flow=row
            )
        except FlowError as error:
            form.add_error("name" if error.field == "name" else "text", str(error))
        else:
            messages.success(request, f"Version {saved.versions.count()} of “{saved}” is saved.")
            return redirect("automation:flow", project.slug, saved.pk)
    context = {"form": form, "flow": row, "examples": EXAMPLES, "kinds": words.KINDS}
    return render(request, "automation/edit.html", context)


@project_view(Role.OPERATOR)
def check(request: HttpRequest, project: Project) -> HttpResponse:
    """What a text would do, for the editor: its steps in words, and the dry run."""
    try:
        spec = read_yaml(request.POST.get("text", ""))
    except FlowError as error:
        return render(request, "automation/_dry_run.html", {"error": str(error)})
    return render(request, "automation/_dry_run.html", {"found": dry_run(project, spec)})


@project_view()
def try_it(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    return render(request, "automation/_dry_run.html", {"found": dry_run(project, _flow(project, pk).version.form)})


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
def switch(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    actions.switch(flow=_flow(project, pk), on="on" in request.POST, by=request.user)
    return redirect("automation:flow", project.slug, pk)


@require_POST
@project_view(Role.OPERATOR)
def secret(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    row = _flow(project, pk)
    return render(
        request, "automation/secret.html", {"flow": row, "secret": actions.make_secret(flow=row, by=request.user)}
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
    messages.success(request, f"“{row.name}” is deleted. What its runs made stays.")
    return redirect("automation:list", project.slug)


@project_view()
def run(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    return render(request, "automation/run.html", _timeline(_run(project, pk)))


@project_view()
def run_status(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    row = _run(project, pk)
    return progress(request, "automation/_timeline.html", _timeline(row), runs=row.is_open)


def _timeline(row: FlowRun) -> dict[str, Any]:
    spec, steps = row.version.form, list(row.steps.all())
    shown = [_shown(step, spec) for step in steps]
    waiting = next((step for step in steps if step.state == StepState.WAITING and step.kind == "ask"), None)
    return {
        "run": row, "steps": shown, "asks": waiting, "seconds": sum(one["seconds"] for one in shown),
        "usd": sum(one["usd"] for one in shown),
    }  # fmt: skip


def _shown(step: FlowStep, spec: FlowSpec) -> dict[str, Any]:
    going, jobs = step.state in (StepState.RUNNING, StepState.WAITING), jobs_of(step)
    seconds, usd = used_by(jobs) if going else (0.0, 0.0)
    slug = step.run.project.slug
    return {
        "step": step, "going": step.state == StepState.RUNNING and bool(step.jobs), "asked": step.asked(spec), "given": words.given(step.asked(spec)),
        "links": [words.link_of(job, slug) for job in jobs], "made": words.made(step), "rows": words.rows_of(step),
        "seconds": step.seconds + seconds, "usd": step.usd + usd,
    }  # fmt: skip


@require_POST
@project_view(Role.ENGINEER)
def cancel(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    if not engine.cancel(run=_run(project, pk), by=request.user):
        messages.info(request, "It has ended, or is stopping already.")
    return redirect("automation:run", project.slug, pk)


@require_POST
@project_view(Role.ENGINEER)
def answer(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    try:
        engine.answer(run=_run(project, pk), yes=request.POST.get("answer") == "yes", by=request.user)
    except FlowError as error:
        messages.error(request, str(error))
    return redirect("automation:run", project.slug, pk)


@require_POST
@project_view(Role.ENGINEER)
def retry(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    try:
        engine.retry(run=_run(project, pk), by=request.user)
    except FlowError as error:
        messages.error(request, str(error))
    return redirect("automation:run", project.slug, pk)
