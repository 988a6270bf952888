"""The job of a step search: what its program is told, and what is kept of what it says."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from msgspec import structs

from apps.core.runner import job_fields
from apps.environments.scorer import record_scorer
from apps.evals.actions import EvalSetError
from apps.evals.models import Continuation, StepSearch
from apps.evals.replays.episode import replayable
from apps.evals.replays.results import differs, steps_of, tried_of, used_of
from apps.evals.replays.verdict import verdict_of
from apps.evals.rollout_parts import rollout_parts
from apps.evals.sample_events import sample_fields
from apps.failures.actions.replayed import blame_by_replay
from workers.lib.specs.find_step import Attempts, FindStep

BATCH = 16
CHANGED = (
    "The run, or the task that scores it, has changed since the search was started. Start it again."
)


def find_step_spec(search: StepSearch) -> FindStep:
    """Raises EvalSetError, and what `rollout_parts` and `record_scorer` raise."""
    run, spec = replayable(search.failure, search.task), search.spec
    if (run.named, run.source.row.content_digest) != (spec["scored_by"], spec["content"]):
        raise EvalSetError(CHANGED)
    tried = tried_of([search])[search.pk]
    record_scorer(search, search.environment, scored=bool(tried))
    parts = rollout_parts(
        search,
        search.environment,
        search.model_version,
        engine=spec["engine"],
        prompt=spec["prompt"],
        batch_size=BATCH,
    )
    harness = structs.replace(parts["environment"].harness, temperature=spec["temperature"])
    spent = used_of([search])[search.pk]
    return FindStep(
        **job_fields(search),
        **parts | {"environment": structs.replace(parts["environment"], harness=harness)},
        task=run.task_in(search.environment),
        recorded=run.recorded,
        steps=[run.position_of(step) for step in spec["steps"]],
        each=spec["each"],
        every=spec["every"],
        tried=[
            Attempts(
                step=run.position_of(step),
                successes=one.successes,
                n=one.n,
                masked=one.masked,
            )
            for step, one in tried.items()
        ],
        most_tokens=spec["most_tokens"],
        used=spent.input_tokens + spent.output_tokens,
    )


def store_events(search: StepSearch, events: list[dict]) -> None:
    places = search.spec["places"]
    if told := next((event for event in events if event["type"] == "replayed"), None):
        search.replayed = {
            "steps": [places[at] for at in told["steps"]],
            "differs_at": None if told["differs_at"] is None else places[told["differs_at"]],
            "difference": told["difference"],
        }
        StepSearch.objects.filter(pk=search.pk).update(replayed=search.replayed)
    rows = [
        Continuation(
            search=search,
            step=places[event["step"]],
            index=event["index"],
            **sample_fields(event),
        )
        for event in events
        if event["type"] == "sample"
    ]
    Continuation.objects.bulk_create(rows, ignore_conflicts=True)


def complete(search: StepSearch, result: dict) -> dict[str, Any]:
    """Adds the verdict to the failure's evidence."""
    stopped = result.get("stopped", "")
    verdict = verdict_of(
        steps_of(search),
        tried_of([search])[search.pk],
        ended=not stopped,
        differs=differs(search),
    )
    if verdict.step is not None:
        blame_by_replay(
            failure=search.failure,
            message=verdict.step,
            text=verdict.text,
            is_sure=verdict.is_sure,
            by=search.created_by,
        )
    return {"stopped": stopped, "verdict": asdict(verdict)}
