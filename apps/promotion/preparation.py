"""What the gate needs besides the two evaluations: latency in turns, regression tasks, general
capability.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.db import transaction

from apps.core.models import Job, JobState
from apps.evals.actions import EvalSetError
from apps.evals.capability.environment import general_environment, general_environments
from apps.evals.latency import LatencyError, measurements_of, submit_measurement
from apps.evals.models import EvalRun, EvalRunQuerySet, LatencyMeasurement, Split
from apps.evals.submission import submit_eval
from apps.registry.actions import ModelError
from apps.registry.engines import default_engine, same_as
from apps.registry.harness import agent_in

GENERAL_TASKS = 120  # of the split's, unless another number is given
ENDED_BADLY = (JobState.FAILED, JobState.CANCELLED)
SPLITS = (Split.REGRESSION, Split.GENERAL)


@dataclass(frozen=True)
class Part:
    """One thing to measure for both models. `jobs` has a measurement, or one evaluation per
    model.
    """

    title: str
    jobs: list[Job]
    wanted: int  # how many jobs it takes

    @property
    def state(self) -> str:
        if len(self.jobs) < self.wanted:
            return "missing"
        return next(
            (job.state for job in self.jobs if job.state != JobState.SUCCEEDED), JobState.SUCCEEDED
        )


def parts(baseline: EvalRun, candidate: EvalRun) -> list[Part]:
    measured = [found] if (found := measurements_of([baseline, candidate]).first()) else []
    found_parts = [Part("Latency, interleaved", measured, 1)]
    for split in splits_of(candidate):
        runs = [run for side in (baseline, candidate) if (run := guard_runs(side, split).first())]
        found_parts.append(Part(f"{split.label} tasks", list(runs), 2))
    return found_parts


def splits_of(run: EvalRun) -> list[Split]:
    """What a comparison on the hold-out guards besides; one on another split promotes nothing, and
    guards nothing.
    """
    if run.split != Split.HOLDOUT:
        return []
    there = set(run.eval_set.tasks.filter(split__in=SPLITS).values_list("split", flat=True))
    return [split for split in SPLITS if split in there]


def guard_runs(run: EvalRun, split: Split) -> EvalRunQuerySet:
    """The evaluations of the run's model on another split of its set, newest first: regression
    tasks with its agent's part, general capability with the bare model."""
    found = EvalRun.objects.filter(
        eval_set=run.eval_set, split=split, model_version=run.model_version
    )
    found = found.select_related("environment__verifier", "eval_set", "model_version").order_by(
        "-created_at"
    )
    if split == Split.GENERAL:
        return found.played_by("").filter(environment__in=general_environments(run.project))
    found = found.played_by(run.harness if run.played_by else "")
    return found.filter(environment=run.environment, samples_per_task=run.samples_per_task)


def tries(run: EvalRun) -> int:
    """Evaluations like this one that were started up to it, finished or not: since the newest is
    used, it could be chosen.
    """
    return max(1, guard_runs(run, Split(run.split)).filter(started_at__lte=run.started_at).count())


def measured_guards(baseline: EvalRun, candidate: EvalRun) -> dict[str, list[EvalRun] | None]:
    """{split: [baseline's run, candidate's run]}: the newest two on the same tasks; None if one is
    missing.
    """
    return {str(split): _pair(baseline, candidate, split) for split in splits_of(candidate)}


def _pair(baseline: EvalRun, candidate: EvalRun, split: Split) -> list[EvalRun] | None:
    done = [
        guard_runs(side, split).filter(state=JobState.SUCCEEDED) for side in (baseline, candidate)
    ]
    pairs = (
        [before, after] for after in done[1] for before in done[0] if _same_tasks(before, after)
    )
    return next(pairs, None)


def _same_tasks(first: EvalRun, *others: EvalRun) -> bool:
    runs = (first, *others)
    return all(run.is_played_like(first) for run in others) and (
        len(
            {
                (run.environment.task_hash, run.samples_per_task, run.spec.get("subset"))
                for run in runs
            }
        )
        == 1
    )


def measurement(baseline: EvalRun, candidate: EvalRun) -> LatencyMeasurement | None:
    return measurements_of([baseline, candidate]).filter(state=JobState.SUCCEEDED).first()


@transaction.atomic
def prepare(
    *,
    baseline: EvalRun,
    candidate: EvalRun,
    by: Any,
    general_tasks: int = GENERAL_TASKS,
    adapters: str = "merged",
) -> list[str]:
    """Queues what is missing or failed. Returns sentences about what cannot be measured."""
    problems = []
    for part in parts(baseline, candidate):
        if part.wanted == 1 and part.state in ("missing", *ENDED_BADLY):
            try:
                submit_measurement(runs=[baseline, candidate], by=by, adapters=adapters)
            except LatencyError as error:
                problems.append(str(error))
    for split in splits_of(candidate):
        for run in {run.model_version_id: run for run in (baseline, candidate)}.values():
            last = guard_runs(run, split).first()
            if last is None or last.state in ENDED_BADLY:
                problems += _submit_guard(run, split, by, general_tasks)
    return problems


def _submit_guard(run: EvalRun, split: Split, by: Any, general_tasks: int) -> list[str]:
    general = split == Split.GENERAL
    played_by = None if general else agent_in(run.spec)
    try:
        submit_eval(
            project=run.project,
            eval_set=run.eval_set,
            split=split,
            environment=(
                general_environment(project=run.project, by=by) if general else run.environment
            ),
            model_version=run.model_version,
            samples_per_task=1 if general else run.samples_per_task,
            subset=general_tasks if general else None,
            engine=same_as(run.spec.get("engine") or default_engine(run.model_version)),
            played_by=played_by,
            by=by,
        )
    except (EvalSetError, ModelError) as error:
        return [str(error)]
    return []
