"""Renaming, archiving and deleting training runs, and what their lineage keeps from deletion."""

from __future__ import annotations

from apps.core.bus import on
from apps.core.managed.objects import Managed, WhyNotDelete, register
from apps.evals.models import EvalRun
from apps.registry.models import ModelVersion
from apps.training.models import TrainingRun

register(
    Managed(
        kind="run",
        noun="the training run",
        plural="Training",
        model=TrainingRun,
        name="name",
        versioned=False,
    )
)


@on(WhyNotDelete[TrainingRun])
def made_a_model(question: WhyNotDelete[TrainingRun]) -> str | None:
    version = question.row.model_version
    return f"It is part of the lineage of {version}." if version else None


@on(WhyNotDelete[EvalRun])
def led_to_a_run(question: WhyNotDelete[EvalRun]) -> str | None:
    evaluation = question.row
    runs = TrainingRun.objects.filter(project=evaluation.project_id)
    if runs.filter(spec__picked_by=str(evaluation.pk)).exists():
        return "It was used to pick the tasks of a training run, whose lineage it is."
    if runs.filter(spec__samples_of=str(evaluation.pk)).exists():
        return "A training run learned from its samples, whose lineage it is."
    return None


@on(WhyNotDelete[ModelVersion])
def taught_a_run(question: WhyNotDelete[ModelVersion]) -> str | None:
    teacher = question.row
    runs = TrainingRun.objects.filter(project=teacher.project_id, spec__teacher=teacher.pk)
    if run := runs.first():
        return f"It was the teacher of the training run {run.name} and is part of its lineage."
    return None
