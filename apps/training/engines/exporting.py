"""Exports a training run, queued or not, as a folder for another engine."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.core import signing
from django.db import transaction
from django.utils.text import slugify

from apps.core.actions import audit
from apps.environments.clients import load_for
from apps.environments.reward_models import used_in
from apps.evals.exporting import row_of
from apps.evals.formats import TaskRow, write
from apps.evals.holdout import leaks
from apps.evals.models import Split, Task
from apps.registry.actions import ModelError
from apps.registry.artifacts import ArtifactError, local_path
from apps.registry.bases import find_base
from apps.registry.models import ModelVersion
from apps.registry.profiles import (
    has_native_tools,
    profile_of_version,
    takes_text_arguments,
    template_of,
)
from apps.registry.trained_elsewhere import CONFIG, WEIGHTS, rank_of, shapes_of
from apps.training.actions import TrainingError
from apps.training.engines.folder import ENGINES, Engine, check, files_of, packed
from apps.training.engines.plan import Adapter, ExportError, Plan, Row
from apps.training.models import PROGRAMS, SHAPES, Method, TrainingRun
from apps.training.refusals import refuse_leaks
from apps.training.results import lineage
from apps.training.reward_lock import require_reviewed
from apps.training.sft_rows import LearnedRow, example_rows, sft_row
from workers.lib.environments import Environment
from workers.lib.environments.gym_rows import ASKED
from workers.lib.errors import SpecError, sentence
from workers.lib.messages import items_request, read_json
from workers.lib.prompting import written_for
from workers.lib.specs.methods import CONFIGS
from workers.lib.typed import convert

SALT = "flywheel.engine-plan"
MAX_CARRIED = 512 * 2**20  # bytes of adapter weights that a folder may include
CHARACTERS_PER_TOKEN = 2  # conservative, used to estimate the token limit of a prompt
DEFAULT_TURNS = 10


@dataclass(frozen=True)
class Export:
    name: str
    content: bytes


def engine_named(slug: str) -> Engine:
    """Raises TrainingError."""
    if slug not in ENGINES:
        raise TrainingError(f"There is no engine “{slug}”. Choose one of {', '.join(ENGINES)}.")
    return ENGINES[slug]


@transaction.atomic
def export(*, run: TrainingRun, engine: str, by: Any) -> Export:
    """The exported folder as a zip archive. The same lock and the same hold-out checks apply as for
    training here. Raises TrainingLocked, TrainingError, HoldoutLeak.
    """
    chosen = engine_named(engine)
    name = f"{slugify(run.name)[:60] or run.method}-{engine}"
    content = packed(name, folder(run=run, engine=chosen, by=by))
    return Export(f"{name}.zip", content)


def folder(*, run: TrainingRun, engine: Engine, by: Any, **facts: Any) -> dict[str, bytes]:
    """{path: content}; `facts` are added to the signed manifest. Raises like `export`."""
    tasks = run.dataset.tasks()
    require_reviewed(method=run.method, dataset=run.dataset, environment=run.environment, by=by)
    validation = list(run.dataset.eval_set.tasks.filter(split=Split.VALIDATION))
    if any(task.split not in (Split.TRAIN, Split.VALIDATION) for task in tasks + validation):
        raise TrainingError("Only train and validation tasks can be exported with a training run.")
    refuse_leaks(run, tasks, ((task.key, leaks.row_of(task)) for task in tasks + validation))
    try:
        plan = plan_of(run, tasks, validation, facts)
        refuse_leaks(run, tasks, learned_texts(plan))
        made = files_of(engine, plan, sign)
    except ExportError as error:
        raise TrainingError(str(error)) from error
    audit(
        "training.exported",
        project=run.project,
        by=by,
        target=run.dataset if run._state.adding else run,
        name=run.name,
        engine=engine.label,
        method=run.get_method_display(),
        dataset=run.dataset.digest,
        files=len(made),
    )
    return made


def reason_against(run: TrainingRun, engine: Engine) -> str:
    """Why the engine cannot train this run, as a sentence; "" if it can. Does not read any task."""
    config = convert(run.spec["config"], CONFIGS[run.method], "config")
    try:
        environment = load_for(run.environment)
        check(engine, plan_with(run, environment, config, [], [], {}))
    except (ExportError, TrainingError, SpecError) as error:
        return str(error)
    return ""


def sign(facts: dict[str, Any]) -> str:
    return signing.Signer(salt=SALT).sign_object(facts)


def learned_texts(plan: Plan) -> Iterable[tuple[str, dict]]:
    """Yield (key, row) for learned texts that are not part of a task, in the format in which they
    are compared with the hold-outs.
    """
    for row in plan.rows:
        if row.turns:
            yield row.key, {"messages": row.messages + row.turns}
        elif row.chosen:
            pair = {"chosen": row.chosen, "rejected": row.rejected}
            yield row.key, {"prompt": row.messages} | pair
        elif row.good is not None or not row.gym:
            yield row.key, {"prompt": row.messages, "completion": row.completion}


def plan_of(
    run: TrainingRun, tasks: list[Task], validation: list[Task], facts: dict[str, Any]
) -> Plan:
    """Raises TrainingError."""
    environment = load_for(run.environment)
    config = convert(run.spec["config"], CONFIGS[run.method], "config")
    template = template_of(run.parent)
    if run.method in SHAPES:
        examples = list(run.dataset.examples.select_related("task"))
        rows = [row_of_example(name, row, template) for name, row in example_rows(run, examples)]
    elif run.method == Method.SFT:
        shown = ((task.key, sft_row(task, environment)) for task in tasks)
        rows = [row_of_example(key, row, template) for key, row in shown if row]
    else:
        rows = rows_of(tasks, environment, template, config)
    checked = (
        rows_of(validation, environment, template, config) if run.method == Method.GRPO else []
    )
    return plan_with(run, environment, config, rows, checked, facts)


def row_of_example(key: str, row: LearnedRow, template: str) -> Row:
    """A row as a job here learns from it: with native tools if the chat template supports them,
    otherwise with the tools written as text.
    """
    turns = getattr(row, "turns", [])
    messages, tools = written_for(template, row.messages, row.tools)
    whole, _ = written_for(template, [*row.messages, *turns], row.tools)
    return Row(
        key,
        messages,
        tools or [],
        getattr(row, "completion", ""),
        turns=whole[len(messages) :],
        chosen=getattr(row, "chosen", ""),
        rejected=getattr(row, "rejected", ""),
        good=getattr(row, "good", None),
    )


def plan_with(
    run: TrainingRun,
    environment: Environment,
    config: Any,
    rows: list[Row],
    checked: list[Row],
    facts: dict[str, Any],
) -> Plan:
    if run.method == Method.GRPO and any(used_in(run.environment.verifier.spec)):
        raise TrainingError(
            f"{run.environment.verifier} uses a reward model, which only runs in jobs of this"
            " installation, so an external engine would get no reward. Train here, or choose"
            " another verifier."
        )
    base, profile = run.parent.base_version(), profile_of_version(run.parent)
    return Plan(
        name=run.name,
        method=PROGRAMS.get(run.method, run.method),
        config=config,
        seed=run.spec["seed"],
        base=str(base),
        server=settings.FLYWHEEL_URL,
        path=f"/env/{run.environment}",
        multi_turn=environment.multi_turn,
        max_turns=(
            (run.environment.harness.get("max_turns") or DEFAULT_TURNS)
            if environment.multi_turn
            else 1
        ),
        rows=rows,
        validation=checked,
        facts=facts_of(run, base) | facts,
        adapter=adapter_of(run.parent),
        layers=layers_of(run.parent),
        exclude=tuple(profile.lora_exclude) if profile else (),
        tool_parser=profile.tool_parser if profile and has_native_tools(run.parent) else "",
        renderer=profile.renderer if profile else "",
        context=room_for(rows + checked),
        changes_turns=changes_turns(run.parent),
        text_arguments=not has_native_tools(run.parent) or takes_text_arguments(run.parent),
    )


def changes_turns(version: ModelVersion) -> str:
    """Why the template renders an earlier turn differently once the conversation continues; "" if
    it does not.
    """
    template = version.chat_template
    breaks = template.breaks if template else {}
    return next((breaks[name] for name in ("tools", "user") if name in breaks), "")


def facts_of(run: TrainingRun, base: ModelVersion) -> dict[str, Any]:
    """The facts about the export that become the lineage of the imported result."""
    return lineage(run) | {
        "project": str(run.project_id),
        "name": run.name,
        "parent_id": run.parent_id,
        "dataset": str(run.dataset_id),
        "environment_id": str(run.environment_id),
        "method": run.method,
        "base": str(base),
        "base_digest": base.digest,
        "split": Split.TRAIN.value,
        "run": "" if run._state.adding else str(run.pk),
        "lora": lora_of(run),
    }


def lora_of(run: TrainingRun) -> dict[str, Any]:
    """Rank and alpha of the adapter that is expected back: those of the continued adapter, or those
    in the settings.
    """
    if before := adapter_of(run.parent):
        return {"rank": before.rank, "alpha": json.loads(before.files[CONFIG]).get("lora_alpha")}
    config = run.spec["config"]
    return {"rank": config["lora_rank"], "alpha": config["lora_alpha"] or 2 * config["lora_rank"]}


def rows_of(
    tasks: Iterable[Task], environment: Environment, template: str, config: Any
) -> list[Row]:
    """Tasks as an agent sees them, with the harness's prompt and examples first; tools are written
    as text if the template has none.
    """
    made = []
    for task in tasks:
        episode = environment.open(task.as_spec())
        gym = gym_row(row_of(task))
        asked = {
            "temperature": getattr(config, "temperature", 1.0),
            "top_p": getattr(config, "top_p", 1.0),
        }
        gym[ASKED] = gym[ASKED] | items_request(episode.messages, episode.offered) | asked
        messages, tools = written_for(template, episode.messages, episode.offered)
        made.append(Row(task.key, messages, tools or [], task.demonstration, gym))
    return made


def gym_row(row: TaskRow) -> dict[str, Any]:
    return read_json(next(iter(write("nemo-gym", [row]))))


def room_for(rows: list[Row]) -> int:
    """Token limit of a prompt: the longest, rounded up to a power of two. A conservative guess,
    since no tokenizer is loaded here.
    """
    longest = max((len(str(row.messages)) + len(str(row.tools)) for row in rows), default=0)
    return 1 << max(9, (longest // CHARACTERS_PER_TOKEN).bit_length())


def layers_of(version: ModelVersion) -> tuple[str, ...]:
    """Names of the base's linear layers, without the head and the embeddings."""
    home = find_base(version)
    if home is None:
        return ()
    try:
        shapes = shapes_of(sorted(home.glob("*.safetensors")))
    except ModelError:
        return ()
    named = (
        name.removesuffix(".weight")
        for name, shape in shapes.items()
        if name.endswith(".weight") and len(shape) == 2
    )
    return tuple(
        sorted(
            {
                name.rpartition(".")[2]
                for name in named
                if "embed" not in name and "lm_head" not in name
            }
        )
    )


def adapter_of(version: ModelVersion) -> Adapter | None:
    """Raises TrainingError."""
    if version.artifact is None:
        return None
    try:
        home = local_path(version.artifact)
        rank, size = rank_of(home / CONFIG), (home / WEIGHTS).stat().st_size
    except ArtifactError as error:
        raise TrainingError(str(error)) from error
    except (ModelError, OSError) as error:
        raise TrainingError(f"The adapter {version} cannot be read: {sentence(error)}") from error
    if size > MAX_CARRIED:
        raise TrainingError(
            f"The adapter {version} is larger than {MAX_CARRIED / 2**20:.0f} MiB. Merge it, and"
            " register the merged model as a base model."
        )
    return Adapter(rank, {name: (home / name).read_bytes() for name in (CONFIG, WEIGHTS)})
