"""Starting a prompt search, and resuming one that stopped."""

from __future__ import annotations

from typing import Any

from django.db import transaction

from apps.core import jobs
from apps.core.gepa import absent
from apps.core.models import JobState, Project
from apps.environments.models import Environment
from apps.evals.actions import EvalSetError
from apps.evals.holdout import leaks
from apps.evals.models import EvalSet, Split
from apps.evals.submission import check_expected, check_prompt
from apps.registry import engines
from apps.registry.actions import ModelError
from apps.registry.models import ModelKind, ModelVersion, Server
from apps.registry.prices import price_at
from apps.reviews.actions import require_unlocked
from apps.training.actions import TrainingError, freeze_dataset
from apps.training.models import PromptSearch
from apps.training.prompt_search.cost import Size
from workers.lib.prices import price_as_json
from workers.lib.specs.search_prompts import SearchConfig
from workers.lib.typed import FormError, convert, plain

RESUMABLE = (JobState.FAILED, JobState.CANCELLED)


@transaction.atomic
def submit_search(
    *,
    project: Project,
    version: ModelVersion,
    eval_set: EvalSet,
    environment: Environment,
    server: Server,
    model: str,
    config: dict[str, Any],
    by: Any,
    engine: str = engines.AUTO,
    seed: int = 0,
) -> PromptSearch:
    """Queue a search that starts with the prompt of `version`, or the environment's if it has none;
    `model` on `server` reflects.

    Raises TrainingLocked if the reward is not reviewed, TrainingError for anything else that can be
    checked in advance.
    """
    if why := absent():
        raise TrainingError(why)
    if version.kind == ModelKind.AGENT:
        raise TrainingError(
            f"{version} is an agent whose prompt is part of its own code, so it cannot be searched"
            " here."
        )
    try:
        wanted = convert(config, SearchConfig, "config")
    except FormError as error:
        raise TrainingError(str(error)) from error
    dataset = freeze_dataset(eval_set=eval_set, by=by)
    require_unlocked(environment=environment, tasks=dataset.tasks(), by=by)
    validation = eval_set.tasks.filter(split=Split.VALIDATION).count()
    if not validation:
        raise TrainingError(
            f"{eval_set} has no validation tasks, which are needed to select among the proposals."
            " Create a new version with a validation split."
        )
    _check_size(wanted, validation, dataset.size)
    _check_tasks(eval_set, environment, version.prompt)
    chosen = _engine(version, engine)
    reflecting = _reflecting(server, model)
    if wanted.most_usd:
        for part in (chosen, reflecting):
            if part.get("price", ()) is None:
                raise TrainingError(
                    f"No price is known for {part['model']} on {part['server_name']}, so a cost"
                    " limit cannot be enforced. Enter the price on the server's page."
                )
    search = PromptSearch(
        project=project,
        name=f"Prompt search for {version}"[:200],
        version=version,
        dataset=dataset,
        environment=environment,
        total=wanted.most_calls,
        spec={
            "seed": seed,
            "config": plain(wanted),
            "prompt": start_prompt(version, environment),
            "engine": chosen,
            "reflecting": reflecting,
            "dataset_digest": dataset.digest,
            "eval_set": str(eval_set),
            "eval_set_digest": eval_set.digest,
            "environment_hash": environment.hash,
            "verifier_hash": environment.verifier.hash,
            "version_digest": version.digest,
            "validation": validation,
        },
    )
    return jobs.submit(search, by=by)


def start_prompt(version: ModelVersion, environment: Environment) -> str:
    """The system prompt that the version is evaluated with in this environment."""
    return version.prompt.get("system_prompt", environment.harness.get("system_prompt") or "")


def _check_size(config: SearchConfig, validation: int, train: int) -> None:
    size = Size(
        validation, config.samples_per_task, config.most_proposals, min(config.minibatch, train)
    )
    if config.most_calls < size.first_calls:
        raise TrainingError(
            f"Trying one proposal takes {size.first_calls:,} calls of the agent: {validation}"
            f" validation tasks and twice {size.minibatch} training tasks,"
            f" {config.samples_per_task} samples each. Raise the limit to at least that."
        )


def _check_tasks(eval_set: EvalSet, environment: Environment, prompt: dict[str, Any]) -> None:
    if leak := next(leaks.of_harness(environment, prompt), None):
        raise TrainingError(f"Every prompt would reveal held-out data. {leak}", [leak.theirs_hash])
    try:
        for split in (Split.TRAIN, Split.VALIDATION):
            check_expected(eval_set, split, environment)
            check_prompt(eval_set, split, environment, prompt)
    except EvalSetError as error:
        raise TrainingError(str(error)) from error


def _engine(version: ModelVersion, wanted: str) -> dict[str, Any]:
    try:
        return engines.choose(version, wanted)
    except ModelError as error:
        raise TrainingError(str(error)) from error


def _reflecting(server: Server, model: str) -> dict[str, Any]:
    model = model.strip()
    if not model:
        raise TrainingError(f"Enter the model on {server} that writes the proposals.")
    try:
        engines.check_askable(server)
    except ModelError as error:
        raise TrainingError(str(error)) from error
    return {
        "server": server.pk,
        "server_name": server.name,
        "base_url": server.base_url,
        "managed": server.is_managed,
        "model": model,
        "dialect": server.dialect,
        "price": price_as_json(price_at(server, model)),
    }


def resume(*, search: PromptSearch, by: Any) -> None:
    """Queues a failed or cancelled search again; earlier questions are not asked again. Raises
    TrainingError if it is running or has succeeded, TrainingLocked if the reward may no longer be
    optimised."""
    if why := absent():
        raise TrainingError(why)
    require_unlocked(environment=search.environment, tasks=search.dataset.tasks(), by=by)
    stopped = PromptSearch.objects.filter(state__in=RESUMABLE)
    if not jobs.restart(
        search, among=stopped, by=by, action="resumed", created_by=search.created_by or by
    ):
        raise TrainingError("Only a search that failed or was cancelled can be resumed.")
