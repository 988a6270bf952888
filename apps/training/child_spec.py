"""What a training run hands to its program (docs/jobs.md): what may have changed since it was
queued is checked, what it learns from is read once, and one Struct describes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

from apps.core.models import JobState
from apps.core.runner import job_fields
from apps.environments.clients import job_spec, load_for
from apps.environments.scorer import record_scorer
from apps.evals.holdout import leaks
from apps.evals.learnability.run import RunLearnability, tasks_of
from apps.evals.models import EvalRun, Split, Task
from apps.evals.rollout_parts import as_played
from apps.registry.adapters import load_for as load_adapter
from apps.registry.engines import engine_spec, in_process, model_spec
from apps.registry.harness import agent_in, harness_spec
from apps.registry.rollout_servers import rollouts_spec
from apps.training import checkpoints, memory
from apps.training.judged import kept_aside
from apps.training.models import SHAPES, Method, TrainingRun
from apps.training.refusals import refuse_leaks
from apps.training.reward_lock import require_reviewed
from apps.training.sft_rows import (
    LearnedRow,
    as_leak_row,
    example_rows,
    sft_row,
    whole_conversation,
)
from apps.training.sources import groups_of
from apps.training.teachers import teacher_of
from workers.lib.specs.best_of_n import BestOfN
from workers.lib.specs.dpo import Dpo
from workers.lib.specs.engines import Engine, Model
from workers.lib.specs.grpo import Grpo
from workers.lib.specs.harness import AgentHarness
from workers.lib.specs.job import Job
from workers.lib.specs.kto import Kto
from workers.lib.specs.methods import CONFIGS
from workers.lib.specs.on_policy import OnPolicy
from workers.lib.specs.reward_model import RewardModel
from workers.lib.specs.rollouts import Rollouts
from workers.lib.specs.sft import Sft
from workers.lib.specs.training import SIDE_BY_SIDE
from workers.lib.typed import convert

NamedRows = list[tuple[str, LearnedRow]]
FROM_ROWS: dict[str, Any] = {
    Method.SFT: Sft,
    Method.REJECTION: Sft,
    Method.DISTILL: Sft,
    Method.DPO: Dpo,
    Method.KTO: Kto,
    Method.REWARD: RewardModel,
}


@dataclass(frozen=True, kw_only=True)
class Material:
    """What a run learns from, and the validation tasks that it is sampled on. `texts`: all of that,
    named, in the format in which it is compared with the hold-outs.
    """

    tasks: list[Task]
    validation: list[Task]
    rows: list[LearnedRow]
    validation_rows: list[LearnedRow]
    texts: Iterable[tuple[str, dict]]


def training_spec(run: TrainingRun) -> Job:
    """Checks the lock and the hold-outs again: a review, the policy, the judge, a remote server or
    a hold-out may have changed since the run was queued. Raises TrainingLocked, HoldoutLeak,
    ModelError, ArtifactError, ServerError, RefusedKey.
    """
    record_scorer(run, run.environment)
    require_reviewed(
        method=run.method,
        dataset=run.dataset,
        environment=run.environment,
        by=run.created_by,
        scorer=run.spec["scorer"],
        agent=agent_in(run.spec),
    )
    config = convert(memory.settings_of(run), CONFIGS[run.method], "config")
    material = material_of(run, config)
    refuse_leaks(run, material.tasks + material.validation, material.texts)
    teacher, engine, rollouts = (
        teacher_of(run),
        run.spec.get("teacher_engine"),
        run.spec.get("rollouts"),
    )
    if teacher:
        load_adapter(run, teacher, engine)
    checkpoint = checkpoints.bring(run)
    return spec_of(
        run.method,
        material,
        **job_fields(run),
        resume_from=str(checkpoint) if checkpoint else None,
        config=config,
        model=model_spec(run.parent),
        engine=in_process(getattr(config, "sample_batch", 0) or SIDE_BY_SIDE),
        environment=as_played(job_spec(run.environment), run.spec),
        teacher=model_spec(teacher, engine) if teacher else None,
        teacher_server=engine_spec(teacher, SIDE_BY_SIDE, engine) if teacher and engine else None,
        rollouts=rollouts_spec(run.pk, rollouts) if rollouts else None,
        harness=harness_spec(run),
        success_rates=success_rates(run) if getattr(config, "curriculum", False) else {},
    )


def spec_of(
    method: str,
    material: Material,
    *,
    teacher: Model | None,
    teacher_server: Engine | None,
    rollouts: Rollouts | None,
    harness: AgentHarness | None,
    success_rates: dict[str, float],
    **shared: Any,
) -> Job:
    """For the method's program. `shared`: what all of them read."""
    shared["validation_tasks"] = [named_task(task) for task in material.validation]
    if form := FROM_ROWS.get(method):
        return form(**shared, rows=material.rows, validation_rows=material.validation_rows)
    shared["tasks"] = [named_task(task) for task in material.tasks]
    if method == Method.GRPO:
        return Grpo(**shared, rollouts=rollouts, harness=harness, success_rates=success_rates)
    taught = {"teacher": teacher, "teacher_server": teacher_server}
    if method == Method.ON_POLICY:
        return OnPolicy(**shared, **taught)
    return BestOfN(**shared, **taught, validation_rows=material.validation_rows)


