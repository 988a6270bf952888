"""Compares the actual cost of a run with the estimate made before it started."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.db.models import Count, Sum

from apps.core.models import JobState
from apps.training.budget.estimate import Estimate, from_json
from apps.training.budget.numbers import Span
from apps.training.models import Metric, Rollout, TrainingRun

TEACHER = {"teacher/tokens": "teacher_tokens", "teacher/usd": "teacher_usd"}
TRAINED = {
    "train/tokens": "trained_tokens",
    "train/distinct_tokens": "distinct_tokens",
}  # of each step


@dataclass(frozen=True)
class Compared:
    """`unit`: how a template formats the values. `truth` is None if it is not known."""

    name: str
    unit: str
    span: Span | None
    truth: float | None

    @property
    def factor(self) -> float | None:
        """Truth ÷ the likely value."""
        return (
            self.truth / self.span.likely if self.span and self.span.likely and self.truth else None
        )

    @property
    def inside(self) -> bool:
        return (
            self.truth is None or self.span is None or self.span.low <= self.truth <= self.span.high
        )


def estimate_of(run: TrainingRun) -> Estimate | None:
    return from_json(run.spec.get("estimate"))


def seconds_of(run: TrainingRun) -> float | None:
    """Seconds of a run that did all its steps in one attempt; None otherwise, since the last
    attempt's time covers only part of it.
    """
    whole = run.state == JobState.SUCCEEDED and run.attempt == 1
    return run.seconds if whole else None


def factor_of(run: TrainingRun) -> float | None:
    """Actual time ÷ estimated time."""
    found, took = (run.spec.get("estimate") or {}).get("seconds"), seconds_of(run)
    likely = found.get("likely") if isinstance(found, dict) else None
    return took / likely if took and likely else None


@dataclass
class Used:
    """What a run has used so far: tokens that it sampled, tokens of its teacher's server, and USD
    paid for these. Of a run that counted them in all its steps: the tokens of its updates, and
    those that were computed.
    """

    sampled: int | None = None
    teacher_tokens: float | None = None
    teacher_usd: float | None = None
    trained_tokens: float | None = None
    distinct_tokens: float | None = None


def add_used(runs: Sequence[TrainingRun]) -> None:
    """Gives each what it has `used`, in three queries for all of them."""
    found = {run.pk: Used() for run in runs}
    asked = (
        Metric.objects.filter(run__in=found, name__in=TEACHER)
        .order_by("run", "name", "-step")
        .distinct("run", "name")
    )
    for pk, name, value in asked.values_list("run", "name", "value"):
        setattr(found[pk], TEACHER[name], value)
    done = [
        run.pk
        for run in runs
        if run.state == JobState.SUCCEEDED and (estimate_of(run) or Estimate()).rollout_tokens
    ]
    rows = (
        Rollout.objects.filter(run__in=done, phase=Rollout.Phase.TRAIN).order_by()
        if done
        else Rollout.objects.none()
    )
    for pk, n in rows.values_list("run").annotate(n=Sum("output_tokens")):
        found[pk].sampled = n
    ended = {run.pk: steps_of(run) for run in runs if run.state == JobState.SUCCEEDED}
    counted = (
        Metric.objects.filter(run__in=ended, name__in=TRAINED).order_by()
        if ended
        else Metric.objects.none()
    )
    for pk, name, n, steps in counted.values_list("run", "name").annotate(
        n=Sum("value"), steps=Count("pk")
    ):
        if steps >= ended[pk]:
            setattr(found[pk], TRAINED[name], n)
    for run in runs:
        run.used = found[run.pk]


def steps_of(run: TrainingRun) -> int:
    """The steps that the run itself takes: a fork starts at a later one."""
    return run.total - (run.spec.get("forked_from") or {}).get("step", 0)


def compared(run: TrainingRun) -> list[Compared]:
    """Empty if nothing was estimated and nothing is known."""
    if not hasattr(run, "used"):
        add_used([run])
    before = estimate_of(run) or Estimate()
    took, peak = seconds_of(run), run.result.get("peak") or {}
    hour = settings.FLYWHEEL_MACHINE_USD
    usd = took * hour / 3600 if took and hour and not run.spec.get("rollouts") else None
    paid = run.used.teacher_usd
    if run.spec.get("teacher_engine"):  # the machine's cost is known, or is zero
        usd = (usd or 0.0) + paid if paid is not None and (usd is not None or not hour) else None
    rows = [
        Compared("Time", "seconds", before.seconds, took),
        Compared(
            "Peak memory", "bytes", before.memory, peak.get("gpu_memory") or peak.get("memory")
        ),
        Compared("Rollout tokens", "count", before.rollout_tokens, run.used.sampled),
        Compared("Teacher tokens", "count", before.teacher_tokens, run.used.teacher_tokens),
        Compared(
            "Training tokens, distinct", "count", before.distinct_tokens, run.used.distinct_tokens
        ),
        Compared("Training tokens, all", "count", before.training_tokens, run.used.trained_tokens),
        Compared("Cost", "usd", before.usd, usd),
    ]
    return [one for one in rows if one.span is not None or one.truth is not None]


def paid_to_teacher(run: TrainingRun) -> float | None:
    """USD so far, at the server's prices when the run was started; None if no server teaches."""
    rows = run.metrics.filter(name="teacher/usd").order_by("-step")
    return rows.values_list("value", flat=True).first()


def add_factors(runs: Sequence[Any]) -> None:
    for run in runs:
        run.factor = factor_of(run)
