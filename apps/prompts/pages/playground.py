"""The playground: requests and versions are chosen, answers appear side by side, and what is good
is kept.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from django.contrib import messages
from django.core.exceptions import ValidationError
from django.db.models import Exists, OuterRef
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_POST

from apps.core.access import project_view
from apps.core.forms import whole
from apps.core.http import progress
from apps.core.models import JobLog, Project, Role
from apps.core.paging import page_of
from apps.core.query import KEY, PAGE_NUMBER, Query, whole_number
from apps.core.routes import RUNS, SIDES, shows
from apps.evals.actions import EvalSetError
from apps.evals.holdout.view_log import record_refusal, record_seen
from apps.evals.models import EvalSet, Split, Task
from apps.evals.suggestions import suggestions
from apps.prompts import playground as actions
from apps.prompts.forms import KeepTaskForm, PlaygroundForm
from apps.prompts.models import Playground, PlaygroundAnswer
from apps.prompts.playground import Step
from apps.registry.actions import ModelError
from apps.trajectories.models import Trajectory
from workers.lib.messages import calls_in, text_of
from workers.lib.prompts import as_lines
from workers.lib.typed import FormError

LISTED = 200  # tasks to choose from

OF_FORM: Query = {
    "trajectory": UUID,
    "step": whole_number(0),
    "set": UUID,
    "q": None,
    "on": KEY,
    "page": PAGE_NUMBER,
}


@shows(SIDES)
@project_view(Role.ENGINEER, query=OF_FORM)
def new(request: HttpRequest, project: Project) -> HttpResponse:
    """`?trajectory=&step=`: a step of a run; else `?set=`: tasks of a set. `?on=` is the first
    version.
    """
    try:
        step = _step(request, project)
    except EvalSetError as error:
        record_refusal(project, error, by=request.user)
        held = str(error).startswith(actions.NEVER_HELD)
        return render(request, "prompts/refused.html", {"reason": str(error), "held": held})
    return form_page(request, project, step, request.POST if request.method == "POST" else None)


def form_page(
    request: HttpRequest,
    project: Project,
    step: Step | None,
    given: Any = None,
    initial: dict | None = None,
) -> HttpResponse:
    """The form; if it was submitted and is valid, its result."""
    sets = project.eval_sets.current().order_by("-created_at")
    chosen = None if step else _set(request, sets)
    tasks = None if step else _tasks(chosen, request.GET.get("q", ""))
    start = {"version_0": request.GET.get("on"), "expected": _suggested(step)} | (initial or {})
    form = PlaygroundForm(project, tasks, given, initial=start)
    if given is not None and form.is_valid() and (started := _start(request, project, form, step)):
        return redirect("prompts:playground", project.slug, started.pk)
    context = {
        "form": form,
        "step": step,
        "request_text": text_of(actions.task_at(step).messages[-1]) if step else "",
        "sets": sets[:LISTED],
        "set": chosen,
        "tasks": tasks[:LISTED] if tasks is not None else [],
        "ticked": (
            set(given.getlist("tasks"))
            if given is not None and hasattr(given, "getlist")
            else set()
        ),
        "q": request.GET.get("q", ""),
        "most_cases": actions.MOST_CASES,
        "page": page_of(
            request, Playground.objects.filter(project=project).select_related("created_by"), 10
        ),
        "missing": (
            not project.model_versions.current().run_here().exists()
            or not project.environments.exists()
        ),
    }
    return render(request, "prompts/playground_new.html", context)


def _step(request: HttpRequest, project: Project) -> Step | None:
    """The given step, if it is not held out. Raises EvalSetError, Http404."""
    if not (given := request.GET.get("trajectory")):
        return None
    try:
        row = get_object_or_404(Trajectory, project=project, pk=UUID(given))
    except ValueError:
        raise Http404 from None
    cut = whole(request.GET.get("step"))
    step = Step(row, -1 if cut is None else cut)
    actions.require_not_held(project, [actions.task_at(step)])
    return step


def _suggested(step: Step | None) -> str:
    answer = next(suggestions(step.of_run), None) if step else None
    return json.dumps(answer.expected, ensure_ascii=False) if answer else ""


def _set(request: HttpRequest, sets: Any) -> EvalSet | None:
    try:
        if request.GET.get("set"):
            return get_object_or_404(sets, pk=request.GET["set"])
        offered = Task.objects.exclude(split=Split.HOLDOUT).filter(eval_set=OuterRef("pk"))
        return sets.filter(Exists(offered)).first() or sets.first()
    except ValidationError:
        raise Http404 from None


def _tasks(eval_set: EvalSet | None, query: str) -> Any:
    """Those that are not held out."""
    rows = (
        Task.objects.exclude(split=Split.HOLDOUT)
        .select_related("eval_set")
        .order_by("split", "key")
    )
    rows = rows.filter(eval_set=eval_set) if eval_set else rows.none()
    return rows.search(query) if query else rows


def _start(
    request: HttpRequest, project: Project, form: PlaygroundForm, step: Step | None
) -> Playground | None:
    """None if it may not run, which is then an error of the form."""
    given = form.cleaned_data
    try:
        return actions.start(
            project=project,
            environment=given["environment"],
            sides=form.chosen(),
            tasks=list(given.get("tasks", ())),
            step=replace(step, expected=given.get("expected") or {}) if step else None,
            samples_per_task=given["samples_per_task"],
            most_tokens=given["most_tokens"],
            most_usd=given["most_usd"] or 0.0,
            by=request.user,
        )
    except EvalSetError as error:
        record_refusal(project, error, by=request.user)
        form.add_error(None, str(error))
        return None


# What came of it


@shows(RUNS)
@project_view(query={"answer": KEY})
def show(request: HttpRequest, project: Project, pk: UUID) -> HttpResponse:
    run = _run(request, project, pk)
    return render(
        request, "prompts/playground.html", _live(run) | {"keep": _keep_form(request, project, run)}
    )


@shows(RUNS)
@project_view(query={"seen": None})
def status(request: HttpRequest, project: Project, pk: UUID) -> HttpResponse:
    """What is new on the page of a running playground since `?seen=`, each part by its id; the rest
    of the page is unchanged.
    """
    run = _run(request, project, pk)
    return progress(
        request,
        "prompts/_answers.html",
        _live(run, _seen(request)) | {"oob": True},
        runs=run.is_active,
    )


@dataclass(frozen=True)
class Seen:
    """How far a page is: the attempt, its last event and the newest answer."""

    attempt: int = -1
    seq: int = 0
    answer: int = 0

    def __str__(self) -> str:
        return f"{self.attempt}.{self.seq}.{self.answer}"


def _seen(request: HttpRequest) -> Seen:
    numbers = [whole(part) for part in request.GET.get("seen", "").split(".")]
    return Seen(*numbers) if len(numbers) == 3 and None not in numbers else Seen()


def _run(request: HttpRequest, project: Project, pk: UUID) -> Playground:
    """Its content may have been held out since: then seeing it is a view."""
    rows = Playground.objects.select_related("environment__verifier", "trajectory", "created_by")
    run = get_object_or_404(rows, project=project, pk=pk)
    record_seen(project, actions.asked_tasks(run), by=request.user, detail=f"playground {run.pk}")
    return run


def _live(run: Playground, seen: Seen = Seen()) -> dict[str, Any]:
    """The page's context, or that of what came after `seen`."""
    logs = JobLog.objects.filter(job=run.pk).order_by("-pk")[:20]
    if (seen.attempt, seen.seq) == (run.attempt, run.last_seq):
        return {"run": run, "logs": logs, "seen": seen}
    answers = list(run.answers.all())
    cells: dict[tuple[str, int], Cell] = defaultdict(Cell)
    for answer in answers:
        cells[answer.case, answer.side].answers.append(answer)
    for part in actions.partial_answers(run, answers):
        cells[part["case"], part["side"]].partial.append(part)
    failed, newest_failure = actions.failures(run), 0
    for side, failure in failed.items():
        newest_failure = max(newest_failure, failure["seq"])
        for case in run.spec["cases"]:
            if len((cell := cells[case["id"], side]).answers) < run.samples_per_task:
                cell.failure = failure
    fresh = seen if seen.attempt == run.attempt else Seen()
    heads = [
        _head(run, number, side) | actions.sums_of(run, number, answers)
        for number, side in enumerate(run.spec["sides"])
    ]
    rows = [
        {
            "case": case,
            "asked": case["messages"],
            "sides": [
                (head, cell, cell.is_new(fresh))
                for head in heads
                for cell in [cells[case["id"], head["number"]]]
            ],
        }
        for case in run.spec["cases"]
    ]
    newest = max((answer.pk for answer in answers), default=0)
    return {
        "run": run,
        "heads": heads,
        "rows": rows,
        "has_news": fresh.attempt < 0 or newest > fresh.answer or newest_failure > fresh.seq,
        "logs": logs,
        "seen": Seen(run.attempt, run.last_seq, newest),
    }


