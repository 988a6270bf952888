"""Actions of the training layer: freezing datasets and starting, resuming and estimating runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any
from uuid import UUID

from django.conf import settings as django_settings
from django.db import transaction
from django.db.models import Count

from apps.core import jobs
from apps.core.actions import audit
from apps.core.errors import Rejected
from apps.core.models import JobState, Project
from apps.environments.models import Environment
from apps.evals.canonical import digest_of
from apps.evals.holdout import groups, leaks
from apps.evals.models import EvalRun, EvalSet, Split, Task
from apps.failures.judge import rubrics
from apps.registry.actions import ModelError
from apps.registry.harness import agent_in, in_spec
from apps.registry.models import Engine, ModelKind, ModelVersion
from apps.registry.rollout_servers import choose_servers
from apps.registry.trained_elsewhere import check_answer_length, check_target_modules
from apps.training import checkpoints, judged
from apps.training.budget.asked import asked_of
from apps.training.budget.estimate import estimate
from apps.training.harness import why_not_divided, why_not_played
from apps.training.models import SHAPES, Dataset, DatasetRow, Example, Method, Shape, TrainingRun
from apps.training.refusals import refusal_of
from apps.training.reward_lock import require_reviewed
from apps.training.sources import groups_of, why_not_learned
from apps.training.start_adapter import continued
from apps.training.teachers import chosen, teacher_of
from workers.lib.gold import gold_answers
from workers.lib.specs.methods import CONFIGS
from workers.lib.specs.training import Training
from workers.lib.typed import FormError, convert, plain

FEWEST_PAIRS = 4  # pairs for a reward model


class TrainingError(Rejected):
    """A run that may not be started. The message is a sentence for the page.

    `held`: canonical hashes of the held-out tasks that the message reveals something about.
    """

    def __init__(self, sentence: str, held: Collection[str] = ()) -> None:
        super().__init__(sentence)
        self.held = held


@transaction.atomic
def freeze_dataset(
    *,
    eval_set: EvalSet,
    by: Any,
    keys: Collection[str | UUID] | None = None,
    picked_by: EvalRun | None = None,
    shape: Shape = Shape.TASKS,
    examples: Sequence[judged.Example] = (),
) -> Dataset:
    """Freeze the training tasks of a frozen set, in the set's order; with `keys` (task ids) only
    those.

    `picked_by`: the evaluation of these tasks that chose the keys. With another `shape`, `examples`
    (`sources.find_examples`) are what trains, and the dataset's tasks are those that the examples
    are about. Freezing the same content again returns the same dataset. Raises TrainingError, also
    for a key that is not a training task of this set.
    """
    if not eval_set.is_frozen:
        raise TrainingError(f"{eval_set} is a draft. Freeze it before training on it.")
    if shape != Shape.TASKS and not examples:
        raise TrainingError(f"These sources contain no {shape.label} to learn from.")
    every = list(eval_set.tasks.trainable())
    if shape != Shape.TASKS:
        keys = {example.task for example in examples if example.task}
    elif not every:
        raise TrainingError(f"{eval_set} has no tasks in its train split.")
    if picked_by is not None and (picked_by.eval_set_id, picked_by.split) != (
        eval_set.pk,
        Split.TRAIN,
    ):
        raise TrainingError(f"“{picked_by}” did not evaluate the train split of {eval_set}.")
    tasks = (
        every if keys is None else [] if examples and not keys else _chosen(eval_set, every, keys)
    )
    if refused := groups.refusal(eval_set.project, tasks):
        raise TrainingError(refused.sentence, refused.held)
    if leak := next(leaks.of_tasks(tasks), None):
        raise TrainingError(str(leak), [leak.theirs_hash])
    if refused := refusal_of(eval_set.project, examples):
        raise TrainingError(*refused)
    content = [eval_set.digest, [[task.key, task.canonical_hash] for task in tasks]]
    if examples:
        content += [
            shape,
            [[one.source, str(one.task), str(one.trajectory), one.data] for one in examples],
        ]
    digest = digest_of(content)
    dataset, made = Dataset.objects.get_or_create(
        project=eval_set.project,
        digest=digest,
        defaults={
            "eval_set": eval_set,
            "size": len(examples or tasks),
            "shape": shape,
            "created_by": by,
        },
    )
    if made:
        DatasetRow.objects.bulk_create(
            DatasetRow(dataset=dataset, task=task, split=task.split, position=position)
            for position, task in enumerate(tasks)
        )
        Example.objects.bulk_create(
            Example(
                dataset=dataset,
                position=position,
                source=one.source,
                task_id=one.task,
                trajectory_id=one.trajectory,
                data=one.data,
            )
            for position, one in enumerate(examples)
        )
        audit(
            "dataset.frozen",
            project=eval_set.project,
            by=by,
            target=dataset,
            digest=digest,
            size=dataset.size,
            **(
                {}
                if keys is None or examples
                else {"of": len(every), "picked_by": picked_by and str(picked_by.pk)}
            ),
            **(
                {"shape": str(shape), "sources": Counter(one.source for one in examples)}
                if examples
                else {}
            ),
        )
    return dataset


def _chosen(eval_set: EvalSet, tasks: list[Task], keys: Collection[str | UUID]) -> list[Task]:
    wanted = {str(key) for key in keys}
    chosen = [task for task in tasks if str(task.pk) in wanted]
    if not wanted:
        raise TrainingError("No tasks selected for training.")
    if strange := len(wanted) - len(chosen):
        raise TrainingError(
            f"{strange} of the {len(wanted)} chosen tasks are not training tasks of {eval_set}."
        )
    return chosen


@transaction.atomic
def submit_training(**given: Any) -> TrainingRun:
    """Queue the run that `prepared_run` makes of the same arguments. Raises TrainingLocked,
    TrainingError.
    """
    return jobs.submit(prepared_run(**given), by=given["by"])


def _shows_how(dataset: Dataset, environment: Environment) -> bool:
    """Whether there is anything to imitate: a task's demonstration or, in an environment with
    tools, an expected sequence of calls.
    """
    if dataset.rows.exclude(task__demonstration="").exists():
        return True
    return environment.needs_tools and any(gold_answers(task.as_spec()) for task in dataset.tasks())


def no_tools(parent: ModelVersion, environment: Environment) -> str:
    """Why a model cannot act in an environment: its chat template does not support tools. "" if it
    can, or if that is unknown.
    """
    template = parent.chat_template
    if not environment.needs_tools or template is None or template.carries_tools:
        return ""
    return (
        f"The chat template of {parent} does not support the tools that {environment} needs:"
        f" {template.problem}. Choose another model or environment."
    )


def no_turn_rewards(config: dict, environment: Environment) -> str:
    """Why a config cannot train in an environment: it needs rewards per turn, which the environment
    does not report. "" if it can.
    """
    if config.get("advantages") != "turn" or environment.has_turn_rewards:
        return ""
    return (
        f"{environment} does not report rewards per turn. Set advantages to “per episode”, or"
        " choose an environment that does."
    )


def settings_of(method: Method, config: dict) -> Training:
    """The settings with every default. Raises TrainingError also for what this installation does
    not offer.
    """
    try:
        settings = convert(config, CONFIGS[method], "config")
    except FormError as error:
        raise TrainingError(str(error)) from error
    if (count := getattr(settings, "processes", 1)) > (
        most := django_settings.FLYWHEEL_TRAINING_PROCESSES
    ):
        raise TrainingError(
            f"“config.processes” must be at most {most} here, not {count}: one for each GPU of a"
            " training worker. If the worker has more GPUs, an operator can set"
            " FLYWHEEL_TRAINING_PROCESSES."
        )
    if settings.load_in_4bit and not django_settings.FLYWHEEL_LOAD_IN_4BIT:
        raise TrainingError(
            "“config.load_in_4bit” needs bitsandbytes, which is not installed here. An operator"
            " installs requirements/qlora.txt where training runs and sets FLYWHEEL_LOAD_IN_4BIT=1."
        )
    return settings


def _check_model(
    parent: ModelVersion, environment: Environment, config: dict, settings: Training
) -> None:
    """Raises TrainingError for a model that cannot be trained, here or in this environment or with
    these settings.
    """
    if parent.kind == ModelKind.REWARD:
        raise TrainingError(f"{parent} is a reward model. Choose the model to train.")
    if parent.kind == ModelKind.PROMPT:
        raise TrainingError(
            f"{parent} is a prompt version and has no weights of its own. Train {parent.model} in"
            " an environment with this prompt instead."
        )
    if parent.engine != Engine.TRANSFORMERS:
        raise TrainingError(
            f"{parent} is served elsewhere; its weights cannot be trained here. Choose a version"
            " with a folder."
        )
    if why := no_tools(parent, environment):
        raise TrainingError(why)
    if why := no_turn_rewards(config, environment):
        raise TrainingError(why)
    try:
        if settings.target_modules != "all-linear" and parent.kind != ModelKind.ADAPTER:
            check_target_modules(settings.target_modules, parent)
        if most := getattr(settings, "max_new_tokens", 0):
            check_answer_length(most, parent)
    except ModelError as error:
        raise TrainingError(str(error)) from error


def _check_examples(
    project: Project, method: Method, dataset: Dataset, environment: Environment, settings: Training
) -> None:
    """Raises TrainingError for data that the method cannot learn from."""
    if method == Method.SFT and not _shows_how(dataset, environment):
        raise TrainingError("SFT needs demonstrations, but no task in this dataset has one.")
    if dataset.shape != SHAPES.get(method, Shape.TASKS):
        raise TrainingError(
            f"{Method(method).label} learns from {SHAPES.get(method, Shape.TASKS).label}, not from"
            f" {dataset}."
        )
    if settings.judge_outputs and (why := _not_judged(project, method)):
        raise TrainingError(why)
    if method == Method.REWARD and dataset.size < FEWEST_PAIRS:
        raise TrainingError(
            f"A reward model needs at least {FEWEST_PAIRS} pairs, and {dataset} has {dataset.size}:"
            " some are held back to measure it. Add corrections, reviews, or an evaluation with"
            " several samples per task."
        )
    if (
        method == Method.REWARD
        and len(set(groups_of(list(dataset.examples.select_related("task"))))) < 2
    ):
        raise TrainingError(
            f"All pairs in {dataset} belong to one group of tasks, so none can be held back to"
            " measure a reward model. Add pairs for other requests."
        )


def prepared_run(
    *,
    project: Project,
    method: Method,
    parent: ModelVersion,
    dataset: Dataset,
    environment: Environment,
    config: dict,
    by: Any,
    seed: int = 0,
    name: str = "",
    picked_by: EvalRun | None = None,
    samples_of: EvalRun | None = None,
    sample_on: Sequence[str] = (),
    steps_ahead: int = 0,
    teacher: ModelVersion | None = None,
    teacher_on: str = "",
    agent: ModelVersion | None = None,
) -> TrainingRun:
    """A new run that may start; it is not saved yet.

    `picked_by` is the evaluation that chose its tasks, `samples_of` the one whose samples are
    examples. `sample_on`: names of the servers that GRPO samples on; with `steps_ahead` 1 they
    sample during the update, with the previous weights. `teacher`: for on-policy distillation.
    `agent` plays the episodes in its own harness, instead of the built-in loop.

    Raises TrainingLocked if the run learns from a reward that is not reviewed for this environment
    and these tasks or that this person may not train with, and TrainingError for anything that
    cannot be trained.
    """
    if archived := next((row for row in (parent, environment) if row.archived_at), None):
        raise TrainingError(
            f"{archived} is archived. Choose another, or unarchive it under “Manage” on its page."
        )
    if agent and (sentence := why_not_played(agent, method)):
        raise TrainingError(sentence)
    oversight = require_reviewed(
        method=method, dataset=dataset, environment=environment, by=by, agent=agent
    )
    settings = settings_of(method, config)
    try:
        settings = continued(settings, config, parent, "config")
    except FormError as error:
        raise TrainingError(str(error)) from error
    _check_model(parent, environment, config, settings)
    _check_examples(project, method, dataset, environment, settings)
    if samples_of and (sentence := why_not_learned(method, parent, samples_of)):
        raise TrainingError(sentence)
    if leak := next(leaks.of_harness(environment), None):
        raise TrainingError(
            f"Every prompt of {environment} would reveal held-out data. {leak}", [leak.theirs_hash]
        )
    processes = getattr(settings, "processes", 1)
    if agent and (sentence := why_not_divided(agent, processes)):
        raise TrainingError(sentence)
    if (sample_on or steps_ahead) and method != Method.GRPO:
        raise TrainingError(f"{Method(method).label} does not sample; only GRPO does.")
    if sample_on and settings.load_in_4bit:
        raise TrainingError(
            "In 4 bits the run samples from its own weights; those of servers differ. Choose no"
            " server to sample on, or set “config.load_in_4bit” to false."
        )
    try:
        taught = chosen(method, parent, teacher, teacher_on, plain(settings))
        rank = settings.lora_rank
        sampled = (
            choose_servers(parent, list(sample_on), rank, steps_ahead, settings.top_p)
            if sample_on
            else None
        )
    except ModelError as error:
        raise TrainingError(str(error)) from error
    if steps_ahead and not sampled:
        raise TrainingError("Sampling one step ahead needs a server to sample on; choose one.")
    run = TrainingRun(
        project=project,
        created_by=by,
        method=method,
        name=name or f"{Method(method).label} from {parent}",
        parent=parent,
        dataset=dataset,
        environment=environment,
        total=settings.steps,
        spec={
            "seed": seed,
            "config": plain(settings),
            "dataset_digest": dataset.digest,
            "eval_set": str(dataset.eval_set),
            "eval_set_digest": dataset.eval_set.digest,
            "environment_hash": environment.hash,
            "verifier_hash": environment.verifier.hash,
            "parent_digest": parent.digest,
            "oversight": oversight,
            "validation": dataset.eval_set.tasks.filter(split=Split.VALIDATION).count(),
            **_sources(dataset),
            **(
                {"samples_of": str(samples_of.pk), "sampled_from": str(samples_of.model_version)}
                if samples_of
                else {}
            ),
            **_picked(dataset, picked_by),
            **({"rollouts": sampled} if sampled else {}),
            **in_spec(agent),
            **taught,
        },
    )
    freeze_estimate(run)
    return run


def freeze_estimate(run: TrainingRun, start: int = 0, *, sampled: bool = False) -> None:
    """Store the estimated cost of a run, which its page later compares with the actual cost.
    `start`: the checkpoint's step for a fork. `sampled`: a fork that reuses the samples.
    """
    asked = asked_of(
        project=run.project,
        method=run.method,
        parent=run.parent,
        environment=run.environment,
        dataset=run.dataset,
        config=run.spec["config"],
        rollouts=run.spec.get("rollouts"),
        start=start,
        teacher=teacher_of(run),
        teacher_engine=run.spec.get("teacher_engine"),
        sampled=sampled,
    )
    run.spec["estimate"] = estimate(asked).as_json()


def _not_judged(project: Project, method: Method) -> str:
    """Why the LLM judge cannot read a run's outputs; "" if it can."""
    if method == Method.REWARD:
        return (
            "A reward model gives no outputs that the LLM judge could read. Set judge_outputs to 0."
        )
    if rubrics.current(project) is None:
        return "The LLM judge is off. Turn it on under Failures → Judge, or set judge_outputs to 0."
    return ""


