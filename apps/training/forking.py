"""A new run from a checkpoint of another one, with changed settings."""

from __future__ import annotations

from typing import Any

from django import forms
from django.db import transaction

from apps.core import job_files, jobs
from apps.core.form_bounds import bounds_from
from apps.core.forms import PlainForm
from apps.core.yaml_text import YamlError, load_yaml, write_yaml
from apps.registry.harness import agent_in
from apps.registry.models import Server
from apps.training import checkpoints, reused_samples
from apps.training.actions import TrainingError, freeze_estimate, prepared_run
from apps.training.config_yaml import Head
from apps.training.models import Checkpoint, Method, TrainingRun
from apps.training.start_adapter import whole_settings
from apps.training.teachers import chosen, server_name_of, teacher_of
from workers.lib.specs.training import Lora

FIXED = Lora.__struct_fields__  # the adapter in the checkpoint already has its shape
LONGEST = 20_000  # characters of settings
START = "0 (the start: nothing of what it learned)"


@bounds_from(Head)
class ForkForm(PlainForm):
    step = forms.TypedChoiceField(coerce=int, label="Checkpoint")
    name = forms.CharField(max_length=200)
    seed = forms.IntegerField()
    config = forms.CharField(
        label="Settings",
        max_length=LONGEST,
        widget=forms.Textarea(attrs={"rows": 26, "class": "mono", "spellcheck": "false"}),
        help_text=(
            "YAML. The adapter keeps its rank and layers; steps are counted from the start of the"
            " original run."
        ),
    )

    def __init__(self, run: TrainingRun, data: Any = None, step: int | None = None) -> None:
        found = checkpoints.available(run)
        before = checkpoints.before_alarm(run, found)
        known = [one.step for one in found if one.step] + [0]
        super().__init__(
            data,
            initial={
                "step": step if step in known else default_step(run),
                "name": f"{run.name}, forked"[:200],
                "seed": run.spec.get("seed", 0),
                "config": as_yaml(run.spec["config"]),
            },
        )
        safe = {before.step: " (before the alarm)"} if before else {}
        self.fields["step"].choices = [
            (one, f"{one:,}{safe.get(one, '')}" if one else START) for one in known
        ]

    def clean_config(self) -> dict[str, Any]:
        try:
            value = load_yaml(self.cleaned_data["config"])
        except YamlError as error:
            raise forms.ValidationError(str(error)) from error
        if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
            raise forms.ValidationError(
                "Settings are names and values, such as “learning_rate: 1e-5”."
            )
        return value


def as_yaml(config: dict[str, Any]) -> str:
    """Settings that are None or empty are left out: that means the same."""
    return write_yaml(
        {name: config[name] for name in sorted(config) if config[name] not in (None, {}, [])}
    )


def default_step(run: TrainingRun) -> int:
    """The step to fork from: the checkpoint before the first sign of what ended the run, else the
    newest one. It is 0 (the start) if an alarm ended the run and every checkpoint is later than its
    first sign.
    """
    found = checkpoints.available(run)
    if before := checkpoints.before_alarm(run, found):
        return before.step
    return found[0].step if found and not checkpoints.spoiling_alarm(run) else 0


def fork(
    *,
    run: TrainingRun,
    step: int,
    config: dict[str, Any],
    by: Any,
    seed: int | None = None,
    name: str = "",
) -> TrainingRun:
    """Queue a fork. Without changes it continues as the original would have. Step 0 starts over
    from the run's parent.

    Raises TrainingError and TrainingLocked.
    """
    found = (
        next((one for one in checkpoints.available(run) if one.step == step), None)
        if step
        else None
    )
    if found is None and step:
        raise TrainingError(f"{run} has no checkpoint at step {step} any more. Choose another one.")
    made = prepared_run(
        project=run.project,
        method=Method(run.method),
        parent=run.parent,
        dataset=run.dataset,
        environment=run.environment,
        config=config,
        seed=run.spec.get("seed", 0) if seed is None else seed,
        name=name or f"{run.name}, forked"[:200],
        by=by,
        **sampling_of(run),
        teacher=teacher_of(run),
        teacher_on=server_name_of(run),
        agent=agent_in(run.spec),
    )
    settings = made.spec["config"]
    if found and (
        changed := [one for one in FIXED if settings.get(one) != run.spec["config"].get(one)]
    ):
        raise TrainingError(
            f"A fork keeps the adapter of its checkpoint: {', '.join(changed)} cannot change. Start"
            " a new run instead."
        )
    if found and settings.get("validation_share") != run.spec["config"].get("validation_share"):
        raise TrainingError(
            "A fork holds back the same examples: with another “validation_share” it would be"
            " measured on data the checkpoint has been trained on. Start a new run instead."
        )
    if settings["steps"] <= step:
        raise TrainingError(
            f"“steps” is {settings['steps']}, and the checkpoint is at step {step} already. Set"
            " more steps."
        )
    carried = {
        key: run.spec[key]
        for key in ("picked_by", "picked", "picked_of", "sources")
        if key in run.spec
    }
    made.spec |= carried | {"forked_from": {"run": str(run.pk), "name": run.name, "step": step}}
    made.forked_from, made.done = run, step
    reused, about = reused_samples.of_fork(run, made.spec, step, ask=True)
    made.spec["forked_from"] |= {"samples": about} if about else {}
    freeze_estimate(made, start=step, sampled=reused)
    try:
        shared = [*([found.folder] if found else []), *([reused_samples.KEPT] if reused else [])]
        with transaction.atomic():
            jobs.submit(made, by=by)
            job_files.share(run, made, shared)
            if found:
                Checkpoint.objects.create(run=made, step=step, attempt=0)
    except OSError as error:
        raise TrainingError(f"The checkpoint cannot be copied: {error}") from error
    return made


def spec_of_fork(run: TrainingRun, config: dict[str, Any], seed: int) -> dict[str, Any]:
    """The parts of a fork's spec that its settings change, before it is made. Raises ModelError,
    FormError.
    """
    settings = whole_settings(run.method, config, run.parent)
    taught = chosen(Method(run.method), run.parent, teacher_of(run), server_name_of(run), settings)
    return run.spec | taught | {"config": settings, "seed": seed}


def sampling_of(run: TrainingRun) -> dict[str, Any]:
    """The servers that a run samples on, by their current names."""
    given = run.spec.get("rollouts")
    if not given:
        return {}
    now = dict(Server.objects.filter(project=run.project_id).values_list("pk", "name"))
    names = [now.get(one["server"], one["server_name"]) for one in given["servers"]]
    return {"sample_on": names, "steps_ahead": given["steps_ahead"]}


def changes(run: TrainingRun) -> list[tuple[str, Any, Any]]:
    """(setting, before, now) of a fork compared with the run it came from."""
    if run.forked_from is None:
        return []
    before, now = (
        run.forked_from.spec["config"] | {"seed": run.forked_from.spec.get("seed")},
        run.spec["config"] | {"seed": run.spec.get("seed")},
    )
    return [
        (name, before.get(name), now.get(name))
        for name in sorted({*before, *now})
        if before.get(name) != now.get(name)
    ]
