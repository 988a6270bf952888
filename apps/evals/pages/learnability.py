"""The page that says what RL would learn from the tasks of an evaluation, and which of them to
train on.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from uuid import UUID

from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import get_object_or_404, render

from apps.core.access import project_view
from apps.core.charts import BAD, GOOD, PALETTE, bars, lines
from apps.core.forms import whole
from apps.core.http import uuid_of
from apps.core.intervals import student, wilson
from apps.core.models import Project
from apps.core.paging import page_of
from apps.core.query import PAGE_NUMBER, whole_number
from apps.core.routes import OUTPUTS, shows
from apps.core.sorting import choices
from apps.evals.holdout.view_log import record_output_view
from apps.evals.learnability.run import RunLearnability
from apps.evals.learnability.signal import Learnability, TaskView, signal_chance
from apps.evals.learnability.table import KINDS, SORTS, Row, is_kind, ordered, rows_of
from apps.evals.models import EvalRun, Sample
from apps.evals.stats import Estimate, pass_at_k

GROUP_SIZES = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
MOST_BINS = 16


@dataclass(frozen=True)
class Options:
    """The URL's options; invalid values become the default."""

    group_size: int
    per_group: int | None
    kind: str
    sort: str
    task: UUID | None

    @classmethod
    def of(cls, query: QueryDict) -> Options:
        kind, sort = query.get("kind", ""), query.get("sort", "")
        return cls(
            group_size=whole(query.get("g", ""), 2, 64) or 8,
            per_group=whole(query.get("cap", ""), 1, 100_000),
            kind=kind if kind in KINDS else "",
            sort=sort if sort.removeprefix("-") in SORTS else "-signal",
            task=uuid_of(query.get("task", "")),
        )


@shows(OUTPUTS)
@project_view(
    query={
        "g": whole_number(2, 64),
        "cap": whole_number(1, 100_000),
        "kind": list(KINDS),
        "sort": choices(SORTS),
        "task": UUID,
        "page": PAGE_NUMBER,
    }
)
def learnability(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    run = get_object_or_404(
        EvalRun.objects.select_related("eval_set", "model_version"), project=project, pk=pk
    )
    options = Options.of(request.GET)
    learning = RunLearnability(run, options.group_size)
    rows = rows_of(learning, options.per_group)
    if rows:
        record_output_view(run, by=request.user)
    shown = [row for row in rows if is_kind(row, options.kind)]
    return render(
        request,
        "evals/learnability.html",
        {
            "run": run,
            "options": options,
            "why_not": learning.why_not(),
            "page": page_of(request, ordered(shown, options.sort)),
        }
        | _summary(learning.found, rows)
        | _samples(run, options.task),
    )


def _summary(found: Learnability, rows: Sequence[Row]) -> dict:
    flat = sum(not item.has_signal for item in found.tasks)
    counts = found.counts | {"flat": flat}
    single = bool(found.tasks) and all(item.n < 2 for item in found.tasks)
    return {
        "found": found,
        "single": single,
        "learns": len(found.tasks) - flat,
        "picked": sum(row.picked for row in rows),
        "kinds": [(value, label, counts[value]) for value, label in KINDS.items()],
        "columns": COLUMNS,
        "passes": passes(found) if found.tasks else [],
        "figures": (
            {"rates": rate_figure(found.tasks), "signal": signal_figure(found.tasks)}
            if found.tasks
            else None
        ),
    }


COLUMNS = (
    ("task", "Task", False),
    ("rate", "Passed", True),
    ("reward", "Mean reward", True),
    ("spread", "Spread", True),
    ("signal", "Signal", True),
    ("group", "Group", False),
)


def _samples(run: EvalRun, task: UUID | None) -> dict:
    """The samples of the task named by the URL, if it belongs to this evaluation."""
    samples: list[Sample] = (
        list(run.samples.filter(task=task).select_related("task")) if task else []
    )
    return {"samples": samples, "task": samples[0].task if samples else None}


def passes(found: Learnability) -> list[tuple[int, Estimate]]:
    """pass@k with its interval over tasks, for each k that every task has samples for."""
    return [
        (k, interval([pass_at_k(item.n, item.passed, k) for item in found.tasks]))
        for k in found.pass_at
    ]


def interval(shares: Sequence[float]) -> Estimate:
    """Mean of shares with Student's t interval, cut to [0, 1]; Wilson's where all are equal; [0, 1]
    of one share.
    """
    n, mean = len(shares), fmean(shares)
    if n == 1:
        return Estimate(mean, 0.0, 1.0, 1)
    error = stdev(shares) / math.sqrt(n)
    if error == 0:
        return Estimate(mean, *wilson(round(mean * n), n), n)
    half = student(n - 1) * error
    return Estimate(mean, max(0.0, mean - half), min(1.0, mean + half), n)


def rate_figure(tasks: Sequence[TaskView]) -> dict:
    """How many tasks pass in which share of their samples; the first and the last bar hold only 0%
    and 100%.
    """
    bins = min(MOST_BINS, max(item.n for item in tasks))
    counts = Counter((item.kind, _bin(item, bins)) for item in tasks)
    xs = [100 * place / bins for place in range(bins + 1)]
    kinds = (
        ("all_fail", "all fail", BAD),
        ("mixed", "mixed", PALETTE[0]),
        ("all_pass", "all pass", GOOD),
    )
    series = {
        label: (xs, [counts[kind, place] for place in range(bins + 1)]) for kind, label, _ in kinds
    }
    colours = {label: colour for _, label, colour in kinds}
    title = "Tasks by pass rate"
    return bars(series, title, x="pass rate, %", y="tasks", stacked=True, colours=colours)


def _bin(item: TaskView, bins: int) -> int:
    if item.kind != "mixed":
        return bins if item.kind == "all_pass" else 0
    return min(max(round(item.rate * bins), 1), bins - 1)


def signal_figure(tasks: Sequence[TaskView]) -> dict:
    """The expected share of groups with both outcomes, against their size; tasks seen alike are
    summed once.
    """
    alike = Counter((item.passed, item.n) for item in tasks)
    shares = [
        sum(times * signal_chance(passed, n, size) for (passed, n), times in alike.items())
        / len(tasks)
        for size in GROUP_SIZES
    ]
    values = [100 * share for share in shares]
    title = "Expected share of groups with both outcomes"
    figure = lines(
        {"groups": (GROUP_SIZES, values)}, title, x="samples per group (G)", y="%", height=250
    )
    figure["layout"]["yaxis"]["range"] = [0, 100]
    return figure
