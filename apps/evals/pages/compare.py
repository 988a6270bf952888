"""Any number of evaluations side by side: their measures, their differences, and the tasks one by
one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_POST

from apps.core.access import project_view
from apps.core.charts import intervals, lines
from apps.core.differences import left_out, side_by_side
from apps.core.http import uuid_of
from apps.core.models import Project, Role
from apps.core.query import Query, many
from apps.core.routes import OUTPUTS, shows
from apps.evals.comparison import files
from apps.evals.comparison.report import Comparison
from apps.evals.comparison.report import compare as compared
from apps.evals.comparison.tasks import CHANGES, QUERY, Filters, TaskTable, unknown_filters
from apps.evals.costs import total_cost
from apps.evals.holdout.view_log import record_output_view, record_view, view_count
from apps.evals.models import EvalRun, Split
from apps.evals.pages.runs import may_see, runs_of
from apps.registry.engines import in_words

MOST, OFFERED, SIZE, EXTREMES = 20, 100, 50, 6

OF_COMPARISON: Query = QUERY | {"run": many(UUID)}


@shows("which held-out tasks passed, once the person has opened them")
@project_view(query=OF_COMPARISON | {"after": None, "before": None})
def compare(request: HttpRequest, project: Project) -> HttpResponse:
    """For htmx (other filters) only the tasks."""
    given = request.GET.getlist("run")
    runs = chosen_of(project, given)
    note = left_out(given, len(runs), MOST, "evaluations")
    if len(runs) < 2:
        context = {
            "runs": offered(project)[:OFFERED],
            "chosen": runs,
            "most": MOST,
            "left_out": note,
        }
        return render(request, "evals/compare_choose.html", context)
    found = compared(runs)
    context = {"runs": runs, "query": query_of(runs)} | tasks(request, found)
    if request.htmx:
        return render(request, "evals/_compared_tasks.html", context)
    return render(
        request,
        "evals/compare.html",
        context
        | {
            "found": found,
            "facts": facts(runs),
            "notes": [
                *filter(None, [note]),
                *ignored(request.GET, len(runs)),
                *(problem.text for problem in found.problems),
            ],
            "differing": [
                (name, values)
                for name, values, differs in side_by_side([settings_of(run) for run in runs])
                if differs
            ],
            "over_time": time_figure(runs),
            "others": [
                run
                for run in offered(project).filter(split=runs[0].split)[:OFFERED]
                if run not in runs
            ],
            "full": len(runs) >= MOST,
            "figure": difference_figure(found),
            "formats": files.FORMATS,
            "held_out": any(run.split == Split.HOLDOUT for run in runs),
        },
    )


@shows("groups of held-out tasks, once the person has opened them")
@project_view(query={"run": many(UUID)})
def breakdown(request: HttpRequest, project: Project) -> HttpResponse:
    """A fragment: components of the reward; failure modes and groups of tasks, if the tasks may be
    seen.
    """
    runs = chosen_of(project, request.GET.getlist("run"))
    if len(runs) < 2:
        return HttpResponse()
    context: dict[str, Any] = {
        "runs": runs,
        "query": query_of(runs),
        "found": compared(runs, details=True),
    }
    context["closed"] = [run for run in runs if not may_see(request, run)]
    return render(request, "evals/_compared_breakdown.html", context)


def ignored(query: Mapping[str, str], runs: int) -> list[str]:
    """A sentence for each filter of the URL that this page does not know."""
    found = unknown_filters(query, runs).items()
    return [
        f"The filter {name}={query[name][:40]} is ignored: it must be {choices}."
        for name, choices in found
    ]


def query_of(runs: Sequence[EvalRun]) -> str:
    return urlencode([("run", run.pk) for run in runs])


def chosen_of(project: Project, given: Iterable[str]) -> list[EvalRun]:
    """The evaluations with these ids, each once, in this order; ids outside the project are left
    out.
    """
    wanted = list(dict.fromkeys(pk for text in given if (pk := uuid_of(text))))[:MOST]
    found = runs_of(project).in_bulk(wanted)
    return [found[pk] for pk in wanted if pk in found]


def offered(project: Project) -> Any:
    return runs_of(project).filter(result__has_key="metrics").order_by("-created_at")


# The tasks


def tasks(request: HttpRequest, found: Comparison) -> dict[str, Any]:
    """The tasks by the URL's filters. Of a hold-out none, until this person has opened it in each
    evaluation.
    """
    runs = found.runs
    given, closed = (
        filters_of(request.GET, runs),
        [run for run in runs if not may_see(request, run)],
    )
    if closed:
        return {"closed": closed, "looks": view_count(closed[0].eval_set), "given": given}
    table = TaskTable(found.tables, given)
    counts = table.counts()
    names = dict(runs[0].project.failure_modes.values_list("slug", "name"))
    return {
        "page": table.page(SIZE, request.GET.get("after", ""), request.GET.get("before", "")),
        "rows_total": len(found.tables),
        "kinds": [(value, label, counts[value]) for value, label in CHANGES.items()],
        "given": given,
        "mode_name": names.get(given.mode, given.mode),
        "filters": given.query,
    } | (extremes(found, given) if not request.htmx else {})


def extremes(found: Comparison, given: Filters) -> dict[str, Any]:
    """The largest losses and wins, side by side."""
    sides = {}
    for name, change, sort in (("losses", "regressed", "drop"), ("wins", "improved", "gain")):
        table = TaskTable(found.tables, Filters(change=change, of=given.of, sort=sort))
        sides[name] = {
            "rows": [table.row(number) for _, number in table.order[:EXTREMES]],
            "n": len(table.order),
        }
    return sides


def filters_of(query: Mapping[str, str], runs: Sequence[EvalRun]) -> Filters:
    return Filters.from_query(query, len(runs))


@shows(OUTPUTS)
@require_POST
@project_view(Role.ENGINEER)
def open_compared(request: HttpRequest, project: Project) -> HttpResponse:
    """Opens the hold-out of each of these evaluations to this person: one view each."""
    runs = chosen_of(project, request.POST.getlist("run"))
    for run in runs:
        record_output_view(run, by=request.user)
    query = urlencode(
        [*(("run", run.pk) for run in runs), *filters_of(request.POST, runs).given.items()]
    )
    task = uuid_of(request.POST.get("task"))
    page = (
        reverse("evals:compared_task", args=[project.slug, task])
        if task
        else reverse("evals:compare", args=[project.slug])
    )
    return redirect(f"{page}?{query}")


@shows("which held-out tasks passed, as a file, once the person has opened them")
@project_view(query=OF_COMPARISON | {"format": list(files.FORMATS)})
def export(request: HttpRequest, project: Project) -> HttpResponseBase:
    """A file of the comparison, with its filtered tasks. If it contains a hold-out, a POST is
    required, and each export is a view.
    """
    given = request.POST if request.method == "POST" else request.GET
    runs = chosen_of(project, given.getlist("run"))
    format = given.get("format") if given.get("format") in files.FORMATS else "csv"
    page = f"{reverse('evals:compare', args=[project.slug])}?{query_of(runs)}"
    if len(runs) < 2:
        return redirect(page)
    held = [run for run in runs if run.split == Split.HOLDOUT]
    if any(not may_see(request, run) for run in runs) or (held and request.method != "POST"):
        messages.error(
            request,
            "Open the hold-out first, then export it from its page: each file counts as a view.",
        )
        return redirect(page)
    for run in held:
        record_view(
            eval_set=run.eval_set, by=request.user, detail=f"comparison of {run.pk} as {format}"
        )
    return files.file_of(compared(runs, details=format == "json"), filters_of(given, runs), format)


# The numbers


def facts(runs: Sequence[EvalRun]) -> list[tuple[str, list[str]]]:
    """What is not a mean over tasks: (title, a text for each evaluation)."""
    metrics = [run.result.get("metrics") or {} for run in runs]
    found = [
        (
            f"Latency {name}",
            [_amount(item.get("latency_ms", {}).get(name), " ms") for item in metrics],
        )
        for name in ("p50", "p95")
    ]
    costs = [total_cost(run) for run in runs]
    if any(cost is not None for cost in costs):
        found.append(
            ("Cost of the evaluation", ["–" if cost is None else f"${cost:,.4f}" for cost in costs])
        )
    counts = [item.get("counts", {}) for item in metrics]
    for name, title in (
        ("tasks", "Tasks scored"),
        ("samples", "Samples"),
        ("masked", "Masked samples"),
    ):
        found.append((title, [_amount(item.get(name)) for item in counts]))
    return found


def _amount(value: float | None, unit: str = "") -> str:
    return "–" if value is None else f"{value:,.0f}{unit}"


def settings_of(run: EvalRun) -> dict[str, Any]:
    """The settings of an evaluation."""
    return {
        "model version": str(run.model_version),
        "set": str(run.eval_set),
        "split": run.split,
        "environment": str(run.environment),
        "verifier": str(run.environment.verifier),
        "samples per task": run.samples_per_task,
        "seed": run.spec.get("seed"),
        "played by": run.played_by or "the built-in loop",
        "engine": in_words(run.spec.get("engine") or {}, run.model_version),
        "prompt": run.agent_hash[:12],
    } | {
        f"sampling {name}": value for name, value in (run.agent_part.get("sampling") or {}).items()
    }


def time_figure(runs: Sequence[EvalRun]) -> dict | None:
    """Success over time, if there are enough evaluations for a curve."""
    measured = [(run.created_at, (run.result.get("metrics") or {}).get("success")) for run in runs]
    shown = sorted(
        ((at, found) for at, found in measured if found and found["mean"] is not None),
        key=lambda pair: pair[0],
    )
    if len(shown) < 3:
        return None
    xs = [at.isoformat() for at, _ in shown]
    series = {
        name: (xs, [found[key] for _, found in shown])
        for name, key in (("success", "mean"), ("95% low", "low"), ("95% high", "high"))
    }
    figure = lines(
        {name: pair for name, pair in series.items() if None not in pair[1]},
        "Success over time",
        x="started",
        height=260,
    )
    for trace in figure["data"][1:]:
        trace["line"] |= {"dash": "dot", "color": figure["data"][0]["line"]["color"], "width": 1}
        trace["mode"] = "lines"
    figure["layout"]["yaxis"]["tickformat"] = ".0%"
    return figure


def difference_figure(found: Comparison) -> dict | None:
    """The success of each evaluation minus the baseline's."""
    success = next((line for line in found.lines if line.measure.key == "success"), None)
    shown = [
        (at, cell.difference)
        for at, cell in enumerate(success.cells if success else ())
        if cell.difference and cell.difference.low is not None
    ][::-1]
    if not shown:
        return None
    figure = intervals(
        [f"{at + 1}. {found.runs[at].model_version}" for at, _ in shown],
        [gap.mean for _, gap in shown],
        [gap.low for _, gap in shown],
        [gap.high for _, gap in shown],
        f"Difference in success from 1. {found.runs[0].model_version}",
        height=110 + 26 * len(shown),
    )
    figure["layout"]["xaxis"] |= {"tickformat": "+.0%", "zeroline": True}
    return figure
