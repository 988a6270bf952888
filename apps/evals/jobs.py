"""The jobs of floor 6: evaluations, latency measured in turns, imports of tasks, variants that a model writes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from django.conf import settings

from apps.core.actions import audit
from apps.core.kinds import ChildProcess, InProcess, register
from apps.environments.scorer import record_scorer
from apps.evals import importing, latency
from apps.evals.bounds import fixed_order
from apps.evals.models import EvalRun, LatencyMeasurement, Sample, SampleFields, Task, TaskImport, VariantJob
from apps.evals.stats import SampleRow, summarise
from apps.evals.subsets import subset
from apps.evals.variants import model_job
from apps.registry.actions import engine_spec, model_spec

SAMPLE_FIELDS = tuple(field.name for field in SampleFields._meta.get_fields() if field.name != "created_at")


def child_spec(run: EvalRun) -> dict:
    record_scorer(run, run.environment)
    return {
        "kind": "evaluate",
        "seed": run.spec["seed"],
        "model": model_spec(run.model_version),
        "engine": engine_spec(run.model_version, run.spec["batch_size"]),
        "environment": run.environment.job_spec(),
        "samples_per_task": run.samples_per_task,
        "tasks": [task.as_spec() for task in tasks_of(run)],
    }


def tasks_of(run: EvalRun) -> list[Task]:
    """In `fixed_order`, so that an evaluation that is stopped has evaluated a prefix of it."""
    found = {str(task.pk): task for task in subset(run.eval_set.tasks.filter(split=run.split), run.spec.get("subset"))}
    return [found[pk] for pk in fixed_order(found)]


def sample_fields(event: dict) -> dict[str, Any]:
    """The fields of a sample event that are columns of a sample. A reward that is no finite number masks the sample."""
    found = {name: event[name] for name in SAMPLE_FIELDS if event.get(name) is not None or name == "reward"}
    if found["reward"] is None and not found.get("masked"):
        found |= {"masked": True, "success": False, "mask_reason": "The verifier's reward is not a finite number."}
    return found


def store_events(run: EvalRun, events: list[dict]) -> None:
    Sample.objects.bulk_create(
        [
            Sample(run=run, task_id=event["task_id"], index=event["index"], **sample_fields(event))
            for event in events
            if event["type"] == "sample"
        ],
        ignore_conflicts=True,
    )
    if run.spec.get("stop_against"):
        _stop_if_decided(run, sum(event["type"] == "sample" for event in events))


DECIDED: list[Callable[[EvalRun], bool]] = []  # the gate, a floor above: may an evaluation that asks for it stop?
LOOKS = 20  # at which it is asked, at equal distances


def _stop_if_decided(run: EvalRun, new: int) -> None:
    done, distance = run.samples.count(), max(1, run.total // LOOKS)
    if (
        done // distance != (done - new) // distance
        and any(decided(run) for decided in DECIDED)
        and run.request_cancel()
    ):
        audit("evalrun.stopped", project=run.project, by=None, target=run, name=run.name, done=done, total=run.total)


def rows_of(samples: Iterable[Sample]) -> list[SampleRow]:
    return [
        SampleRow(
            task=str(sample.task_id),
            reward=sample.reward,
            success=sample.success,
            valid=sample.valid,
            tool_ok=sample.tool_ok,
            args_score=sample.args_score,
            executed=sample.executed,
            unsafe=sample.unsafe,
            masked=sample.masked,
            latency_ms=sample.latency_ms,
            input_tokens=sample.input_tokens,
            output_tokens=sample.output_tokens,
        )
        for sample in samples
    ]


def complete(run: EvalRun, result: dict) -> dict:
    """The metrics, computed from the stored samples and not from what the child says."""
    rows = rows_of(run.samples.defer("output", "messages"))
    expected = len(tasks_of(run)) * run.samples_per_task
    if len(rows) != expected:
        raise ValueError(f"The evaluation reported {len(rows)} samples; {expected} were asked for.")
    return {"metrics": summarise(rows)}


register(
    EvalRun,
    ChildProcess(
        queue="eval",
        program=lambda run: "evaluate",
        child_spec=child_spec,
        store_events=store_events,
        complete=complete,
    ),
)
register(
    LatencyMeasurement,
    ChildProcess(
        queue="eval",
        program=lambda measurement: "measure_latency",
        child_spec=latency.child_spec,
        store_events=latency.store_events,
        complete=latency.complete,
    ),
)
register(TaskImport, InProcess(queue="default", steps=importing.steps, ended=importing.ended))
register(
    VariantJob,
    ChildProcess(
        queue="eval",
        program=lambda job: "write_variants",
        python=lambda: settings.FLYWHEEL_DESIGNER_PYTHON,
        child_spec=model_job.child_spec,
        store_events=model_job.store_events,
        complete=model_job.complete,
        ended=model_job.ended,
        time_limit_s=model_job.LONGEST_S,
        if_lost=model_job.IF_LOST,
    ),
)
