"""Latency of several evaluations' models, measured in turns by one job. See docs/gate.md."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from django.db import transaction

from apps.core import jobs
from apps.core.models import JobState
from apps.core.runner import job_fields
from apps.environments.clients import job_spec
from apps.evals.models import EvalRun, EvalSet, LatencyMeasurement, TimedAnswer
from apps.registry.engines import default_engine, engine_spec, model_spec
from apps.registry.models import Engine, ModelVersion
from workers.lib.specs.measure_latency import MeasureLatency, Timed

TASKS, ROUNDS = 40, 4


class LatencyError(Exception):
    """A measurement that cannot be made; the message is a sentence for the page."""


@transaction.atomic
def submit_measurement(
    *,
    runs: Sequence[EvalRun],
    by: Any,
    tasks: int = TASKS,
    rounds: int = ROUNDS,
    seed: int = 0,
    adapters: str = LatencyMeasurement.Adapters.MERGED,
) -> LatencyMeasurement:
    """Queues a measurement of the runs' models on up to `tasks` tasks of their split. Raises
    LatencyError.
    """
    first = runs[0]
    if len({run.pk for run in runs}) < 2:
        raise LatencyError("Choose at least two evaluations to measure.")
    if (
        len(
            {
                (run.project_id, run.eval_set_id, run.split, run.environment.task_hash)
                for run in runs
            }
        )
        > 1
    ):
        raise LatencyError(
            "The evaluations differ in their tasks. Only models that answer the same tasks can be"
            " measured."
        )
    if len(places := {_where_served(run.model_version) for run in runs}) > 1:
        raise LatencyError(
            f"The models run in different places ({', '.join(sorted(places))}). Latency can only be"
            " compared on the same server."
        )
    if elsewhere := next((run for run in runs if run.model_version.engine == Engine.AGENT), None):
        raise LatencyError(
            f"{elsewhere.model_version} runs elsewhere, so its latency cannot be measured here."
        )
    EvalSet.objects.select_for_update().get(pk=first.eval_set_id)  # pressing twice queues one
    if same := measurements_of(runs).filter(state__in=(JobState.QUEUED, JobState.RUNNING)).first():
        return same
    ids = [
        str(pk)
        for pk in (
            first.eval_set.tasks.filter(split=first.split)
            .order_by("pk")
            .values_list("pk", flat=True)
        )
    ]
    chosen = random.Random(seed).sample(ids, min(tasks, len(ids)))
    names = ", ".join(str(run.model_version) for run in runs)
    measurement = LatencyMeasurement(
        project=first.project,
        name=f"Latency of {names}"[:200],
        adapters=adapters,
        total=len(chosen) * rounds * len(runs),
        spec={
            "runs": [str(run.pk) for run in runs],
            "tasks": chosen,
            "rounds": rounds,
            "seed": seed,
        },
    )
    jobs.submit(measurement, by=by)
    measurement.runs.set(runs)
    return measurement


def _where_served(version: ModelVersion) -> str:
    server = version.model.server
    return server.base_url if server else "this installation"


def measurements_of(runs: Iterable[EvalRun]) -> Any:
    """The measurements that include all of these runs, newest first."""
    found = LatencyMeasurement.objects.order_by("-created_at")
    for run in runs:
        found = found.filter(runs=run)
    return found


def latencies(measurement: LatencyMeasurement, run: EvalRun) -> dict[str, list[float]]:
    """{task id: milliseconds, in the order of the rounds} of the attempt that ended the job."""
    rows = measurement.answers.filter(
        run=run, attempt=measurement.attempt, latency_ms__isnull=False
    )
    found: dict[str, list[float]] = defaultdict(list)
    for task, ms in rows.order_by("task_id", "round").values_list("task_id", "latency_ms"):
        found[str(task)].append(ms)
    return dict(found)


# The job


def latency_spec(measurement: LatencyMeasurement) -> MeasureLatency:
    spec = measurement.spec
    runs = {
        str(run.pk): run
        for run in measurement.runs.select_related("model_version", "environment__verifier")
    }
    first = runs[spec["runs"][0]]
    tasks = {str(task.pk): task for task in first.eval_set.tasks.filter(pk__in=spec["tasks"])}
    return MeasureLatency(
        **job_fields(measurement),
        adapters=measurement.adapters,
        rounds=spec["rounds"],
        versions=[
            Timed(
                id=pk,
                model=model_spec(runs[pk].model_version),
                engine=engine_spec(
                    runs[pk].model_version, 1, default_engine(runs[pk].model_version)
                ),
                environment=job_spec(runs[pk].environment, runs[pk].prompt),
            )
            for pk in spec["runs"]
        ],
        tasks=[tasks[pk].as_spec() for pk in spec["tasks"]],
    )


def store_events(measurement: LatencyMeasurement, events: list[dict]) -> None:
    names = ("round", "turn", "latency_ms", "input_tokens", "output_tokens")
    TimedAnswer.objects.bulk_create(
        [
            TimedAnswer(
                measurement=measurement,
                attempt=measurement.attempt,
                run_id=event["version"],
                task_id=event["task_id"],
                **{name: event[name] for name in names},
            )
            for event in events
            if event["type"] == "sample"
        ],
        ignore_conflicts=True,
    )


def complete(measurement: LatencyMeasurement, result: dict) -> dict:
    """Median and p95 of each run's answers, from the stored rows."""
    found = {}
    for pk in measurement.spec["runs"]:
        rows = measurement.answers.filter(run=pk, attempt=measurement.attempt)
        ms = list(rows.exclude(latency_ms=None).values_list("latency_ms", flat=True))
        if not ms:
            raise ValueError("None of the answers of one of the models could be timed.")
        p50, p95 = np.percentile(ms, [50, 95])
        found[pk] = {
            "p50": float(p50),
            "p95": float(p95),
            "n": len(ms),
            "failed": rows.count() - len(ms),
        }
    return {"runs": found, "rounds": result["metrics"]["rounds"]}
