"""Any number of evaluations side by side: their numbers, and the tasks on which they differ."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_POST

from apps.core.access import project_view
from apps.core.charts import intervals, lines
from apps.core.differences import left_out, side_by_side
from apps.core.http import LONGEST_FILTER, QueryFilters, uuid_of
from apps.core.models import Project, Role
from apps.evals.costs import total_cost
from apps.evals.holdout.view_log import record_output_view, views_of
from apps.evals.models import EvalRun
from apps.evals.pages.runs import RATES, may_see, runs_of
from apps.evals.samples.comparison import CHANGES, Table, TaskRow, is_kind, rows_of, success_difference, tables_of
from apps.registry.engines import in_words

MOST, OFFERED, SIZE = 20, 100, 50


@dataclass(frozen=True)
class Cell:
    """A number of one evaluation as text, with its interval and how it differs from the baseline, where these are known."""

    text: str
    interval: str = ""


@project_view()
def compare(request: HttpRequest, project: Project) -> HttpResponse:
    """For htmx (other filters) only the tasks."""
    given = request.GET.getlist("run")
    runs = chosen_of(project, given)
    note = left_out(given, len(runs), MOST, "evaluations")
    if len(runs) < 2:
        context = {"runs": offered(project)[:OFFERED], "chosen": runs, "most": MOST, "left_out": note}
        return render(request, "evals/compare_choose.html", context)
    tables = tables_of(runs)
    query = urlencode([("run", run.pk) for run in runs])
    context = {"runs": runs, "query": query} | tasks(request, runs, tables)
    if request.htmx:
        return render(request, "evals/_compared_tasks.html", context)
    return render(request, "evals/compare.html", context | numbers(runs, tables) | {
        "notes": [*filter(None, [note]), *notes(runs)],
        "differing": [(name, values) for name, values, differs in side_by_side([settings_of(run) for run in runs]) if differs],
        "over_time": time_figure(runs),
        "others": [run for run in offered(project).filter(split=runs[0].split)[:OFFERED] if run not in runs],
        "full": len(runs) >= MOST,
        "figure": rate_figure(runs),
    })  # fmt: skip


def chosen_of(project: Project, given: Iterable[str]) -> list[EvalRun]:
    """The evaluations with these ids, each once, in this order; what names none of the project is left out."""
    wanted = list(dict.fromkeys(pk for text in given if (pk := uuid_of(text))))[:MOST]
    found = runs_of(project).in_bulk(wanted)
    return [found[pk] for pk in wanted if pk in found]


def offered(project: Project) -> Any:
    return runs_of(project).filter(result__has_key="metrics").order_by("-created_at")


# The tasks


def tasks(request: HttpRequest, runs: Sequence[EvalRun], tables: Sequence[Table]) -> dict[str, Any]:
    """The tasks by the URL's filters. Of a hold-out none, until this person has opened it in each evaluation."""
    closed = [run for run in runs if not may_see(request, run)]
    if closed:
        return {"closed": closed, "looks": views_of(closed[0].eval_set).count(), "given": asked(request.GET)}
    rows, given = rows_of(tables), asked(request.GET)
    counts = {kind: sum(is_kind(row, kind) for row in rows) for kind in CHANGES}
    return {
        "page": page(in_order(rows, given), request.GET.get("after", ""), request.GET.get("before", "")),
        "rows_total": len(rows),
        "kinds": [(value, label, counts[value]) for value, label in CHANGES.items()],
        "given": given,
        "filters": urlencode(given.given),
    }


@dataclass(frozen=True)
class Asked(QueryFilters):
    """Which tasks the URL asks for, in which order: `sort` is “drop”, or empty for the order of keys."""

    change: str = ""
    q: str = ""
    sort: str = ""


def asked(query: Mapping[str, str]) -> Asked:
    change = query.get("change", "")
    return Asked(
        change if change in CHANGES else "",
        query.get("q", "").strip()[:LONGEST_FILTER],
        "drop" if query.get("sort") == "drop" else "",
    )


