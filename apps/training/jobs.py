"""The jobs of the training layer: what a training run passes to its child process, and what it
stores of the output; prompt searches.
"""

from __future__ import annotations

from pathlib import Path

from django.db import transaction

from apps.core.kinds import ChildProcess, register
from apps.core.models import JobState
from apps.environments.clients import job_spec, load_for
from apps.environments.scorer import record_scorer
from apps.evals.holdout import leaks
from apps.evals.jobs import sample_fields
from apps.evals.learnability.run import RunLearnability, tasks_of
from apps.evals.models import EvalRun, Split, Task
from apps.registry.actions import register_adapter, register_reward_model
from apps.registry.adapters import load_for as load_adapter
from apps.registry.artifacts import store_folder
from apps.registry.engines import engine_spec, model_spec
from apps.registry.rollout_servers import rollouts_spec
from apps.registry.trained_elsewhere import numbers_of
from apps.training import checkpoints, memory, run_alarms
from apps.training.budget import measuring
from apps.training.engines import ray
from apps.training.judged import kept_aside
from apps.training.models import (
    PROGRAMS,
    SHAPES,
    Checkpoint,
    Measurement,
    Method,
    PromptSearch,
    Rollout,
    TrainingRun,
)
from apps.training.prompt_search import job as prompt_search
from apps.training.refusals import refuse_leaks
from apps.training.results import lineage, store_metrics, version_name
from apps.training.reward_lock import require_reviewed
from apps.training.sft_rows import as_leak_row, example_rows, sft_row, whole_conversation
from apps.training.sources import groups_of
from apps.training.teachers import teacher_of
from workers.lib.specs import SIDE_BY_SIDE


def child_spec(run: TrainingRun) -> dict:
    """The spec of the child process. Checks the lock again: a review, the policy, the judge or a
    remote server may have changed since the run was queued. Raises TrainingLocked, HoldoutLeak.
    """
    record_scorer(run, run.environment)
    checkpoint, tasks = checkpoints.latest(run), run.dataset.tasks()
    require_reviewed(
        method=run.method,
        dataset=run.dataset,
        environment=run.environment,
        by=run.created_by,
        scorer=run.spec["scorer"],
    )
    config = memory.settings_of(run)
    spec = {
        "kind": PROGRAMS.get(run.method, run.method),
        "seed": run.spec["seed"],
        "model": model_spec(run.parent),
        "engine": engine_spec(run.parent, config.get("sample_batch") or SIDE_BY_SIDE),
        "environment": job_spec(run.environment),
        "config": config,
        "resume_from": checkpoint and checkpoint.path,
    }
    validation = list(run.dataset.eval_set.tasks.filter(split=Split.VALIDATION))
    if run.method in (*SHAPES, Method.SFT):
        if not run.spec["config"].get("eval_every") or run.method == Method.REWARD:
            validation = []
        refuse_leaks(
            run, tasks + validation, ((task.key, leaks.row_of(task)) for task in validation)
        )
        if validation:
            spec["validation_tasks"] = [named_task(task) for task in validation]
    if run.method in SHAPES:
        examples = list(run.dataset.examples.select_related("task"))
        rows = example_rows(run, examples)
        refuse_leaks(run, tasks, ((name, as_leak_row(row)) for name, row in rows))
        kinds = [example.data.get("good") for example in examples]
        aside = kept_aside(
            groups_of(examples), run.spec["config"].get("validation_share", 0), kinds
        )
        return spec | {
            "rows": [row for at, (_, row) in enumerate(rows) if at not in aside],
            "validation_rows": [row for at, (_, row) in enumerate(rows) if at in aside],
        }
    if run.method == Method.SFT:
        environment = load_for(run.environment)
        shown = {task.key: row for task in tasks if (row := sft_row(task, environment))}
        refuse_leaks(run, tasks, ((key, whole_conversation(row)) for key, row in shown.items()))
        held = [row for task in validation if (row := sft_row(task, environment))]
        return spec | {"rows": list(shown.values()), "validation_rows": held}
    refuse_leaks(run, tasks, ((task.key, leaks.row_of(task)) for task in tasks + validation))
    if run.method == Method.BEST_OF_N:
        environment, every = load_for(run.environment), run.spec["config"]["eval_every"]
        held = [row for task in validation if every and (row := sft_row(task, environment))]
        spec |= {"validation_rows": held}
        validation = validation if every else []
    if teacher := teacher_of(run):
        engine = run.spec.get("teacher_engine")
        load_adapter(run, teacher, engine)
        spec["teacher"] = model_spec(teacher, engine)
        if engine:
            spec["teacher_server"] = engine_spec(teacher, SIDE_BY_SIDE, engine)
    if run.spec.get("rollouts"):
        spec["rollouts"] = rollouts_spec(run.pk, run.spec["rollouts"])
    return spec | {
        "tasks": [named_task(task) for task in tasks],
        "validation_tasks": [named_task(task) for task in validation],
        **({"success_rates": success_rates(run)} if run.spec["config"].get("curriculum") else {}),
    }


