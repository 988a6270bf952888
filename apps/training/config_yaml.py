"""A run's settings as YAML, in the guide's format: what trains on what, and each setting of the
method by name.
"""

from __future__ import annotations

from typing import Any

import msgspec
from django.db.models import QuerySet
from msgspec import Struct, structs

from apps.core.errors import Rejected
from apps.core.forms import whole
from apps.core.http import uuid_of
from apps.core.models import Project
from apps.core.yaml_text import YamlError, load_yaml, write_yaml
from apps.training.models import TrainingRun
from apps.training.sources import evaluations_of
from apps.training.start_adapter import SHAPE
from apps.training.teachers import server_name_of
from workers.lib.presets import PRESETS
from workers.lib.specs.methods import CONFIGS
from workers.lib.typed import FormError, Seed, Text, convert, plain, unknown

GUIDE = {
    "generations": "num_generations_per_prompt",
    "eval_every": "eval_interval",
}  # the guide's names for settings
OURS = {guide: ours for ours, guide in GUIDE.items()}


class ConfigError(Rejected):
    """A file that cannot be read. The message is a sentence; `field` is the invalid key ("" for the
    whole file).
    """

    field = ""


MOST_SEEDS = 10  # runs of one config, each with a seed of its own


class Head(Struct, forbid_unknown_fields=True, kw_only=True):
    """The part of a file other than the settings. `reward`, if given, must be the environment's
    verifier. `samples_of`: the id of an evaluation whose samples are examples, in addition to all
    other sources that the method learns from. `teacher_on`: the server that a teacher runs on; by
    default a served model runs on its own server, any other in the run's process.
    """

    model: Text
    algorithm: Text
    training_data: Text
    environment: Text
    reward: str = ""
    teacher: str = ""
    teacher_on: str = ""
    samples_of: str = ""
    adapter: str = "lora"
    seed: Seed = 0


class RunConfig(Struct, kw_only=True):
    """A parsed file; `config` is complete, with every default. `left_out`: settings of the adapter
    that the file does not set, so that they may be those of an adapter that the run continues.
    """

    head: Head
    config: dict[str, Any]
    left_out: frozenset[str] = frozenset()

    @property
    def written(self) -> dict[str, Any]:
        return {name: value for name, value in self.config.items() if name not in self.left_out}


HEAD = tuple(field.name for field in structs.fields(Head))


def config_of(run: TrainingRun) -> RunConfig:
    """Raises ConfigError if the run has settings that this version no longer supports."""
    environment, eval_set = run.environment, run.dataset.eval_set
    head = Head(
        model=str(run.parent),
        algorithm=run.method,
        training_data=f"{eval_set.slug}@{eval_set.version}",
        environment=f"{environment.slug}@{environment.version}",
        reward=str(environment.verifier),
        teacher=run.spec.get("teacher_name", ""),
        teacher_on=server_name_of(run),
        samples_of=run.spec.get("samples_of", ""),
        seed=run.spec.get("seed", 0),
    )
    return RunConfig(head=head, config=checked(run.spec["config"], run.method))


def write(found: RunConfig) -> str:
    """Settings that are None are left out: that means the same."""
    settings = {
        GUIDE.get(name, name): value for name, value in found.written.items() if value is not None
    }
    return write_yaml(
        {name: value for name, value in plain(found.head).items() if value != ""} | settings
    )


