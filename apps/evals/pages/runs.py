"""The page of an evaluation: its numbers, its failures by bucket, and its samples by filters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from django.contrib import messages
from django.db.models import QuerySet
from django.db.models.functions import Left
from django.http import HttpRequest, HttpResponse, QueryDict
from django.http.response import HttpResponseBase
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_POST

from apps.core.access import project_view
from apps.core.charts import intervals
from apps.core.forms import whole
from apps.core.http import progress
from apps.core.models import JobLog, Project, Role
from apps.core.query import Query
from apps.core.routes import OUTPUTS, TOTALS, WHEN_EVALUATED, shows
from apps.core.timeouts import TooLong, patience
from apps.evals import traces
from apps.evals.announcing import run_notes
from apps.evals.baseline import baseline_of
from apps.evals.comparison.tasks import CHANGES
from apps.evals.costs import used_in_words
from apps.evals.holdout.view_log import has_opened, record_output_view, record_view, view_count
from apps.evals.models import EvalRun, Split
from apps.evals.samples import exporting, filters
from apps.evals.samples.facets import facets_of
from apps.evals.samples.filters import QUERY, Filters
from apps.evals.samples.to_tasks import may_make_tasks
from apps.evals.stats import NOTHING_SCORED
from apps.registry.engines import in_words

RATES = (
    ("valid_json", "Valid JSON"),
    ("correct_tool", "Correct tool"),
    ("correct_arguments", "Correct arguments"),
    ("execution_success", "Execution success"),
    ("unsafe_action", "Unsafe actions"),
    ("success", "Success (pass@1)"),
)
SIZE, SHOWN, OTHERS = 40, 260, 50
LIST_MS = 4_000
MAY_QUOTE = (
    "Failed. The reason may quote a held-out task, so it is shown with the samples once they are"
    " opened."
)


OF_SAMPLES: Query = QUERY | {"after": None, "before": None}


@shows("outputs and scores on held-out tasks, once the person has opened them")
@project_view(query=OF_SAMPLES)
def run(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    row = get_object_or_404(runs_of(project), pk=pk)
    unused = traces.refused(row) if row.is_answered_elsewhere else []
    context = {"unused_traces": unused, "baseline": compared_with(row)}
    return render(request, "evals/run.html", live(request, row) | listed(request, row) | context)


def compared_with(row: EvalRun) -> EvalRun | None:
    """The evaluation to compare this one with: of what its model was made from, or else the newest
    other one.
    """
    return (
        baseline_of(row.model_version, row.eval_set, row.split)
        or others_of(row).filter(eval_set=row.eval_set).first()
    )


@shows("outputs and scores on held-out tasks, once the person has opened them")
@project_view(query=OF_SAMPLES)
def samples(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    """The fragment with the samples by other filters; its URL is that of the page with them."""
    row = get_object_or_404(runs_of(project), pk=pk)
    if not request.htmx:
        return redirect(
            f"{reverse('evals:run', args=[project.slug, pk])}?{request.GET.urlencode()}"
        )
    context = listed(request, row)
    response = render(request, "evals/_run_filtered.html", context | {"run": row})
    response["HX-Push-Url"] = (
        f"{reverse('evals:run', args=[project.slug, pk])}?{context['filters'].query}"
    )
    return response


def listed(request: HttpRequest, row: EvalRun) -> dict[str, Any]:
    """The samples selected by the URL. Of a hold-out none, until this person has opened it
    (`open_holdout`).
    """
    chosen, others = chosen_filters(request, row), others_of(row)
    opened = may_see(request, row)
    context: dict[str, Any] = {
        "filters": chosen,
        "opened": opened,
        "others": others[:OTHERS],
        "changes": CHANGES.items(),
        "too_broad": False,
        "makes_tasks": may_make_tasks(row),
    }
    if not opened:
        return context | {"looks": view_count(row.eval_set)}
    try:
        with patience(LIST_MS):
            rows = (
                chosen.apply(row)
                .defer("messages", "details", "output")
                .annotate(head=Left("output", SHOWN + 1))
            )
            given = {"after": request.GET.get("after", ""), "before": request.GET.get("before", "")}
            return context | {"page": filters.page(rows, SIZE, **given), "facets": facets_of(row)}
    except TooLong:
        return context | {"page": filters.Page([]), "facets": facets_of(row), "too_broad": True}


def chosen_filters(request: HttpRequest, row: EvalRun, given: QueryDict | None = None) -> Filters:
    """Those of the URL; without the comparison where it names no evaluation that there is one
    with.
    """
    chosen = Filters.of(request.GET if given is None else given)
    known = not chosen.against or others_of(row).filter(pk=chosen.against).exists()
    return chosen if known else replace(chosen, against="", change="")


def may_see(request: HttpRequest, row: EvalRun) -> bool:
    """Whether a person may see single tasks and outputs of an evaluation: for a hold-out, engineers
    who have opened it.
    """
    return row.split != Split.HOLDOUT or (
        request.membership.may(Role.ENGINEER) and has_opened(row, by=request.user)
    )


def others_of(row: EvalRun) -> QuerySet[EvalRun]:
    """Evaluations to compare one with: finished, of the same split of any version of its set."""
    rows = EvalRun.objects.current().filter(
        project=row.project_id, eval_set__slug=row.eval_set.slug, split=row.split, state="succeeded"
    )
    return rows.exclude(pk=row.pk).select_related("model_version", "eval_set", "environment")


@shows("held-out tasks and outputs on them, as a file, once the person has opened them")
@project_view(query=OF_SAMPLES | {"format": list(exporting.FORMATS)})
def export(request: HttpRequest, project: Project, pk: str) -> HttpResponseBase:
    """A file of the filtered samples. A hold-out's requires a POST, and each export is a view."""
    row = get_object_or_404(runs_of(project), pk=pk)
    given = request.POST if request.method == "POST" else request.GET
    format = given.get("format") if given.get("format") in exporting.FORMATS else "jsonl"
    if not may_see(request, row) or (row.split == Split.HOLDOUT and request.method != "POST"):
        messages.error(
            request,
            "Open the hold-out first, then export it from its list: each file counts as a view.",
        )
        return redirect(row_url(row))
    if row.split == Split.HOLDOUT:
        record_view(
            eval_set=row.eval_set, by=request.user, detail=f"samples of {row.pk} as {format}"
        )
    return exporting.file_of(row, chosen_filters(request, row, given).apply(row), format)


