"""The jobs of the training layer: training runs and what they store of their output, measurements,
prompt searches.
"""

from __future__ import annotations

from pathlib import Path

from django.db import transaction

from apps.core.kinds import ChildProcess, Needs, register
from apps.evals.sample_events import sample_fields
from apps.registry.actions import register_adapter, register_reward_model
from apps.registry.artifacts import store_folder
from apps.registry.bases import needed_base
from apps.registry.harness import store_address
from apps.registry.trained_elsewhere import numbers_of
from apps.training import checkpoints, memory, run_alarms
from apps.training.budget import measuring
from apps.training.child_spec import training_spec
from apps.training.engines import ray
from apps.training.models import (
    Checkpoint,
    Measurement,
    Method,
    PromptSearch,
    Rollout,
    TrainingRun,
)
from apps.training.prompt_search import job as prompt_search
from apps.training.results import lineage, store_metrics, version_name


def needs(run: TrainingRun) -> Needs:
    """The base, and the memory that was estimated when it was submitted."""
    if run.on_cluster:
        return Needs()
    memory = (run.spec.get("estimate") or {}).get("memory") or {}
    return Needs(int(memory.get("likely", 0)) // 2**20, needed_base(run.parent))


def store_events(run: TrainingRun, events: list[dict]) -> None:
    store_address(run, events)
    store_metrics(run, events)
    run_alarms.store(run, events)
    for event in events:
        if event["type"] == "checkpoint":
            Checkpoint.objects.update_or_create(
                run=run,
                step=event["step"],
                defaults={"attempt": run.attempt},
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
        child_spec=lambda run: ray.ray_spec(run) if run.on_cluster else training_spec(run),
        store_events=store_events,
        complete=lambda run, result: (
            ray.complete(run, result) if run.on_cluster else complete(run, result)
        ),
        keeps=checkpoints.kept_names,
        needs=needs,
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
        child_spec=measuring.measuring_spec,
        complete=measuring.complete,
        time_limit_s=measuring.TIME_LIMIT_S,
        if_lost="Nothing was measured.",
    ),
)
register(
    PromptSearch,
    ChildProcess(
        queue="eval",
        child_spec=prompt_search.search_spec,
        store_events=prompt_search.store_events,
        complete=prompt_search.complete,
        keeps=lambda search: ["out/journal.jsonl"],
        if_lost=(
            "Completed calls are kept: the search can be resumed without paying for them again."
        ),
    ),
)