def resume(*, run: TrainingRun, by: Any) -> int:
    """Queue a failed or cancelled run again, from its last checkpoint; return that step.

    Raises TrainingError if there is no checkpoint or the run is active, TrainingLocked if the
    reward may no longer be trained on.
    """
    oversight = require_reviewed(
        method=run.method,
        dataset=run.dataset,
        environment=run.environment,
        by=by,
        agent=agent_in(run.spec),
    )
    checkpoint = checkpoints.latest(run)
    if checkpoint is None:
        raise TrainingError(
            "This run has no checkpoint to resume from. Start a new run with the same settings."
        )
    step, stopped = (
        checkpoint.step,
        TrainingRun.objects.filter(state__in=(JobState.FAILED, JobState.CANCELLED)),
    )
    detail = {"step": step, "oversight": oversight}
    changes = {
        "done": step,
        "result": {},
        "created_by": run.created_by or by,
        "spec": run.spec | {"oversight": oversight},
    }
    if not jobs.restart(run, among=stopped, by=by, action="resumed", detail=detail, **changes):
        raise TrainingError("Only a run that failed or was cancelled can be resumed.")
    return step


def _sources(dataset: Dataset) -> dict[str, Any]:
    """The number of examples by source; {} for a dataset of tasks."""
    if dataset.shape == Shape.TASKS:
        return {}
    counts = dataset.examples.order_by().values_list("source").annotate(n=Count("pk"))
    return {"shape": dataset.shape, "sources": dict(counts)}


def _picked(dataset: Dataset, by: EvalRun | None) -> dict[str, Any]:
    """The evaluation that chose the tasks of a run, and how many it chose; {} if the run trains on
    all of them.
    """
    if by is None:
        return {}
    return {
        "picked_by": str(by.pk),
        "picked": dataset.size,
        "picked_of": dataset.eval_set.tasks.trainable().count(),
    }
