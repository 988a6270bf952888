"""The parts of a job's spec that say who answers, and in which environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import structs

from apps.core.models import Job
from apps.environments.clients import job_spec
from apps.environments.models import Environment
from apps.evals.notes import REQUEST_S
from apps.registry.adapters import load_for
from apps.registry.engines import engine_spec, model_spec
from apps.registry.models import ModelKind, ModelVersion
from workers.lib.prompts import AGENT_PART, PROMPT_PART
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
        "environment": without(own, AGENT_PART) if agent else as_played(own, job.spec),
    }


def patient(engine: Engine, environment: specs.Environment) -> Engine:
    """A server is given as long for one answer as the environment gives a whole sample."""
    if isinstance(engine, Server):
        engine.timeout_s = max(REQUEST_S, environment.harness.max_seconds)
    return engine


def without(environment: specs.Environment, parts: Sequence[str]) -> specs.Environment:
    """For an agent that has these parts of its own: its prompt and examples. It gets the tools with
    the task.
    """
    harness = structs.asdict(environment.harness)
    task_part = {name: value for name, value in harness.items() if name not in parts}
    return structs.replace(environment, harness=specs.Harness(**task_part))


def as_played(environment: specs.Environment, spec: Mapping[str, Any]) -> specs.Environment:
    """For a job whose episodes an agent may play in its own harness: sampling is still the
    environment's.
    """
    return without(environment, PROMPT_PART) if spec.get("harness") else environment