Place = tuple[float, str]


def in_order(rows: Iterable[TaskRow], given: Asked) -> list[tuple[Place, TaskRow]]:
    """The rows that were asked for, each with its place in the order."""
    q = given.q.casefold()
    shown = [row for row in rows if is_kind(row, given.change) and q in row.key.casefold()]
    return sorted((((-row.drop if given.sort else 0.0, row.place), row) for row in shown), key=lambda item: item[0])


@dataclass(frozen=True)
class RowPage:
    """Some rows of the table, `start` the number of the first of `count`; cursors of the pages around it, empty where none is."""

    rows: Sequence[TaskRow]
    start: int
    count: int
    before: str = ""
    after: str = ""

    @property
    def end(self) -> int:
        return self.start + len(self.rows) - 1


def page(placed: Sequence[tuple[Place, TaskRow]], after: str, before: str) -> RowPage:
    """A page by keyset: tasks that come in meanwhile, while an evaluation runs, move no row from one page to another."""
    places = [place for place, _ in placed]
    start = 0
    if found := place_of(after):
        start = bisect_right(places, found)
    elif found := place_of(before):
        start = max(0, bisect_left(places, found) - SIZE)
    shown, end = placed[start : start + SIZE], start + SIZE
    return RowPage(
        [row for _, row in shown], start + 1, len(placed),
        cursor_of(shown[0][0]) if start and shown else "", cursor_of(shown[-1][0]) if end < len(placed) else "",
    )  # fmt: skip


def cursor_of(place: Place) -> str:
    return f"{place[0]!r}_{place[1]}"


def place_of(cursor: str) -> Place | None:
    """None for what is no cursor."""
    number, _, place = cursor.partition("_")
    try:
        return (float(number), place) if place else None
    except ValueError:
        return None


@require_POST
@project_view(Role.ENGINEER)
def open_compared(request: HttpRequest, project: Project) -> HttpResponse:
    """Opens the hold-out of each of these evaluations to this person: a look at each, counted once."""
    runs = chosen_of(project, request.POST.getlist("run"))
    for run in runs:
        record_output_view(run, by=request.user)
    query = urlencode([*(("run", run.pk) for run in runs), *asked(request.POST).given.items()])
    task = uuid_of(request.POST.get("task"))
    page = (
        reverse("evals:compared_task", args=[project.slug, task])
        if task
        else reverse("evals:compare", args=[project.slug])
    )
    return redirect(f"{page}?{query}")


# The numbers


def numbers(runs: Sequence[EvalRun], tables: Sequence[Table]) -> dict[str, Any]:
    """A line for each metric: (title, a cell for each evaluation)."""
    metrics = [run.result.get("metrics") or {} for run in runs]
    found = [(title, [rate(item.get(name)) for item in metrics]) for name, title in reversed(RATES)]
    found.append(
        ("Success, difference from the baseline", [Cell("–"), *(difference(tables[0], table) for table in tables[1:])])
    )
    found.append(("Mean reward", [reward(item.get("reward")) for item in metrics]))
    ks = list(dict.fromkeys(k for item in metrics for k in item.get("pass_at_k", {}) if k != "1"))
    found += [(f"pass@{k}", [percent(item.get("pass_at_k", {}).get(k)) for item in metrics]) for k in ks]
    latencies = [item.get("latency_ms", {}) for item in metrics]
    found += [(f"Latency {name}", [amount(item.get(name), " ms") for item in latencies]) for name in ("p50", "p95")]
    for name, title in (("input_tokens", "Tokens in, mean"), ("output_tokens", "Tokens out, mean")):
        found.append((title, [amount(item.get(name)) for item in metrics]))
    costs = [total_cost(run) for run in runs]
    if any(cost is not None for cost in costs):
        found.append(("Cost of the evaluation", [Cell("–" if cost is None else f"${cost:,.4f}") for cost in costs]))
    counts = [item.get("counts", {}) for item in metrics]
    for name, title in (("tasks", "Tasks scored"), ("samples", "Samples"), ("masked", "Masked samples")):
        found.append((title, [amount(item.get(name)) for item in counts]))
    return {"lines": found}


