"""The jobs of the evals layer: evaluations, latency measured in turns, task imports, variants
written by a model, semantic checks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any

from django.conf import settings

from apps.core.actions import audit
from apps.core.bus import Question, ask
from apps.core.job_files import job_folder
from apps.core.kinds import ChildProcess, Incomplete, InProcess, Needs, register
from apps.core.runner import job_fields
from apps.environments.clients import job_spec
from apps.environments.scorer import record_scorer
from apps.evals import importing, latency, rollouts
from apps.evals.announcing import announce_end
from apps.evals.answers import answers_spec, stored_answers, task_ids
from apps.evals.bounds import fixed_order
from apps.evals.meaning import check
from apps.evals.models import (
    EvalRun,
    LatencyMeasurement,
    MeaningCheck,
    ProposalJob,
    Sample,
    StepSearch,
    Task,
    TaskImport,
    VariantJob,
)
from apps.evals.proposals import making
from apps.evals.replays import job as replays
from apps.evals.rollout_door import door, door_spec
from apps.evals.rollout_parts import rollout_parts
from apps.evals.sample_events import sample_fields
from apps.evals.samples.diagnosis import describe
from apps.evals.samples.transcript import tools_of
from apps.evals.stats import NOTHING_SCORED, SampleRow, summarise
from apps.evals.subsets import subset
from apps.evals.variants import model_job
from apps.registry.bases import needed_base
from apps.registry.harness import harness_spec, store_address
from apps.registry.models import ModelKind
from workers.lib.specs.evaluate import Evaluate
from workers.lib.specs.score_answers import ScoreAnswers
from workers.lib.task_files import write_tasks
from workers.lib.transcripts import CALLS, NOTHING, OWN_CALLS, TEXT
from workers.lib.verifiers.expectations import needs_calls

TASKS_AT_ONCE = 500  # in memory
NOT_COLUMNS = (
    "task",
    "timed_out",
    "crashed",
    "other_results",
    "answered",
    "no_answer",
    "called",
    "needs_calls",
    "id",
    "kinds",
    "accepted",
)
ROW_FIELDS = (
    "run_id",
    "task_id",
    "turns",
    "stop_reason",
    "answer_form",
    *(f.name for f in fields(SampleRow) if f.name not in NOT_COLUMNS),
)
SPENT = ("calls", "tokens", "usd", "without_tokens", "without_cost")  # `AgentClient.spent`


def evaluation_spec(run: EvalRun) -> Evaluate | ScoreAnswers:
    """Raises ScorerChanged if the judge or a remote server changed since an earlier attempt."""
    answers = stored_answers(run) if run.is_answered_elsewhere else None
    record_scorer(run, run.environment, scored=run.samples.exists())
    if answers is not None:
        return answers_spec(run, answers, job_spec(run.environment, _own_prompt(run)))
    return Evaluate(
        **job_fields(run),
        **rollout_parts(
            run,
            run.environment,
            run.model_version,
            engine=run.spec["engine"],
            prompt=run.prompt,
            batch_size=run.spec["batch_size"],
        ),
        rollouts=door_spec(run),
        harness=harness_spec(run),
        samples_per_task=run.samples_per_task,
        tasks=write_tasks(
            job_folder(run) / f"tasks-{run.attempt}.jsonl", (t.as_spec() for t in stream_tasks(run))
        ),
    )


def _own_prompt(run: EvalRun) -> dict[str, Any] | None:
    """None for an agent, which has its own prompt."""
    return None if run.model_version.kind == ModelKind.AGENT else run.prompt


def stream_tasks(run: EvalRun) -> Iterator[Task]:
    """In `fixed_order`, so that a stopped evaluation has evaluated a prefix of it; TASKS_AT_ONCE in
    memory.
    """
    ids = planned_ids(run)
    for start in range(0, len(ids), TASKS_AT_ONCE):
        chunk = ids[start : start + TASKS_AT_ONCE]
        found = {str(task.pk): task for task in Task.objects.filter(pk__in=chunk)}
        yield from (found[pk] for pk in chunk if pk in found)  # erased meanwhile


def planned_ids(run: EvalRun) -> list[str]:
    """The ids of the tasks to evaluate, in `fixed_order`."""
    size = run.spec.get("subset")
    if size is None:
        return task_ids(run)
    return fixed_order(str(task.pk) for task in subset(Task.every.planned_for(run), size))


def planned_groups(run: EvalRun) -> dict[str, str]:
    """{id: group} of the tasks to evaluate, in `fixed_order`."""
    groups = {
        str(pk): group for pk, group in Task.every.planned_for(run).values_list("pk", "group")
    }
    whole = run.spec.get("subset") is None
    return {pk: groups[pk] for pk in (fixed_order(groups) if whole else planned_ids(run))}


def store_events(run: EvalRun, events: list[dict]) -> None:
    store_address(run, events)
    said = [event for event in events if event["type"] == "sample"]
    tasks = run.eval_set.tasks.select_related("trajectory").in_bulk(
        {event["task_id"] for event in said}
    )
    found = {str(pk): task for pk, task in tasks.items()}
    samples = [
        Sample(run=run, task=found[event["task_id"]], index=event["index"], **sample_fields(event))
        for event in said
    ]
    for sample in samples:
        describe(sample)
    Sample.objects.bulk_create(samples, ignore_conflicts=True)
    if spent := next((event for event in reversed(events) if event["type"] == "spent"), None):
        run.result = run.result | {"spent": {name: spent[name] for name in SPENT}}
        EvalRun.objects.filter(pk=run.pk).update(result=run.result)
    if run.spec.get("stop_against"):
        _stop_if_decided(run, len(samples))


class IsDecided(Question[bool]):
    """Whether a comparison needs no more samples of the evaluation, so that it may stop early."""

    run: EvalRun


TIMED_OUT, AGENT_ERROR, OTHER_RESULTS, TOO_LARGE = (
    "time",
    "agent error",
    "other results",
    "size",
)  # stop reasons of `workers.lib.rollouts`
LOOKS = 20  # how often the gate is asked, at equal distances


def _stop_if_decided(run: EvalRun, new: int) -> None:
    done, distance = run.samples.count(), max(1, run.total // LOOKS)
    if (
        done // distance != (done - new) // distance
        and any(ask(IsDecided(run)))
        and run.request_cancel()
    ):
        audit(
            "evalrun.stopped",
            project=run.project,
            by=None,
            target=run,
            name=run.name,
            done=done,
            total=run.total,
        )


def call_needs(run: EvalRun) -> dict[str, bool | None]:
    """{task: `needs_calls`} of the tasks with tools that were failed without a call of these."""
    failed = run.samples.filter(answer_form__in=(TEXT, OWN_CALLS), success=False, masked=False)
    environment = run.environment
    spec = {"kind": environment.kind, "verifier": environment.verifier.spec}
    offered = environment.is_remote or bool(tools_of(run))
    tasks = Task.objects.filter(pk__in=failed.values("task")).only("expected", "metadata", "tools")
    found = {}
    for task in tasks.iterator():
        needs = needs_calls(spec, {"expected": task.expected, "metadata": task.metadata})
        if needs or offered or task.tools:
            found[str(task.pk)] = needs
    return found


def failed_to_answer(sample: Sample) -> bool:
    """Whether the agent crashed, took too long or said nothing, as far as that is its own fault."""
    ended_by = (TIMED_OUT, AGENT_ERROR, TOO_LARGE)
    silent = getattr(sample, "answer_form", "") == NOTHING  # which training does not store
    return not (sample.masked or sample.success) and (silent or sample.stop_reason in ended_by)


def rows_of(
    samples: Iterable[Sample], needs: Mapping[str, bool | None] | None = None
) -> list[SampleRow]:
    """`needs`: as `call_needs` returns it, for the counts of calls."""
    needs = needs or {}
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
            timed_out=sample.stop_reason == TIMED_OUT,
            crashed=sample.stop_reason == AGENT_ERROR,
            other_results=sample.stop_reason == OTHER_RESULTS,
            answered=sample.turns > 0,
            no_answer=failed_to_answer(sample),
            called=getattr(sample, "answer_form", "") == CALLS,
            needs_calls=needs.get(str(sample.task_id), False),
            latency_ms=sample.latency_ms,
            input_tokens=sample.input_tokens,
            output_tokens=sample.output_tokens,
        )
        for sample in samples
    ]


def complete(run: EvalRun, result: dict) -> dict:
    """The metrics, computed from the stored samples and not from what the child reports."""
    rows = rows_of(run.samples.only(*ROW_FIELDS).iterator(), call_needs(run))
    expected = len(planned_ids(run)) * run.samples_per_task
    if len(rows) != expected and run.is_answered_elsewhere:
        raise Incomplete(
            f"Incomplete: {len(rows):,} of {expected:,} answers were sent. It cannot pass the"
            " gate.",
            {"metrics": summarise(rows)},
        )
    if len(rows) != expected:
        raise ValueError(f"The evaluation reported {len(rows)} samples instead of {expected}.")
    metrics = summarise(rows)
    if rows and metrics["counts"]["masked"] == len(rows):
        raise Incomplete(NOTHING_SCORED, run.result | {"metrics": metrics})
    return run.result | {"metrics": metrics}


def end(run: EvalRun) -> None:
    rollouts.forget_states(run)
    announce_end(run)


def needs(run: EvalRun) -> Needs:
    """The base of a model that the job loads itself."""
    is_here = run.spec.get("engine", {}).get("kind") == "transformers"
    return Needs(things=needed_base(run.model_version) if is_here else frozenset())


register(
    EvalRun,
    ChildProcess(
        queue="eval",
        needs=needs,
        child_spec=evaluation_spec,
        store_events=store_events,
        complete=complete,
        beside=door,
        ended=end,
    ),
)
register(
    LatencyMeasurement,
    ChildProcess(
        queue="eval",
        child_spec=latency.latency_spec,
        store_events=latency.store_events,
        complete=latency.complete,
    ),
)
register(ProposalJob, InProcess(queue="default", steps=making.steps))
register(TaskImport, InProcess(queue="default", steps=importing.steps, ended=importing.ended))
register(
    VariantJob,
    ChildProcess(
        queue="eval",
        python=lambda: settings.FLYWHEEL_DESIGNER_PYTHON,
        child_spec=model_job.variants_spec,
        store_events=model_job.store_events,
        complete=model_job.complete,
        ended=model_job.ended,
        time_limit_s=model_job.LONGEST_S,
        if_lost=model_job.IF_LOST,
    ),
)
register(
    StepSearch,
    ChildProcess(
        queue="eval",
        child_spec=replays.find_step_spec,
        store_events=replays.store_events,
        complete=replays.complete,
    ),
)
register(
    MeaningCheck,
    ChildProcess(
        queue="eval",
        child_spec=check.comparison_spec,
        complete=check.complete,
        time_limit_s=check.LONGEST_S,
    ),
)
