"""The parts of a job's spec that say who answers, and in which environment."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from apps.core.models import Job
from apps.environments.clients import job_spec
from apps.environments.models import Environment
from apps.evals.notes import REQUEST_S
from apps.registry.adapters import load_for
from apps.registry.engines import engine_spec, model_spec
from apps.registry.models import ModelKind, ModelVersion
from workers.lib.prompts import AGENT_PART
from workers.lib.specs import environment as specs
from workers.lib.specs.engines import Engine, Server


def rollout_parts(
    job: Job,
    environment: Environment,
    version: ModelVersion,
    *,
    engine: dict[str, Any],
    prompt: dict[str, Any],
    batch_size: int,
) -> dict[str, Any]:
    """{model, engine, environment}; an adapter is loaded on the engine's server first. Raises
    ModelError, ArtifactError, ServerError, RefusedKey, JobError.
    """
    agent = version.kind == ModelKind.AGENT
    own = job_spec(environment, None if agent else prompt)
    load_for(job, version, engine)
    return {
        "model": model_spec(version, engine),
        "engine": patient(engine_spec(version, batch_size, engine), own),
        "environment": without_agent_part(own) if agent else own,
    }


def patient(engine: Engine, environment: specs.Environment) -> Engine:
    """A server is given as long for one answer as the environment gives a whole sample."""
    if isinstance(engine, Server):
        engine.timeout_s = max(REQUEST_S, environment.harness.max_seconds)
    return engine


def without_agent_part(environment: specs.Environment) -> specs.Environment:
    """For a called agent, which has its own prompt and examples, and gets the tools with the
    task.
    """
    harness = structs.asdict(environment.harness)
    task_part = {name: value for name, value in harness.items() if name not in AGENT_PART}
    return structs.replace(environment, harness=specs.Harness(**task_part))