def read(text: str) -> RunConfig:
    """Raises ConfigError with the key, and a suggestion of what was probably meant."""
    try:
        value = load_yaml(text)
    except YamlError as error:
        raise ConfigError(str(error), error.field) from error
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise ConfigError(
            "A training config is a mapping of names to values, such as `algorithm: grpo`."
        )
    algorithm = value.get("algorithm")
    if algorithm is not None and (not isinstance(algorithm, str) or algorithm not in CONFIGS):
        raise ConfigError(f"“algorithm” must be one of {', '.join(CONFIGS)}.", "algorithm")
    known = _settings(algorithm or "grpo")
    if strange := next(
        (name for name in value if name not in HEAD and name not in known and name != "preset"),
        None,
    ):
        raise ConfigError(f"“{strange}” {unknown(strange, [*HEAD, 'preset', *known])}", strange)
    try:
        head = convert({name: value[name] for name in HEAD if name in value}, Head)
    except FormError as error:
        raise ConfigError(str(error), error.path) from error
    if head.adapter != "lora":
        raise ConfigError(
            "“adapter” must be lora. For DoRA, also write `use_dora: true`.", "adapter"
        )
    given = _preset(value.get("preset"), head.algorithm)
    for name in value.keys() - {*HEAD, "preset"}:
        if name in OURS and OURS[name] in value:
            raise ConfigError(
                f"“{name}” and “{OURS[name]}” are the same setting. Write one of them.", name
            )
        given[OURS.get(name, name)] = value[name]
    config = checked(given, head.algorithm)
    left_out = {name for name in SHAPE if name not in given and config[name] is not None}
    return RunConfig(head=head, config=config, left_out=frozenset(left_out))


def checked(config: dict[str, Any], algorithm: str) -> dict[str, Any]:
    """The settings with every default. Raises ConfigError."""
    try:
        return plain(convert(config, CONFIGS[algorithm]))
    except FormError as error:
        path = GUIDE.get(error.path, error.path)
        raise ConfigError(f"“{path}” {error.problem}." if path else str(error), path) from error


def _settings(algorithm: str) -> list[str]:
    names = [field.encode_name for field in msgspec.structs.fields(CONFIGS[algorithm])]
    return [*names, *(GUIDE[name] for name in names if name in GUIDE)]


def _preset(name: Any, algorithm: str) -> dict[str, Any]:
    if name is None:
        return {}
    if algorithm != "grpo":
        raise ConfigError("“preset” is for GRPO only.", "preset")
    if not isinstance(name, str) or name not in PRESETS:
        raise ConfigError(f"“preset” {unknown(str(name), list(PRESETS))}", "preset")
    return dict(PRESETS[name].fields)


def rows_of(found: RunConfig, project: Project) -> dict[str, Any]:
    """The objects that a file names: {parent, eval_set, environment, teacher?, teacher_on?,
    samples_of?}. Raises ConfigError if the project has nothing of that name.
    """
    head = found.head
    rows = {
        "parent": _named(
            project.model_versions.current().trainable(), "model", head.model, "-v", "name"
        ),
        "eval_set": _named(
            project.eval_sets.current(), "training_data", head.training_data, "@", "slug"
        ),
        "environment": _named(
            project.environments.current(), "environment", head.environment, "@", "slug"
        ),
    }
    if head.teacher:
        rows["teacher"] = _named(
            project.model_versions.current().models(), "teacher", head.teacher, "-v", "name"
        )
    if head.teacher_on:
        names = list(project.servers.values_list("name", flat=True))
        if head.teacher_on not in names:
            raise ConfigError(
                f"“teacher_on”: {head.teacher_on[:80]} {unknown(head.teacher_on, names)}",
                "teacher_on",
            )
        rows["teacher_on"] = head.teacher_on
    if head.samples_of:
        pk, runs = uuid_of(head.samples_of), evaluations_of(project)
        rows["samples_of"] = runs.filter(pk=pk).first() if pk else None
        if rows["samples_of"] is None:
            raise ConfigError(
                "“samples_of” is the id of a finished evaluation of training tasks in this"
                " project.",
                "samples_of",
            )
    verifier = str(rows["environment"].verifier)
    if head.reward and head.reward != verifier:
        raise ConfigError(
            f"“reward” is {head.reward}, but {head.environment} is scored by {verifier}.", "reward"
        )
    return rows


def _named(rows: QuerySet[Any], key: str, given: str, between: str, field: str) -> Any:
    name, _, version = given.rpartition(between)
    number = whole(version, 0, 2**31 - 1)
    if name and number is not None:
        row = rows.filter(**{field: name, "version": number}).first()
        if row is not None:
            return row
    names = [f"{one}{between}{number}" for one, number in rows.values_list(field, "version")[:200]]
    raise ConfigError(f"“{key}”: {given[:80]} {unknown(given, names)}", key)
