"""The job of the playground (docs/jobs.md)."""

from __future__ import annotations

from apps.core.kinds import ChildProcess, register
from apps.core.runner import job_fields
from apps.environments.clients import job_spec
from apps.evals.sample_events import sample_fields
from apps.prompts.models import CUT, Playground, PlaygroundAnswer, place_of
from apps.registry.engines import engine_spec, model_spec
from apps.registry.models import ModelVersion
from workers.lib.specs import playground as specs

BATCH = 16
LONGEST_S = 1800.0
FLUSH_EVERY_S = 0.3
PARTS = ("side", "index", "text", "thought", "calls", "seq")


def playground_spec(run: Playground) -> specs.Playground:
    """Raises ModelError, ArtifactError if a version can no longer be called."""
    versions = ModelVersion.objects.filter(project=run.project).in_bulk(
        [side["version"] for side in run.spec["sides"]]
    )
    return specs.Playground(
        **job_fields(run),
        samples_per_task=run.samples_per_task,
        tasks=run.spec["cases"],
        sides=[
            specs.Side(
                model=model_spec(versions[side["version"]], side["engine"]),
                engine=engine_spec(versions[side["version"]], BATCH, side["engine"]),
                environment=job_spec(run.environment, side["prompt"]),
            )
            for side in run.spec["sides"]
        ],
    )


def store_events(run: Playground, events: list[dict]) -> None:
    """Answers become rows. Unfinished text and failed versions are in the job's own row, updated
    once per flush.
    """
    PlaygroundAnswer.objects.bulk_create(
        [
            PlaygroundAnswer(
                playground=run,
                side=event["side"],
                case=event["task_id"],
                index=event["index"],
                **sample_fields(event),
            )
            for event in events
            if event["type"] == "sample"
        ],
        ignore_conflicts=True,
    )
    if not any(event["type"] in ("sample", "partial", "failed") for event in events):
        return
    partial, failed = dict(run.result.get("partial", {})), dict(run.result.get("failed", {}))
    for event in events:
        if event["type"] == "partial":
            part = {name: event[name] for name in PARTS} | {
                "case": event["task_id"],
                "attempt": run.attempt,
            }
            partial[place_of(part["side"], part["case"], part["index"])] = part
        elif event["type"] == "sample" and event["stop_reason"] not in CUT:
            partial.pop(place_of(event["side"], event["task_id"], event["index"]), None)
        elif event["type"] == "failed":
            failed[str(event["side"])] = {
                "error": event["error"],
                "seq": event["seq"],
                "attempt": run.attempt,
            }
    run.result = {"partial": partial, "failed": failed}
    Playground.objects.filter(pk=run.pk).update(result=run.result)


def complete(run: Playground, result: dict) -> dict:
    """What went wrong with single versions, and what of their answers was written by then."""
    return {name: found for name, found in run.result.items() if found}


register(
    Playground,
    ChildProcess(
        queue="eval",
        child_spec=playground_spec,
        store_events=store_events,
        complete=complete,
        time_limit_s=LONGEST_S,
        flush_every_s=FLUSH_EVERY_S,
    ),
)
