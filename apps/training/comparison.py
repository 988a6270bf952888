"""Several training runs side by side: their numbers with intervals, their settings, and their
thinned curves.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from math import sqrt
from statistics import fmean, stdev
from typing import Any
from uuid import UUID

from django.db.models import Avg, F, Max, Min, QuerySet, Value

from apps.core.http import uuid_of
from apps.core.intervals import student
from apps.core.models import Project
from apps.evals.jobs import ROW_FIELDS, rows_of
from apps.evals.models import EvalRun
from apps.evals.stats import summarise
from apps.training.models import Metric, Rollout, TrainingRun

MOST = 20  # runs
POINTS = 200  # of a curve
LAST_SHARE = 0.1  # share of the steps over which final numbers are computed
SUMMED = (
    "train/reward_mean",
    "train/success",
    "train/loss",
    "train/kl",
    "train/entropy",
    "train/completion_length",
)
VALIDATION_FIELDS = tuple(name for name in ROW_FIELDS if name not in ("run_id", "answer_form"))

Curve = list[tuple[float, float]]


def runs_of(project: Project) -> QuerySet[TrainingRun]:
    return TrainingRun.objects.filter(project=project).select_related(
        "project",
        "parent",
        "model_version",
        "dataset__eval_set",
        "environment__verifier",
        "created_by",
        "forked_from",
    )


def chosen_runs(project: Project, given: Iterable[str]) -> list[TrainingRun]:
    """The runs with these ids, each once, in this order; ids outside the project are left out."""
    wanted = list(dict.fromkeys(pk for text in given if (pk := uuid_of(text))))[:MOST]
    found = runs_of(project).in_bulk(wanted)
    return [found[pk] for pk in wanted if pk in found]


# Curves


def names_of(runs: Sequence[TrainingRun]) -> list[str]:
    """The metrics that any of the runs has."""
    rows = Metric.objects.filter(run__in=runs).order_by()
    return sorted(rows.values_list("name", flat=True).distinct())


def curves_of(
    runs: Sequence[TrainingRun],
    names: Collection[str],
    *,
    by_time: bool = False,
    points: int = POINTS,
) -> dict[str, dict[UUID, Curve]]:
    """{metric: {run: [(x, value)]}}. For a long run each point is the mean of several steps, placed
    at the last of them. x is the step, or the hours since the run's first value of the metric."""
    rows = Metric.objects.filter(run__in=runs, name__in=names).order_by()
    width = (rows.aggregate(last=Max("step"))["last"] or 0) // points + 1
    found: dict[str, dict[UUID, Curve]] = defaultdict(lambda: defaultdict(list))
    thinned = rows.annotate(part=F("step") / Value(width)).values("name", "run", "part")
    thinned = thinned.annotate(
        last=Max("step"), mean=Avg("value"), since=Min("at"), until=Max("at")
    )
    begins: dict[tuple[str, UUID], datetime] = {}
    for row in thinned.order_by("name", "run", "part"):
        name, run = row["name"], row["run"]
        hours = (row["until"] - begins.setdefault((name, run), row["since"])).total_seconds() / 3600
        found[name][run].append((round(hours, 4) if by_time else row["last"], row["mean"]))
    return found


def smoothed(values: Sequence[float], weight: float) -> list[float]:
    """The exponential moving average with bias correction as in Adam (and in Weights & Biases and
    TensorBoard).
    """
    if not weight:
        return list(values)
    found, mean, held = [], 0.0, 1.0
    for value in values:
        mean, held = weight * mean + (1 - weight) * value, held * weight
        found.append(mean / (1 - held))
    return found


# Numbers


def ends_of(runs: Sequence[TrainingRun]) -> dict[UUID, dict[str, dict[str, float]]]:
    """{run: {metric: {last, step, mean, low, high}}} for the metrics in the table: the last value,
    and mean, minimum and maximum over the last tenth of the steps.
    """
    lasts = dict(
        Metric.objects.filter(run__in=runs, name__in=SUMMED)
        .order_by()
        .values_list("run")
        .annotate(last=Max("step"))
    )
    found: dict[UUID, dict[str, dict[str, float]]] = defaultdict(dict)
    for run, last in lasts.items():
        values: dict[str, list[tuple[int, float]]] = defaultdict(list)
        rows = Metric.objects.filter(
            run=run, name__in=SUMMED, step__gt=last - max(1, last * LAST_SHARE)
        ).order_by("step")
        for name, step, value in rows.values_list("name", "step", "value"):
            values[name].append((step, value))
        for name, pairs in values.items():
            numbers = [value for _, value in pairs]
            found[run][name] = {
                "last": pairs[-1][1],
                "step": pairs[-1][0],
                "mean": sum(numbers) / len(numbers),
                "low": min(numbers),
                "high": max(numbers),
            }
    return found


def across_seeds(
    runs: Sequence[TrainingRun],
) -> list[tuple[str, float, float | None, float | None]]:
    """(metric, mean, low, high) across the seeds of one group, from each run's final mean, with
    Student's 95% interval; [] for other runs. No interval if all values are equal.
    """
    if len({run.spec.get("group") or run.pk for run in runs}) != 1 or len(runs) < 2:
        return []
    values: dict[str, list[float]] = defaultdict(list)
    for found in ends_of(runs).values():
        for name, end in found.items():
            values[name].append(end["mean"])
    rows = []
    for name in SUMMED:
        if len(values[name]) > 1:
            mean, error = fmean(values[name]), stdev(values[name]) / sqrt(len(values[name]))
            half = student(len(values[name]) - 1) * error
            rows.append(
                (name, mean, mean - half if error else None, mean + half if error else None)
            )
    return rows


def validation_of(run: TrainingRun) -> dict[str, Any] | None:
    """{step, success, reward} of the last validation, with intervals over its tasks; None if there
    was none.
    """
    rows = run.rollouts.filter(phase=Rollout.Phase.VALIDATION)
    step = rows.order_by().aggregate(at=Max("step"))["at"]
    if step is None:
        return None
    found = summarise(rows_of(rows.filter(step=step).only(*VALIDATION_FIELDS)))
    return {
        "step": step,
        "success": found["success"],
        "reward": found["reward"],
        "tasks": found["counts"]["tasks"],
    }


def evaluations_of(runs: Sequence[TrainingRun]) -> dict[int, EvalRun]:
    """{output model: its newest finished evaluation}."""
    made = [run.model_version_id for run in runs if run.model_version_id]
    rows = EvalRun.objects.filter(
        model_version__in=made, state="succeeded", result__has_key="metrics"
    )
    newest = (
        rows.select_related("eval_set")
        .order_by("model_version_id", "-created_at")
        .distinct("model_version_id")
    )
    return {run.model_version_id: run for run in newest}


def settings_of(run: TrainingRun) -> dict[str, Any]:
    """The settings of a run: its configuration, and what it trained on."""
    return {
        "method": run.method,
        "parent": str(run.parent),
        "data": str(run.dataset),
        "data digest": run.dataset.digest[:12],
        "environment": str(run.environment),
        "verifier": str(run.environment.verifier),
        "seed": run.spec.get("seed"),
    } | run.spec.get("config", {})
