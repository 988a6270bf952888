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
from apps.training.models import Rollout, TrainingRun


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
        return self.truth / self.span.likely if self.span and self.span.likely and self.truth else None

    @property
    def inside(self) -> bool:
        return self.truth is None or self.span is None or self.span.low <= self.truth <= self.span.high


def estimate_of(run: TrainingRun) -> Estimate | None:
    return from_json(run.spec.get("estimate"))


def seconds_of(run: TrainingRun) -> float | None:
    """Seconds of a run that did all its steps in one attempt; None otherwise, since the last attempt's time covers only
    part of it.
    """
    whole = run.state == JobState.SUCCEEDED and run.attempt == 1
    return run.seconds if whole else None


def factor_of(run: TrainingRun) -> float | None:
    """Actual time ÷ estimated time."""
    found, took = (run.spec.get("estimate") or {}).get("seconds"), seconds_of(run)
    likely = found.get("likely") if isinstance(found, dict) else None
    return took / likely if took and likely else None


def compared(run: TrainingRun) -> list[Compared]:
    """Empty if nothing was estimated and nothing is known."""
    before = estimate_of(run) or Estimate()
    took, peak = seconds_of(run), run.result.get("peak") or {}
    written = None
    if run.state == JobState.SUCCEEDED and before.rollout_tokens:
        rows = run.rollouts.filter(phase=Rollout.Phase.TRAIN)
        written = rows.aggregate(n=Sum("output_tokens"))["n"]
    hour = settings.FLYWHEEL_MACHINE_USD
    usd = took * hour / 3600 if took and hour and not run.spec.get("rollouts") else None
    asked, paid = last(run, "teacher/tokens"), paid_to_teacher(run)
    if run.spec.get("teacher_engine"):  # the machine's cost is known, or is zero
        usd = (usd or 0.0) + paid if paid is not None and (usd is not None or not hour) else None
    rows = [
        Compared("Time", "seconds", before.seconds, took),
        Compared("Peak memory", "bytes", before.memory, peak.get("gpu_memory") or peak.get("memory")),
        Compared("Rollout tokens", "count", before.rollout_tokens, written),
        Compared("Teacher tokens", "count", before.teacher_tokens, asked),
        Compared("Training tokens, distinct", "count", before.distinct_tokens, trained(run, "train/distinct_tokens")),
        Compared("Training tokens, all", "count", before.training_tokens, trained(run, "train/tokens")),
        Compared("Cost", "usd", before.usd, usd),
    ]
    return [one for one in rows if one.span is not None or one.truth is not None]


def trained(run: TrainingRun, metric: str) -> float | None:
    """Tokens in all updates of a run that did all its steps; None where they were not counted in each."""
    found = run.metrics.filter(name=metric).aggregate(n=Sum("value"), steps=Count("pk"))
    steps = run.total - (run.spec.get("forked_from") or {}).get("step", 0)
    return found["n"] if run.state == JobState.SUCCEEDED and found["steps"] >= steps else None


def paid_to_teacher(run: TrainingRun) -> float | None:
    """USD so far, at the server's prices when the run was started; None if no server teaches."""
    return last(run, "teacher/usd")


def last(run: TrainingRun, metric: str) -> float | None:
    """The newest value of a metric."""
    return run.metrics.filter(name=metric).order_by("-step").values_list("value", flat=True).first()


def add_factors(runs: Sequence[Any]) -> None:
    for run in runs:
        run.factor = factor_of(run)