def rate(metric: dict | None) -> Cell:
    if not metric or metric["mean"] is None:
        return Cell("–")
    return Cell(f"{metric['mean']:.1%}", f"[{metric['low']:.1%}, {metric['high']:.1%}]")


def reward(metric: dict | None) -> Cell:
    if not metric or metric["mean"] is None:
        return Cell("–")
    known = metric["low"] is not None
    return Cell(f"{metric['mean']:+.3f}", f"[{metric['low']:+.3f}, {metric['high']:+.3f}]" if known else "")


def difference(baseline: Table, other: Table) -> Cell:
    found = success_difference(baseline, other)
    if found["mean"] is None:
        return Cell("–", "no task in common")
    paired = f"n = {found['n']:,}"
    if found["low"] is None:
        return Cell(f"{found['mean']:+.1%}", paired)
    return Cell(f"{found['mean']:+.1%}", f"[{found['low']:+.1%}, {found['high']:+.1%}], {paired}")


def percent(value: float | None) -> Cell:
    return Cell("–" if value is None else f"{value:.1%}")


def amount(value: float | None, unit: str = "") -> Cell:
    return Cell("–" if value is None else f"{value:,.0f}{unit}")


def notes(runs: Sequence[EvalRun]) -> list[str]:
    """What makes a comparison unfair, or at least needs to be known."""
    found = []
    if len({run.split for run in runs}) > 1:
        found.append("They are of different splits, so they have few tasks or none in common.")
    if len({run.eval_set_id for run in runs}) > 1:
        found.append("They are of different sets or versions. Tasks with the same request are compared.")
    if len({run.environment.verifier_id for run in runs}) > 1:
        found.append("They were scored by different verifiers: a difference may be the verifier’s.")
    if len({run.samples_per_task for run in runs}) > 1:
        found.append("They have different numbers of samples per task.")
    if len({engine_of(run) for run in runs}) > 1:
        found.append("Their answers were generated by different engines or at different limits. " + "; ".join(
            f"{run.model_version}: {engine_of(run)}" for run in runs) + ".")  # fmt: skip
    return found


def settings_of(run: EvalRun) -> dict[str, Any]:
    """What an evaluation was set to."""
    return {
        "model version": str(run.model_version), "set": str(run.eval_set), "split": run.split, "environment": str(run.environment),
        "verifier": str(run.environment.verifier), "samples per task": run.samples_per_task, "seed": run.spec.get("seed"),
        "engine": engine_of(run), "prompt": run.agent_hash[:12],
    } | {f"sampling {name}": value for name, value in (run.agent_part.get("sampling") or {}).items()}  # fmt: skip


def time_figure(runs: Sequence[EvalRun]) -> dict | None:
    """Success in the order of time, where there are enough evaluations for a curve."""
    measured = [(run.created_at, (run.result.get("metrics") or {}).get("success")) for run in runs]
    shown = sorted(
        ((at, found) for at, found in measured if found and found["mean"] is not None), key=lambda pair: pair[0]
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


def engine_of(run: EvalRun) -> str:
    return in_words(run.spec.get("engine") or {}, run.model_version)


def rate_figure(runs: Sequence[EvalRun]) -> dict | None:
    shown = [(run, found) for run in reversed(runs) if (found := (run.result.get("metrics") or {}).get("success"))]
    shown = [(run, found) for run, found in shown if found["mean"] is not None]
    if not shown:
        return None
    figure = intervals(
        [f"{runs.index(run) + 1}. {run.model_version}" for run, _ in shown],
        [found["mean"] for _, found in shown],
        [found["low"] for _, found in shown],
        [found["high"] for _, found in shown],
        "Success with 95% intervals over tasks",
        height=110 + 26 * len(shown),
    )
    figure["layout"]["xaxis"]["tickformat"] = ".0%"
    return figure
