"""Starts runs from a form or a file, including several seeds at once, and fills in the form from a
file.
"""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from django.db import transaction
from django.http import QueryDict

from apps.core import jobs
from apps.core.models import Project
from apps.core.yaml_text import write_yaml
from apps.registry.actions import ModelError
from apps.training import actions
from apps.training.alarms_field import as_inputs
from apps.training.budget.asked import Asked
from apps.training.config_yaml import ConfigError, RunConfig, checked, rows_of
from apps.training.forms import ALL_LINEAR
from apps.training.models import SHAPES, Method, TrainingRun
from apps.training.picks import PickForm
from apps.training.sources import usual_examples
from apps.training.start_adapter import whole_settings
from apps.training.teachers import chosen
from workers.lib.presets import preset_of
from workers.lib.typed import FormError

SAME_NAME = (
    "steps",
    "learning_rate",
    "batch_size",
    "lora_rank",
    "lora_alpha",
    "lora_dropout",
    "use_rslora",
    "use_dora",
    "prompts_per_step",
    "generations",
    "beta",
    "temperature",
    "top_p",
    "clip_low",
    "clip_high",
    "dynamic_sampling",
    "overlong_buffer",
    "updates_per_batch",
    "minibatches",
    "gamma",
    "gae_lambda",
    "critic_learning_rate",
    "kl_target",
    "replay_share",
    "micro_batch",
    "sample_batch",
    "correction",
    "mask_truncated",
    "curriculum",
    "gradient_checkpointing",
    "retry_smaller",
    "advantages",
    "validation_share",
    "eval_every",
    "label_smoothing",
    "center_rewards",
    "show_tools",
    "samples",
    "keep",
    "load_in_4bit",
    "processes",
    "teacher_tokens",
    "teacher_usd",
    "judge_outputs",
)


@transaction.atomic
def submit_seeds(*, seeds: int, seed: int, by: Any, **given: Any) -> list[TrainingRun]:
    """Queue one run for each of `seeds` seeds, counting from `seed`; several runs form a group.
    Raises like `prepared_run`.
    """
    group = uuid4().hex
    runs = []
    for at in range(seeds):
        run = actions.prepared_run(seed=seed + at, by=by, **given)
        if seeds > 1:
            run.name = f"{run.name}, seed {seed + at}"
            run.spec |= {"group": group, "seed_at": at}
        runs.append(jobs.submit(run, by=by))
    return runs


def start_from(found: RunConfig, *, project: Project, by: Any, seeds: int = 1) -> list[TrainingRun]:
    """The runs that a file describes. Raises ConfigError, TrainingError, TrainingLocked."""
    rows, method = rows_of(found, project), found.head.algorithm
    eval_set = rows.pop("eval_set")
    if shape := SHAPES.get(method):
        examples = usual_examples(method, eval_set, rows.get("samples_of")).examples
        dataset = actions.freeze_dataset(eval_set=eval_set, by=by, shape=shape, examples=examples)
    else:
        dataset = actions.freeze_dataset(eval_set=eval_set, by=by)
    return submit_seeds(
        seeds=seeds,
        seed=found.head.seed,
        by=by,
        project=project,
        method=Method(found.head.algorithm),
        dataset=dataset,
        config=found.written,
        **rows,
    )


def asked_from(found: RunConfig, *, project: Project, seeds: int = 1) -> Asked:
    """The run that a file describes, for an estimate. Raises ConfigError."""
    rows = rows_of(found, project)
    samples_of, method = rows.pop("samples_of", None), found.head.algorithm
    try:
        config = whole_settings(method, found.written, rows["parent"])
    except FormError as error:
        raise ConfigError(str(error), error.path) from error
    try:
        taught = chosen(
            Method(method),
            rows["parent"],
            rows.get("teacher"),
            rows.pop("teacher_on", ""),
            config,
        )
    except ModelError as error:
        raise ConfigError(str(error), "teacher") from error
    examples = (
        usual_examples(method, rows["eval_set"], samples_of).examples if method in SHAPES else ()
    )
    tasks = list(rows["eval_set"].tasks.trainable())
    return Asked(
        project=project,
        method=method,
        config=config,
        tasks=tasks,
        examples=tuple(examples),
        runs=seeds,
        teacher_engine=taught.get("teacher_engine"),
        **rows,
    )


def fields_from(found: RunConfig, project: Project) -> dict[str, Any]:
    """Initial values of the form that mean the same as a file. `more` holds the settings without a
    field. Raises ConfigError.
    """
    rows = {name: getattr(row, "pk", row) for name, row in rows_of(found, project).items()}
    config = found.written
    fields = {name: config[name] for name in SAME_NAME if config.get(name) is not None}
    modules = config.get("target_modules", ALL_LINEAR)
    preference = {
        "preference_rate": "learning_rate",
        "preference_beta": "beta",
        "dpo_loss": "loss_type",
    }
    fields |= {field: config[name] for field, name in preference.items() if name in config}
    fields |= rows | {
        "method": found.head.algorithm,
        "seed": found.head.seed,
        "seeds": 1,
        "preset": preset_of(config),
        "target_modules": modules if isinstance(modules, str) else ", ".join(modules),
        "alarms": config["alarms"],
    }
    data = QueryDict(mutable=True)
    data.update(
        {name: value for name, value in fields.items() if value is not False}
        | as_inputs(config["alarms"])
    )
    form = PickForm(project, data)
    made = form.config() if form.is_valid() else {}
    whole = checked(made, found.head.algorithm) if made else {}
    more = {
        name: value
        for name, value in config.items()
        if value is not None and whole.get(name, object) != value
    }
    return fields | {"more": write_yaml(more) if more else ""}
