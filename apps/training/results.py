"""Storing the result of a run, wherever it was trained: its metrics, the name of its version and
that version's lineage.
"""

from __future__ import annotations

import math

from apps.training.models import Metric, TrainingRun


def store_metrics(run: TrainingRun, events: list[dict]) -> None:
    """A resumed attempt repeats the steps after its checkpoint: the later value counts."""
    latest = {
        (name, event["step"]): float(value)
        for event in events
        if event["type"] == "metric"
        for name, value in event["values"].items()
        if isinstance(value, int | float) and math.isfinite(value)
    }
    Metric.objects.bulk_create(
        [
            Metric(run=run, name=name, step=step, value=value)
            for (name, step), value in latest.items()
        ],
        update_conflicts=True,
        unique_fields=["run", "name", "step"],
        update_fields=["value", "at"],
    )


def version_name(run: TrainingRun) -> str:
    return f"{run.parent.base_version().name}-{run.method.removesuffix('_model').replace('_', '-')}"


def lineage(run: TrainingRun) -> dict:
    """Everything that produced the version, frozen: enough to reproduce it and to find its
    production trajectories.
    """
    made_from = {name: value for name, value in run.spec.items() if name != "estimate"}
    return (
        made_from
        | ({"reduced": run.reduced} if run.reduced else {})
        | {
            "run": str(run.pk),
            "method": run.method,
            "parent": str(run.parent),
            "dataset": str(run.dataset_id),
            "environment": str(run.environment),
            "verifier": str(run.environment.verifier),
        }
    )