@shows(OUTPUTS)
@require_POST
@project_view(Role.ENGINEER)
def open_holdout(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    """Opens the samples of an evaluation on a hold-out to this person: one view."""
    row = get_object_or_404(runs_of(project), pk=pk)
    record_output_view(row, by=request.user)
    sample = whole(request.POST.get("sample"))
    page = reverse("evals:sample", args=[project.slug, pk, sample]) if sample else row_url(row)
    return redirect(f"{page}?{Filters.of(request.POST).query}")


def row_url(row: EvalRun) -> str:
    return reverse("evals:run", args=[row.project.slug, row.pk])


@shows(TOTALS, WHEN_EVALUATED)
@project_view()
def run_status(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    """The fragment that a running evaluation's page polls; once the run has ended, the whole page
    is reloaded.
    """
    row = get_object_or_404(runs_of(project), pk=pk)
    return progress(request, "evals/_status.html", live(request, row), runs=row.is_active)


def live(request: HttpRequest, row: EvalRun) -> dict:
    """Its error and its log only with its samples: they may quote a held-out task."""
    metrics, opened = row.result.get("metrics"), may_see(request, row)
    return {
        "shown_error": shown_error(row, opened=opened),
        "run": row,
        "engine": in_words(row.spec.get("engine") or {}, row.model_version),
        "used": used_in_words(row),
        "metrics": metrics,
        "all_masked": all_masked(row, opened=opened),
        "notes": run_notes(row),
        "rates": [(title, metrics[name]) for name, title in RATES] if metrics else [],
        "figure": rate_chart(metrics) if metrics else None,
        "logs": JobLog.objects.filter(job=row.pk).order_by("-pk")[:20] if opened else [],
    }


def shown_error(row: EvalRun, *, opened: bool) -> str:
    if row.error == NOTHING_SCORED:
        return all_masked(row, opened=opened)
    return row.error if opened or not row.error else MAY_QUOTE


def all_masked(row: EvalRun, *, opened: bool) -> str:
    """Why nothing counts, in a sentence, where every sample is masked; else "". A reason may quote
    a held-out task.
    """
    counts = (row.result.get("metrics") or {}).get("counts") or {}
    if not counts.get("samples") or counts["masked"] != counts["samples"]:
        return ""
    if not opened:
        return NOTHING_SCORED
    first = (
        row.samples.filter(masked=True)
        .exclude(mask_reason="")
        .order_by("task__key", "index")
        .first()
    )
    return f"Every sample is masked: {first.mask_reason if first else 'no reason was given.'}"


def rate_chart(metrics: dict) -> dict:
    shown = [
        (title, metrics[name])
        for name, title in reversed(RATES)
        if metrics[name]["mean"] is not None
    ]
    figure = intervals(
        [title for title, _ in shown],
        [m["mean"] for _, m in shown],
        [m["low"] for _, m in shown],
        [m["high"] for _, m in shown],
        "Rates with 95% intervals over tasks",
        height=270,
    )
    figure["layout"]["xaxis"]["tickformat"] = ".0%"
    return figure


def runs_of(project: Project) -> QuerySet[EvalRun]:
    return EvalRun.objects.filter(project=project).select_related(
        "project", "eval_set", "model_version", "environment__verifier", "created_by"
    )