def material_of(run: TrainingRun, config: Any) -> Material:
    tasks, validation = run.dataset.tasks(), validation_of(run, config)
    shown: list[tuple[str, LearnedRow]] = []
    if run.method in SHAPES:
        shown, held = examples_of(run, config.validation_share)
        texts = named_texts(as_leak_row, shown + held)
    elif run.method == Method.SFT:
        shown, held = demonstrations(run, tasks), demonstrations(run, validation)
        texts = named_texts(whole_conversation, shown)
    else:
        held = demonstrations(run, validation) if run.method == Method.BEST_OF_N else []
        texts = task_texts(tasks)
    return Material(
        tasks=tasks,
        validation=validation,
        rows=[row for _, row in shown],
        validation_rows=[row for _, row in held],
        texts=chain(task_texts(validation), texts),
    )


def validation_of(run: TrainingRun, config: Any) -> list[Task]:
    """The validation tasks that the run samples on."""
    always = run.method in (Method.GRPO, Method.ON_POLICY)
    if not always and (not config.eval_every or run.method == Method.REWARD):
        return []
    return list(run.dataset.eval_set.tasks.filter(split=Split.VALIDATION))


def examples_of(run: TrainingRun, share: float) -> tuple[NamedRows, NamedRows]:
    """The examples that train, and those that are held back."""
    examples = list(run.dataset.examples.select_related("task"))
    rows = example_rows(run, examples)
    kinds = [example.data.get("good") for example in examples]
    aside = kept_aside(groups_of(examples), share, kinds)
    return (
        [row for at, row in enumerate(rows) if at not in aside],
        [row for at, row in enumerate(rows) if at in aside],
    )


def demonstrations(run: TrainingRun, tasks: list[Task]) -> NamedRows:
    """The rows of the tasks that say what is right."""
    environment = load_for(run.environment)
    return [(task.key, row) for task in tasks if (row := sft_row(task, environment))]


def named_texts(form: Callable[[Any], dict], rows: NamedRows) -> Iterator[tuple[str, dict]]:
    return ((name, form(row)) for name, row in rows)


def task_texts(tasks: list[Task]) -> Iterator[tuple[str, dict]]:
    return ((task.key, leaks.row_of(task)) for task in tasks)


def named_task(task: Task) -> dict:
    """The task's spec with its key, which messages of the run use."""
    return task.as_spec() | {"key": task.key}


def success_rates(run: TrainingRun) -> dict[str, float]:
    """{task: share of samples that passed} in the evaluation that chose the run's tasks, or else in
    the parent's newest on the train split.
    """
    found = EvalRun.objects.filter(
        project=run.project,
        eval_set=run.dataset.eval_set,
        split=Split.TRAIN,
        state=JobState.SUCCEEDED,
    )
    picked = run.spec.get("picked_by")
    chosen = (
        found.filter(pk=picked)
        if picked
        else found.filter(model_version=run.parent).order_by("-created_at")
    )
    if (evaluated := chosen.first()) is None:
        return {}
    return {view.task: view.rate for view in tasks_of(evaluated, RunLearnability(evaluated).names)}
