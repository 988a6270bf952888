"""Finished evaluations with a given number of passes of each task."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from apps.core.models import JobState
from apps.evals.drafts import freeze
from apps.evals.jobs import rows_of
from apps.evals.models import EvalRun, EvalSet, Sample, Split
from apps.evals.stats import summarise
from tests.factories import (
    admin_of,
    make_base,
    make_environment,
    make_eval_set,
    make_project,
    unsearched,
)


def frozen_set(train: int = 5, **columns: Any) -> EvalSet:
    """A set of its own project, frozen; its training tasks have these columns."""
    draft = make_eval_set(make_project(), train=train, frozen=False)
    draft.tasks.filter(split=Split.TRAIN).update(**columns)
    with unsearched():
        return freeze(eval_set=draft, by=admin_of(draft.project))


def evaluated(
    eval_set: EvalSet,
    passed: Sequence[int],
    folder: Path,
    samples: int = 4,
    split: Split = Split.TRAIN,
    finished: bool = True,
) -> EvalRun:
    """The tasks of the split, by key, pass in as many of their samples as `passed` says; the others
    have no sample.
    """
    project = eval_set.project
    environment = project.environments.first() or make_environment(project)
    run = EvalRun.objects.create(
        project=project,
        name=f"base on {eval_set}",
        eval_set=eval_set,
        split=split,
        environment=environment,
        model_version=project.model_versions.first() or make_base(project, folder),
        samples_per_task=samples,
        spec={"seed": 0, "batch_size": 8},
        created_by=admin_of(project),
    )
    Sample.objects.bulk_create(
        Sample(
            run=run,
            task=task,
            index=index,
            output="x",
            reward=float(index < good),
            success=index < good,
        )
        for task, good in zip(eval_set.tasks.filter(split=split), passed, strict=False)
        for index in range(samples)
    )
    run.claim("test")
    if finished:
        run.finish(
            JobState.SUCCEEDED,
            result={"metrics": summarise(rows_of(run.samples.all()))} if passed else {},
        )
    run.refresh_from_db()
    return run
