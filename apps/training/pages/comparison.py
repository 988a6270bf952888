"""Training runs side by side: one table, their settings, and a chart for each metric with all
curves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from apps.core.access import project_view
from apps.core.differences import left_out, side_by_side
from apps.core.models import Project
from apps.core.query import FLAG, Query, many
from apps.core.routes import TOTALS, WHEN_EVALUATED, shows
from apps.training.charts import FIGURES, colour_of, overlaid
from apps.training.comparison import (
    MOST,
    SUMMED,
    across_seeds,
    chosen_runs,
    curves_of,
    ends_of,
    evaluations_of,
    names_of,
    runs_of,
    settings_of,
    smoothed,
    validation_of,
)
from apps.training.models import TrainingRun

OFFERED, SHOWN = 100, 6
SMOOTHING = (
    ("0", "No smoothing"),
    ("0.6", "Smoothing 0.6"),
    ("0.8", "Smoothing 0.8"),
    ("0.9", "Smoothing 0.9"),
    ("0.97", "Smoothing 0.97"),
)
TITLES = {
    metric: title if len(metrics) == 1 or label in title.lower().split() else f"{title}, {label}"
    for _, title, metrics in FIGURES
    for label, metric in metrics.items()
}
FIRST = (
    "validation/reward",
    "validation/success",
    "train/reward_mean",
    "train/success",
    "train/loss",
    "train/kl",
    "train/entropy",
)
AXES = {"step": "Steps", "time": "Hours"}


@dataclass(frozen=True)
class Cell:
    """A number of one run as text, with its interval where it is known."""

    text: str
    interval: str = ""


def rate(metric: dict | None) -> Cell:
    if not metric or metric["mean"] is None:
        return Cell("–")
    return Cell(f"{metric['mean']:.1%}", f"[{metric['low']:.1%}, {metric['high']:.1%}]")


def reward(metric: dict | None) -> Cell:
    if not metric or metric["mean"] is None:
        return Cell("–")
    known = metric["low"] is not None
    return Cell(
        f"{metric['mean']:+.3f}", f"[{metric['low']:+.3f}, {metric['high']:+.3f}]" if known else ""
    )


OF_VIEW: Query = {"x": ("step", "time"), "smooth": list(dict(SMOOTHING)), "log": FLAG}


@dataclass(frozen=True)
class View:
    """How the curves are drawn, and which: the valid parts of the URL."""

    metrics: tuple[str, ...] = ()
    x: str = "step"
    smooth: str = "0"
    log: bool = False

    @classmethod
    def of(cls, request: HttpRequest, known: Sequence[str]) -> View:
        asked = [name for name in dict.fromkeys(request.GET.getlist("metric")) if name in known]
        usual = [name for name in (*FIRST, *known) if name in known]
        smooth = request.GET.get("smooth", "")
        return cls(
            tuple(asked) or tuple(dict.fromkeys(usual))[:SHOWN],
            "time" if request.GET.get("x") == "time" else "step",
            smooth if smooth in dict(SMOOTHING) else "0",
            request.GET.get("log") == "1",
        )

    @property
    def query(self) -> list[tuple[str, str]]:
        return [("x", self.x), ("smooth", self.smooth), *([("log", "1")] if self.log else [])]


@shows(TOTALS, WHEN_EVALUATED)
@project_view(query={"run": many(UUID), "metric": many(None), **OF_VIEW})
def compare(request: HttpRequest, project: Project) -> HttpResponse:
    """Without two runs in the URL, it offers a choice."""
    given = request.GET.getlist("run")
    runs = chosen_runs(project, given)
    note = left_out(given, len(runs), MOST, "runs")
    if len(runs) < 2:
        context = {
            "runs": runs_of(project)[:OFFERED],
            "chosen": runs,
            "most": MOST,
            "left_out": note,
        }
        return render(request, "training/compare_choose.html", context)
    known = names_of(runs)
    view = View.of(request, known)
    named = [("run", str(run.pk)) for run in runs]
    settings = side_by_side([settings_of(run) for run in runs])
    return render(
        request,
        "training/compare.html",
        {
            "left_out": note,
            "runs": [
                (
                    run,
                    colour_of(at),
                    urlencode(
                        [*(other for other in named if other[1] != str(run.pk)), *view.query]
                    ),
                )
                for at, run in enumerate(runs)
            ],
            "results": results(runs),
            "seeds": [(TITLES.get(name, name), *numbers) for name, *numbers in across_seeds(runs)],
            "measured": measured(runs),
            "differing": [(name, values) for name, values, differs in settings if differs],
            "equal": [(name, values[0]) for name, values, differs in settings if not differs],
            "charts": [
                (TITLES.get(name, name), urlencode([*named, *view.query, ("metric", name)]))
                for name in view.metrics
            ],
            "metrics": [(name, TITLES.get(name, name), name in view.metrics) for name in known],
            "view": view,
            "smoothing": SMOOTHING,
            "axes": AXES,
            "others": [run for run in runs_of(project)[:OFFERED] if run not in runs],
            "full": len(runs) >= MOST,
        },
    )


@project_view(query={"run": many(UUID), "metric": None, **OF_VIEW})
def curve(request: HttpRequest, project: Project) -> HttpResponse:
    """The fragment with one chart."""
    runs, name = (
        chosen_runs(project, request.GET.getlist("run")),
        request.GET.get("metric", "")[:60],
    )
    view = replace(View.of(request, [name]), metrics=(name,))
    found = curves_of(runs, [name], by_time=view.x == "time")[name]
    series = []
    for at, run in enumerate(runs):
        if points := found.get(run.pk):
            xs, ys = zip(*points, strict=True)
            series.append((f"{at + 1}. {run.name}", at, xs, smoothed(ys, float(view.smooth))))
    figure = (
        overlaid(series, TITLES.get(name, name), x=AXES[view.x].lower(), log=view.log)
        if series
        else None
    )
    return render(
        request,
        "training/_curve.html",
        {"figure": figure, "id": f"curve-{name}", "title": TITLES.get(name, name)},
    )


# The numbers


Lines = list[tuple[str, list[Cell]]]  # (title, a cell for each run)


def results(runs: Sequence[TrainingRun]) -> Lines:
    """Evaluation and validation; lines without a number are left out."""
    validations, evaluations = [validation_of(run) for run in runs], evaluations_of(runs)
    tested = [
        evaluations.get(run.model_version_id) if run.model_version_id else None for run in runs
    ]
    found = [
        ("Success, newest evaluation of the output model", [evaluated(one) for one in tested]),
        ("Success, last validation", [validated(one, "success") for one in validations]),
        ("Reward, last validation", [validated(one, "reward") for one in validations]),
    ]
    return _with_numbers(found)


def measured(runs: Sequence[TrainingRun]) -> Lines:
    """The metrics at the end of training; lines without a number are left out."""
    ends = ends_of(runs)
    return _with_numbers(
        [
            (TITLES.get(name, name), [ending(ends.get(run.pk, {}).get(name)) for run in runs])
            for name in SUMMED
        ]
    )


def _with_numbers(found: Lines) -> Lines:
    return [(title, cells) for title, cells in found if any(cell.text != "–" for cell in cells)]


def evaluated(run: Any) -> Cell:
    if run is None:
        return Cell("–")
    cell = rate(run.result["metrics"].get("success"))
    return replace(
        cell, interval=f"{cell.interval} {run.eval_set} {run.get_split_display().lower()}".strip()
    )


def validated(found: dict[str, Any] | None, name: str) -> Cell:
    if found is None:
        return Cell("–")
    cell = rate(found[name]) if name == "success" else reward(found[name])
    return replace(cell, interval=f"{cell.interval} step {found['step']:,}".strip())


def ending(found: dict[str, float] | None) -> Cell:
    if found is None:
        return Cell("–")
    return Cell(f"{found['mean']:.4g}", f"{found['low']:.4g} to {found['high']:.4g}")