def named_task(task: Task) -> dict:
    """The task's spec with its key, which messages of the run use."""
    return task.as_spec() | {"key": task.key}


def success_rates(run: TrainingRun) -> dict[str, float]:
    """{task: share of samples that passed} in the evaluation that chose the run's tasks, or else in
    the parent's newest on the train split.
    """
    found = EvalRun.objects.filter(
        project=run.project,
        eval_set=run.dataset.eval_set,
        split=Split.TRAIN,
        state=JobState.SUCCEEDED,
    )
    picked = run.spec.get("picked_by")
    chosen = (
        found.filter(pk=picked)
        if picked
        else found.filter(model_version=run.parent).order_by("-created_at")
    )
    if (evaluated := chosen.first()) is None:
        return {}
    return {view.task: view.rate for view in tasks_of(evaluated, RunLearnability(evaluated).names)}


def store_events(run: TrainingRun, events: list[dict]) -> None:
    store_metrics(run, events)
    run_alarms.store(run, events)
    for event in events:
        if event["type"] == "checkpoint":
            Checkpoint.objects.update_or_create(
                run=run,
                step=event["step"],
                defaults={"path": event["path"], "attempt": run.attempt},
            )
    if any(event["type"] == "checkpoint" for event in events):
        checkpoints.prune(run)
    Rollout.objects.bulk_create(
        [
            Rollout(
                run=run,
                task_id=event["task_id"],
                phase=event["phase"],
                step=event["step"],
                index=event["index"],
                **sample_fields(event),
            )
            for event in events
            if event["type"] == "sample"
        ],
        ignore_conflicts=True,
    )


def complete(run: TrainingRun, result: dict) -> dict:
    """Store the adapter and create its model version, in the transaction that ends the run. Raises
    ModelError if its weights contain NaN.
    """
    measured, numbers = result.get("metrics") or {}, numbers_of(Path(result["adapter"]), run.parent)
    with transaction.atomic():
        artifact = store_folder(Path(result["adapter"]))
        made = {
            "project": run.project,
            "name": version_name(run),
            "parent": run.parent,
            "artifact": artifact,
            "by": run.created_by,
        }
        if run.method == Method.REWARD:
            version = register_reward_model(**made, lineage=lineage(run) | {"measured": measured})
        else:
            version = register_adapter(**made, lineage=lineage(run) | numbers)
        TrainingRun.objects.filter(pk=run.pk).update(model_version=version)
    return {
        "model_version": str(version),
        "adapter_digest": artifact.digest,
        "metrics": measured,
        "outcome": [str(sentence)[:400] for sentence in result.get("outcome") or ()],
    }


register(
    TrainingRun,
    ChildProcess(
        queue="train",
        program=lambda run: "ray_job" if run.on_cluster else PROGRAMS.get(run.method, run.method),
        child_spec=lambda run: ray.child_spec(run) if run.on_cluster else child_spec(run),
        store_events=store_events,
        complete=lambda run, result: (
            ray.complete(run, result) if run.on_cluster else complete(run, result)
        ),
        ended=lambda run: ray.ended(run) if run.on_cluster else None,
        if_lost="The last checkpoint is kept: the run can be resumed from it.",
        memory_advice=memory.advice,
        reduce=memory.reduce,
    ),
)
register(
    Measurement,
    ChildProcess(
        queue="train",
        program=lambda job: "measure_training",
        child_spec=measuring.child_spec,
        complete=measuring.complete,
        time_limit_s=measuring.TIME_LIMIT_S,
        if_lost="Nothing was measured.",
    ),
)
register(
    PromptSearch,
    ChildProcess(
        queue="eval",
        program=lambda search: "search_prompts",
        child_spec=prompt_search.child_spec,
        store_events=prompt_search.store_events,
        complete=prompt_search.complete,
        if_lost=(
            "Completed calls are kept: the search can be resumed without paying for them again."
        ),
    ),
)
