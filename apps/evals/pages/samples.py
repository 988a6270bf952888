"""One sample of an evaluation in full: request, answer and expected answer, and what the verifier
and the rules say about it.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlencode

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render

from apps.core.access import project_view
from apps.core.models import Project
from apps.core.routes import shows
from apps.evals.comparison.modes import UNMATCHED
from apps.evals.costs import cost, price_of
from apps.evals.holdout.view_log import view_count
from apps.evals.models import EvalRun, Sample
from apps.evals.pages.runs import OF_SAMPLES, chosen_filters, may_see, others_of, runs_of
from apps.evals.samples import transcript
from apps.evals.samples.components import explained
from apps.evals.samples.diagnosis import diagnose
from apps.evals.samples.filters import Filters, cursor_of, neighbours
from apps.evals.samples.to_tasks import may_make_tasks
from workers.lib.messages import functions_of

PARTS = ("output", "conversation")


@shows("a held-out task and an output on it, once the person has opened them")
@project_view(query=OF_SAMPLES | {"part": PARTS})
def sample(request: HttpRequest, project: Project, pk: str, number: int) -> HttpResponse:
    """The page; for htmx (j and k) only this sample's part. Of a hold-out, it first has to be
    opened.
    """
    run = get_object_or_404(runs_of(project), pk=pk)
    row = get_object_or_404(run.samples.select_related("task__trajectory"), pk=number)
    chosen = chosen_filters(request, run)
    context: dict[str, Any] = {"run": run, "filters": chosen}
    if not may_see(request, run):
        return render(
            request,
            "evals/sample_closed.html",
            context | {"number": number, "looks": view_count(run.eval_set)},
        )
    row.run = run
    if (text := part_of(request, row)) is not None:
        return text
    response = render(
        request,
        f"evals/{'_sample' if request.htmx else 'sample'}.html",
        context | context_of(row, chosen),
    )
    response["Cache-Control"] = "private, no-cache"
    response["Vary"] = "HX-Request"
    return response


@project_view()
def of_task(request: HttpRequest, project: Project, pk: str, task: str) -> HttpResponse:
    """Redirects to a sample of the task, a failed one if there is one."""
    run = get_object_or_404(runs_of(project), pk=pk)
    found = run.samples.filter(task=task).order_by("success", "index").first()
    if found is None:
        raise Http404
    return redirect("evals:sample", project.slug, pk, found.pk)


def context_of(row: Sample, chosen: Filters) -> dict[str, Any]:
    run, task = row.run, row.task
    earlier, later = neighbours(chosen.apply(run), row)
    return scored_output(row) | {
        "cost": cost(price_of(run), row.input_tokens, row.output_tokens),
        "previous": earlier,
        "next": later,
        "back": urlencode(chosen.given | ({"after": cursor_of(earlier)} if earlier else {})),
        "siblings": list(
            run.samples.filter(task=task).only("pk", "index", "success", "masked", "task_key")
        ),
        "elsewhere": elsewhere(run, row, chosen),
        "makes_tasks": may_make_tasks(run) and not row.success and not row.masked,
    }


def part_of(request: HttpRequest, row: Sample) -> HttpResponse | None:
    """The full text of a part that the page may have cut; None if the page is requested."""
    part = request.GET.get("part")
    if part not in PARTS:
        return None
    text = (
        row.output
        if part == "output"
        else json.dumps(transcript.conversation(row), indent=2, ensure_ascii=False)
    )
    return HttpResponse(text, content_type="text/plain; charset=utf-8")


def scored_output(row: Sample) -> dict[str, Any]:
    """What `_output.html` and `_score.html` show of a sample, or of a rollout of a training run."""
    messages, tools = transcript.conversation(row), transcript.offered(row)
    found = diagnose(row)
    components, reasons = explained(row.components, row.details)
    modes = dict(row.run.project.failure_modes.values_list("slug", "name"))
    return {
        "sample": row,
        "task": row.task,
        "request_text": transcript.request_of(row.task.messages),
        "conversation": messages,
        "tools": tools,
        "tool_lines": [
            (name, function.get("description") or "") for name, function in functions_of(tools)
        ],
        "difference": transcript.difference(row.task.expected, transcript.answered(row)),
        "components": components,
        "reasons": reasons,
        "diagnosis": found,
        "bucket": (modes.get(found.mode, found.mode) or "The environment failed") if found else "",
        "no_bucket": UNMATCHED,
        "blamed": found.blamed_message if found else None,
    }


def elsewhere(run: EvalRun, row: Sample, chosen: Filters) -> dict[str, Any] | None:
    """The result of the same request in the evaluation that this one is compared with; None without
    one.
    """
    other = others_of(run).filter(pk=chosen.against).first() if chosen.against else None
    if other is None:
        return None
    samples = other.samples.filter(task__canonical_hash=row.task.canonical_hash)
    return {
        "run": other,
        "samples": list(samples.only("pk", "index", "success", "masked", "task_key")[:64]),
    }
