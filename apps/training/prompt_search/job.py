"""A prompt search's input to its child process, and what it stores of the answers."""

from __future__ import annotations

import math
from typing import Any

from django.conf import settings

from apps.core.runner import job_fields
from apps.environments.clients import job_spec
from apps.environments.scorer import record_scorer
from apps.evals.actions import HoldoutLeak
from apps.evals.holdout import leaks
from apps.evals.holdout.view_log import record_membership
from apps.evals.models import Split, Task
from apps.failures.models import Failure
from apps.registry.actions import register_prompt
from apps.registry.engines import asked_at, engine_spec, model_spec, server_of
from apps.registry.models import Dialect, ModelKind, ModelVersion
from apps.reviews.actions import require_unlocked
from apps.training.models import PromptCandidate, PromptSearch
from apps.training.refusals import refuse_leaks
from workers.lib.prices import Price, price_from_json
from workers.lib.prompts import from_harness
from workers.lib.specs.search_prompts import (
    ReflectingServer,
    SearchConfig,
    SearchPrompts,
    UsedBefore,
)
from workers.lib.specs.training import SIDE_BY_SIDE
from workers.lib.typed import convert

TIMEOUT_S = 180.0  # seconds for one answer of the reflecting model
MOST_EVIDENCE = 1_000  # characters of one task's
USED = ("calls", "input_tokens", "output_tokens", "usd")


def search_spec(search: PromptSearch) -> SearchPrompts:
    """Checks the lock and the hold-outs again: both may have changed since the search was queued.
    Raises TrainingLocked, HoldoutLeak, ModelError, ScorerChanged."""
    record_scorer(search, search.environment, scored=search.candidates.exists())
    tasks, version = search.dataset.tasks(), search.version
    require_unlocked(
        environment=search.environment,
        tasks=tasks,
        by=search.created_by,
        scorer=search.spec["scorer"],
    )
    validation = list(search.dataset.eval_set.tasks.filter(split=Split.VALIDATION))
    rows = ((task.key, leaks.row_of(task)) for task in tasks + validation)
    refuse_leaks(search, tasks, rows, version.prompt)
    return SearchPrompts(
        **job_fields(search),
        model=model_spec(version, search.spec["engine"]),
        engine=engine_spec(version, SIDE_BY_SIDE, search.spec["engine"]),
        environment=job_spec(search.environment, version.prompt),
        server=_server(search.spec["reflecting"]),
        prompt=search.spec["prompt"],
        tasks=[task.as_spec() for task in tasks],
        validation_tasks=[task.as_spec() for task in validation],
        evidence=evidence(tasks),
        config=convert(search.spec["config"], SearchConfig, "config"),
        used=UsedBefore(**{name: search.used[name] for name in USED if name in search.used}),
        python=settings.FLYWHEEL_GEPA_PYTHON,
    )


def _server(reflecting: dict[str, Any]) -> ReflectingServer:
    """Raises ModelError if it may no longer be called."""
    dialect = reflecting.get("dialect", Dialect.NATIVE)
    return asked_at(
        ReflectingServer,
        server_of(reflecting),
        model=reflecting["model"],
        dialect=dialect,
        timeout_s=TIMEOUT_S,
        price=price_from_json(reflecting["price"]) or Price(),
    )


def evidence(tasks: list[Task]) -> dict[str, str]:
    """{task: what is known about the production failure that it was made from}."""
    by_run = {task.trajectory_id: str(task.pk) for task in tasks if task.trajectory_id}
    found = {}
    for failure in Failure.objects.filter(trajectory__in=by_run).select_related("mode"):
        texts = [str(item.get("text") or "") for item in failure.evidence if isinstance(item, dict)]
        said = "; ".join(text for text in texts if text)
        found[by_run[failure.trajectory_id]] = f"{failure.mode.name}. {said}".strip()[
            :MOST_EVIDENCE
        ]
    return found


def store_events(search: PromptSearch, events: list[dict]) -> None:
    """A resumed search repeats its candidates: existing ones stay."""
    PromptCandidate.objects.bulk_create(
        [_candidate(search, event) for event in events if event["type"] == "candidate"],
        ignore_conflicts=True,
    )
    used = [event["values"] for event in events if event["type"] == "metric"]
    if used:
        counts = {name: used[-1][name] for name in USED if _is_number(used[-1].get(name))}
        PromptSearch.objects.filter(pk=search.pk).update(used=search.used | counts)
        search.used = search.used | counts


def _candidate(search: PromptSearch, event: dict) -> PromptCandidate:
    numbers = {
        name: event.get(name)
        for name in ("score", "before", "after")
        if _is_number(event.get(name))
    }
    return PromptCandidate(
        search=search,
        number=int(event["number"]),
        parent=event.get("parent"),
        state=PromptCandidate.State(event["state"]),
        prompt=str(event["prompt"]),
        calls=int(event["calls"]),
        usd=float(event["usd"]),
        **numbers,
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def complete(search: PromptSearch, result: dict) -> dict:
    """Create a version with the best prompt, in the transaction that ends the search. Raises
    HoldoutLeak if the prompt contains held-out content: the reflecting model may know it from
    elsewhere.
    """
    names = ("best", "score", "start_score", "proposals", "stopped", "used")
    kept = {name: result.get(name) for name in names}
    if not result["best"]:
        return kept
    version = save_prompt(
        search, str(result["prompt"]), number=result["best"], by=search.created_by
    )
    PromptSearch.objects.filter(pk=search.pk).update(model_version=version)
    return kept | {"model_version": str(version)}


def save_prompt(
    search: PromptSearch, text: str, *, number: int, by: Any, viewer: Any = None
) -> ModelVersion:
    """Save a candidate as a prompt version with its lineage. Raises HoldoutLeak, which counts as a
    view by `by`, or by the key `viewer`.
    """
    on, environment = search.version, search.environment
    prompt = on.prompt | {"system_prompt": text}
    if leak := next(leaks.of_harness(environment, prompt), None):
        record_membership(
            search.project,
            [leak.theirs_hash],
            by=viewer or by,
            detail=f"a refusal to save a prompt: {search}",
        )
        raise HoldoutLeak(
            f"The prompt that was found contains held-out data, so it was not saved. {leak}"
        )
    return register_prompt(
        project=search.project,
        name=on.name if on.kind == ModelKind.PROMPT else f"{on.name}-prompt"[:80],
        on=on,
        prompt=prompt,
        by=by,
        started_from={"name": str(environment), "prompt": from_harness(environment.harness)},
        lineage={
            "search": str(search.pk),
            "candidate": number,
            "dataset": str(search.dataset_id),
            "environment": str(environment),
            "verifier": str(environment.verifier),
            **{name: value for name, value in search.spec.items() if name != "prompt"},
        },
    )
