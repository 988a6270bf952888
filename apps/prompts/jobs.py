"""The job of the playground (docs/jobs.md)."""

from __future__ import annotations

from typing import Any

from apps.core.kinds import ChildProcess, register
from apps.evals.jobs import sample_fields
from apps.prompts.models import Playground, PlaygroundAnswer
from apps.registry.engines import engine_spec, model_spec
from apps.registry.models import ModelVersion

BATCH = 16
LONGEST_S = 1800.0


def child_spec(run: Playground) -> dict[str, Any]:
    """Raises ModelError, ArtifactError where a version can no longer be asked."""
    versions = ModelVersion.objects.filter(project=run.project).in_bulk([side["version"] for side in run.spec["sides"]])
    return {
        "kind": "playground",
        "seed": run.spec["seed"],
        "samples_per_task": run.samples_per_task,
        "tasks": run.spec["cases"],
        "sides": [
            {
                "model": model_spec(versions[side["version"]], side["engine"]),
                "engine": engine_spec(versions[side["version"]], BATCH, side["engine"]),
                "environment": run.environment.job_spec(side["prompt"]),
            }
            for side in run.spec["sides"]
        ],
    }


def store_events(run: Playground, events: list[dict]) -> None:
    PlaygroundAnswer.objects.bulk_create(
        [
            PlaygroundAnswer(
                playground=run, side=event["side"], case=event["task_id"], index=event["index"], **sample_fields(event)
            )
            for event in events
            if event["type"] == "sample"
        ],
        ignore_conflicts=True,
    )


def complete(run: Playground, result: dict) -> dict:
    """What went wrong with single versions."""
    return {"errors": result.get("errors") or {}}


register(
    Playground,
    ChildProcess(
        queue="eval",
        program=lambda run: "playground",
        child_spec=child_spec,
        store_events=store_events,
        complete=complete,
        time_limit_s=LONGEST_S,
    ),
)
