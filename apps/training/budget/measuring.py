"""The measurement behind estimates: a half-minute job for each model, adapter shape and sampling
location.
"""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.db import transaction

from apps.core import jobs
from apps.core.models import JobState
from apps.core.runner import job_fields
from apps.environments.clients import job_spec
from apps.environments.models import Environment
from apps.evals.canonical import digest_of
from apps.evals.models import EvalSet
from apps.registry.engines import in_process, model_spec
from apps.registry.models import ModelVersion
from apps.registry.rollout_servers import rollouts_spec
from apps.training.models import Measurement
from workers.lib.specs.measure_training import MeasureTraining
from workers.lib.specs.training import SIDE_BY_SIDE, Lora
from workers.lib.typed import convert

TASKS = 16  # tasks of the run used for the measurement
TIME_LIMIT_S = 600.0


def lora_of(config: dict[str, Any]) -> dict[str, Any]:
    return {name: config[name] for name in Lora.__struct_fields__ if name in config}


def key_of(parent: ModelVersion, config: dict[str, Any], rollouts: dict[str, Any]) -> str:
    """What a measurement is valid for: the weights and how they are computed, the adapter's shape,
    the servers that sample.
    """
    lora = lora_of(config)
    shape = [
        lora.get("lora_rank"),
        lora.get("target_modules"),
        bool(lora.get("use_dora")),
        bool(lora.get("load_in_4bit")),
    ]
    servers = sorted(one["server_name"] for one in rollouts.get("servers", ()))
    return digest_of([parent.base_version().digest, settings.FLYWHEEL_DTYPE, shape, servers])


def newest(
    parent: ModelVersion, config: dict[str, Any], rollouts: dict[str, Any]
) -> Measurement | None:
    """The newest successful one, of any version with these base weights."""
    rows = Measurement.objects.filter(
        project=parent.project_id, key=key_of(parent, config, rollouts)
    )
    return rows.filter(state=JobState.SUCCEEDED).order_by("-created_at").first()


def under_way(
    parent: ModelVersion, config: dict[str, Any], rollouts: dict[str, Any]
) -> Measurement | None:
    return (
        Measurement.objects.active()
        .filter(project=parent.project_id, key=key_of(parent, config, rollouts))
        .first()
    )


def failed(
    parent: ModelVersion, config: dict[str, Any], rollouts: dict[str, Any]
) -> Measurement | None:
    """The newest one, if it failed."""
    rows = Measurement.objects.filter(
        project=parent.project_id, key=key_of(parent, config, rollouts)
    )
    last = rows.order_by("-created_at").first()
    return last if last and last.state == JobState.FAILED else None


@transaction.atomic
def measure(
    *,
    parent: ModelVersion,
    environment: Environment,
    eval_set: EvalSet,
    config: dict[str, Any],
    rollouts: dict[str, Any],
    by: Any,
) -> Measurement:
    """Queue a measurement, or return the queued or running one."""
    ModelVersion.objects.select_for_update().get(pk=parent.pk)
    if found := under_way(parent, config, rollouts):
        return found
    job = Measurement(
        project=parent.project,
        name=f"Training speed of {parent}",
        parent=parent,
        environment=environment,
        eval_set=eval_set,
        key=key_of(parent, config, rollouts),
        max_attempts=1,
        total=4,
        spec={
            "lora": lora_of(config),
            "max_new_tokens": config.get("max_new_tokens", 64),
            "rollouts": rollouts,
        },
    )
    return jobs.submit(job, by=by)


def measure_for(asked: Any, *, by: Any) -> Measurement:
    """For a `budget.asked.Asked`."""
    return measure(
        parent=asked.parent,
        environment=asked.environment,
        eval_set=asked.eval_set,
        config=asked.config,
        rollouts=asked.rollouts,
        by=by,
    )


def measuring_spec(job: Measurement) -> MeasureTraining:
    servers = job.spec["rollouts"]
    return MeasureTraining(
        **job_fields(job),
        model=model_spec(job.parent),
        engine=in_process(SIDE_BY_SIDE),
        environment=job_spec(job.environment),
        tasks=[task.as_spec() for task in job.eval_set.tasks.trainable()[:TASKS]],
        lora=convert(job.spec["lora"], Lora),
        max_new_tokens=job.spec["max_new_tokens"],
        rollouts=rollouts_spec(job.pk, servers) if servers else None,
    )


def complete(job: Measurement, result: dict[str, Any]) -> dict[str, Any]:
    return {"measured": result["measured"]}