@dataclass
class Cell:
    """One version's answers to one request."""

    answers: list[PlaygroundAnswer] = field(default_factory=list)
    partial: list[dict[str, Any]] = field(default_factory=list)
    failure: dict[str, Any] | None = None  # why no more answers come

    def is_new(self, seen: Seen) -> bool:
        told = [*self.partial, self.failure] if self.failure else self.partial
        return (
            seen.attempt < 0
            or any(one.pk > seen.answer for one in self.answers)
            or any(one["seq"] > seen.seq for one in told)
        )


def _head(run: Playground, number: int, side: dict[str, Any]) -> dict[str, Any]:
    return side | {
        "number": number,
        "lines": as_lines(side["prompt"]),
        "suggested": side["name"].partition(" ")[0].rpartition("-v")[0] or "prompt",
        "is_new": bool(side["prompt"]) and (bool(side["changes"]) or run.trajectory_id is not None),
    }


def _keep_form(request: HttpRequest, project: Project, run: Playground) -> KeepTaskForm | None:
    """`?answer=`: whose output is proposed as the right one; else what was expected."""
    if run.trajectory_id is None:
        return None
    expected = run.spec["cases"][0]["expected"]
    if chosen := run.answers.filter(pk=whole(request.GET.get("answer")) or 0).first():
        calls = [
            call.plain
            for message in chosen.messages
            for call in calls_in(message) or ()
            if not call.problem
        ]
        expected = (
            (calls[0] if len(calls) == 1 else {"calls": calls})
            if calls
            else {"answer": chosen.output}
        )
    return KeepTaskForm(
        project, initial={"expected": json.dumps(expected, ensure_ascii=False) if expected else ""}
    )


@require_POST
@project_view(Role.ENGINEER)
def save_prompt(request: HttpRequest, project: Project, pk: UUID, side: int) -> HttpResponse:
    run = get_object_or_404(Playground.objects.select_related("trajectory"), project=project, pk=pk)
    if side >= len(run.spec["sides"]):
        raise Http404
    name = request.POST.get("name", "").strip()
    try:
        version = actions.save_prompt(playground=run, side=side, name=name, by=request.user)
    except (ModelError, FormError) as error:
        messages.error(request, f"The prompt was not saved: {error}")
        return redirect("prompts:playground", project.slug, pk)
    messages.success(
        request, f"The prompt is {version}. Evaluate it, then compare it with what runs now."
    )
    return redirect(version)


@shows(f"{RUNS}; {SIDES}")
@require_POST
@project_view(Role.ENGINEER)
def save_task(request: HttpRequest, project: Project, pk: UUID) -> HttpResponse:
    run = _run(request, project, pk)
    form = KeepTaskForm(project, request.POST)
    if not form.is_valid() or run.trajectory_id is None:
        return render(request, "prompts/playground.html", _live(run) | {"keep": form})
    given = form.cleaned_data
    try:
        made = actions.save_task(
            playground=run,
            eval_set=given["eval_set"],
            split=Split(given["split"]),
            expected=given["expected"],
            by=request.user,
        )
    except EvalSetError as error:
        record_refusal(project, error, by=request.user)
        form.add_error(None, str(error))
        return render(request, "prompts/playground.html", _live(run) | {"keep": form})
    if made.made:
        messages.success(request, f"Added to {given['eval_set']}.")
    else:
        why = (
            "it is there already"
            if made.duplicates
            else "it is, or is like, a held-out task or of a held-out group"
        )
        messages.error(request, f"Not added to {given['eval_set']}: {why}.")
    return redirect("prompts:playground", project.slug, pk)
