"""A run's plan as a folder for other engines: what is in it, what is never in it, and texts that
want to be code.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import subprocess
import tomllib
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import to_builtins
from safetensors.numpy import save

from apps.core.models import AuditEvent, Role
from apps.evals.actions import HoldoutLeak
from apps.evals.models import Task
from apps.registry.actions import register_base
from apps.registry.profiles import has_native_tools, profile_of, profiles
from apps.reviews.actions import TrainingLocked
from apps.training.actions import TrainingError, freeze_dataset, prepared_run
from apps.training.engines import folder
from apps.training.engines.exporting import export, row_of_example
from apps.training.engines.folder import ENGINES, MANIFEST, check, files_of, packed
from apps.training.engines.plan import Adapter, ExportError, Plan, Row
from apps.training.engines.settings import TRAVELS, USED, left_behind
from apps.training.engines.text import as_toml, as_yaml, command
from apps.training.models import Method, TrainingRun
from tests.amounts import few
from tests.factories import (
    admin_of,
    make_environment,
    make_eval_set,
    make_member,
    make_project,
    override,
)
from workers.lib.specs.methods import CONFIGS
from workers.lib.specs.sft import SftRow
from workers.lib.typed import convert

LAYER = "model.layers.0.self_attn.q_proj"
SFT = {"steps": 4, "learning_rate": 1e-3, "batch_size": 2}
GRPO = {"steps": 4, "learning_rate": 1e-5, "prompts_per_step": 2, "generations": 4, "eval_every": 2}
CONFIG = {"sft": SFT, "dpo": SFT, "kto": SFT, "grpo": GRPO}
COMBINATIONS = [(engine.slug, method) for engine in ENGINES.values() for method in engine.methods]
HOSTILE = [
    "'; touch /tmp/owned; '",
    '"; rm -rf /; "',
    "$(touch owned)",
    "`touch owned`",
    "a\nb: c",
    "- x",
    "{{ evil }}",
    "${oc.env:HOME}",
    "@FLYWHEEL_API_KEY@",
    "\x00\x7f\x1b[2J",
    "'''\nPYTHON\nimport os",
    "\ud83d \U0001f600 ünïcödé \u202e",
    "!!python/object/apply:os.system ['x']",
    "]]\n[evil]\na = 1",
    "{name}",
    "%s",
    "#",
    "--help",
    "\\",
    "~",
]


def facts(**more: Any) -> dict[str, Any]:
    return {"base": "base-v1", "base_digest": "d" * 64, "eval_set": "set-v1"} | more


def plan(
    method: str = "grpo", text: str = "Close ticket 12.", config: Any = None, **changes: Any
) -> Plan:
    tool = {
        "type": "function",
        "function": {"name": "close", "description": text, "parameters": {"type": "object"}},
    }
    gym = {
        "responses_create_params": {"input": [{"role": "user", "content": text}]},
        "verifier_metadata": {"text": text},
    }
    learned = {
        "dpo": {"chosen": text or "x", "rejected": f"{text}?"},
        "kto": {"completion": text},
    }.get(method, {"completion": text, "gym": gym})
    good = {"kto": True}.get(method)
    rows = [
        Row(
            f"{text}{n}",
            [{"role": "user", "content": text}],
            [tool],
            good=good and n > 0,
            **learned,
        )
        for n in range(3)
    ]
    given = {
        "name": text,
        "method": method,
        "config": convert(CONFIG[method] | (config or {}), CONFIGS[method], "config"),
        "seed": 7,
        "base": "base-v1",
        "server": "https://flywheel.example",
        "path": "/env/workplace@1",
        "multi_turn": False,
        "max_turns": 1,
        "rows": rows,
        "validation": rows[:1] if method == "grpo" else [],
        "facts": facts(),
        "layers": ("q_proj", "v_proj", "out_proj"),
        "tool_parser": "hermes",
        "renderer": "qwen3",
        "context": 512,
    }
    return Plan(**given | changes)


def sign(given: dict) -> str:
    return "signature"


# Without a database


@pytest.mark.parametrize(("engine", "method"), COMBINATIONS)
def test_every_folder_has_what_it_needs_to_run(engine: str, method: str) -> None:
    made = files_of(ENGINES[engine], plan(method), sign)
    assert {
        "README.md",
        "launch.sh",
        "send_result.py",
        "environment.json",
        "data/train.jsonl",
        MANIFEST,
    } <= set(made)
    assert len([line for line in made["README.md"].decode().splitlines() if line.strip()]) <= 10
    listed = json.loads(made[MANIFEST])
    assert listed["facts"]["engine"] == engine and listed["signature"] == "signature"
    assert listed["files"] == {
        path: hashlib.sha256(text).hexdigest() for path, text in made.items() if path != MANIFEST
    }
    assert (b"FLYWHEEL_API_KEY" in made["launch.sh"]) == (method == "grpo")
    for path, content in made.items():
        if path.endswith(".yaml"):
            yaml.safe_load(content)
        if path.endswith(".toml"):
            tomllib.loads(content.decode())
        if path.endswith(".py"):
            compile(content, path, "exec")


@pytest.mark.parametrize(("engine", "method"), COMBINATIONS)
def test_the_same_plan_gives_the_same_bytes(engine: str, method: str) -> None:
    one, two = (packed("a", files_of(ENGINES[engine], plan(method), sign)) for _ in range(2))
    assert one == two
    with zipfile.ZipFile(io.BytesIO(one)) as archive:
        modes = {info.filename: info.external_attr >> 16 for info in archive.infolist()}
    assert modes["a/launch.sh"] == 0o755 and all(
        name.startswith("a/") and ".." not in name for name in modes
    )


def is_shell(text: bytes) -> None:
    done = subprocess.run(["bash", "-n"], input=text, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()


@pytest.mark.more(rows=6)
@pytest.mark.parametrize(
    ("engine", "method", "text"),
    [(*pair, text) for pair in COMBINATIONS for text in HOSTILE],
)
def test_hostile_names_and_texts_stay_text(engine: str, method: str, text: str) -> None:
    hostile = plan(method, text, {"target_modules": [text or "x"]})
    made, tame = (
        files_of(ENGINES[engine], hostile, sign),
        files_of(ENGINES[engine], plan(method, config={"target_modules": ["x"]}), sign),
    )
    is_shell(made["launch.sh"])
    if engine != "openrlhf":  # the others' scripts have nothing of the plan in them at all
        assert made["launch.sh"] == tame["launch.sh"]
    for path in made:
        if path.endswith(".toml"):
            assert (
                tomllib.loads(made[path].decode()).keys()
                == tomllib.loads(tame[path].decode()).keys()
            )
        if path.endswith(".yaml"):
            assert yaml.safe_load(made[path]).keys() == yaml.safe_load(tame[path]).keys()
        if path.endswith(".jsonl"):
            assert len(
                [json.loads(line) for line in made[path].decode().split("\n") if line]
            ) == tame[path].count(b"\n")


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


def without_none(value: Any) -> Any:
    """TOML has no null; in a list it cannot stand at all."""
    if isinstance(value, dict):
        return {name: without_none(one) for name, one in value.items() if one is not None}
    return (
        [without_none(one) for one in value if one is not None]
        if isinstance(value, list)
        else value
    )


@settings(deadline=None, max_examples=200)
@given(st.dictionaries(TEXT, VALUES, max_size=4))
def test_yaml_comes_back_as_it_was(value: dict) -> None:
    assert yaml.safe_load(as_yaml(value)) == value


@settings(deadline=None, max_examples=200)
@given(
    st.dictionaries(
        TEXT,
        TEXT
        | st.lists(TEXT, max_size=3)
        | st.dictionaries(TEXT, TEXT | st.integers(), max_size=3)
        | st.lists(st.dictionaries(TEXT, TEXT, min_size=1, max_size=2), min_size=1, max_size=2),
        max_size=4,
    )
)
def test_toml_comes_back_as_it_was(value: dict) -> None:
    assert tomllib.loads(as_toml(value).decode()) == value


@settings(deadline=None, max_examples=40)
@given(
    st.lists(
        st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=30),
        min_size=1,
        max_size=6,
    )
)
def test_bash_gets_the_words_that_a_command_was_given(words: list[str]) -> None:
    done = subprocess.run(
        ["bash", "-c", command("printf", "%s\\0", *words)], capture_output=True, check=True
    )
    assert done.stdout.decode().split("\0")[:-1] == words


def test_a_script_prints_hostile_words_as_they_are(tmp_path: Path) -> None:
    words = [text.replace("\x00", "").replace("\ud83d", "?") for text in HOSTILE]
    done = subprocess.run(
        ["bash", "-c", command("printf", "%s\\0", *words)],
        capture_output=True,
        check=True,
        cwd=tmp_path,
    )
    assert done.stdout.decode().split("\0")[:-1] == words and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("engine", "changes", "says"),
    [
        (
            "verl",
            {"method": "sft"},
            "does not train SFT in this export. Choose prime-rl or OpenRLHF or NeMo RL",
        ),
        ("nemo-automodel", {}, "does not train GRPO"),
        ("verl", {"multi_turn": True}, "several turns. Choose prime-rl or NeMo RL"),
        (
            "nemo-automodel",
            {"method": "dpo"},
            "does not train DPO in this export. Choose OpenRLHF or NeMo RL or Unsloth or TRL",
        ),
        ("openrlhf", {"method": "kto"}, "does not train KTO in this export. Choose Unsloth or TRL"),
        (
            "nemo-rl",
            {"method": "dpo", "config": {"loss_type": "ipo"}},
            "no DPO loss “ipo”. Choose sigmoid",
        ),
        ("openrlhf", {"method": "dpo", "config": {"loss_type": "hinge"}}, "Choose sigmoid or ipo"),
        (
            "nemo-rl",
            {
                "method": "sft",
                "multi_turn": True,
                "rows": [],
                "changes_turns": "an earlier answer is written in another way",
            },
            (
                "there an earlier answer is written in another way. Choose OpenRLHF or Unsloth or"
                " TRL, which get"
            ),
        ),
        (
            "nemo-automodel",
            {"method": "sft", "multi_turn": True, "rows": [], "text_arguments": False},
            "would quote again. Choose OpenRLHF",
        ),
        (
            "prime-rl",
            {"adapter": Adapter(8, {})},
            "cannot continue an adapter.*choose veRL or Unsloth or TRL",
        ),
        ("verl", {"config": {"advantages": "gae"}}, "PPO’s critic is not part of the exports"),
        ("nemo-rl", {"config": {"loss_type": "dr_grpo"}}, "no loss “dr_grpo”"),
        (
            "prime-rl",
            {"method": "sft", "renderer": ""},
            "no renderer for this base model's family. Choose NeMo RL",
        ),
        ("unsloth", {"layers": ()}, "Name them under “Target modules”"),
    ],
)
def test_what_an_engine_cannot_train_is_refused_with_what_to_do(
    engine: str, changes: dict, says: str
) -> None:
    with pytest.raises(ExportError, match=says):
        files_of(ENGINES[engine], plan(**changes), sign)


def test_agents_of_several_turns_are_exported_where_they_train() -> None:
    for engine in ("prime-rl", "nemo-rl"):
        check(ENGINES[engine], plan(multi_turn=True, max_turns=6))
    made = tomllib.loads(
        files_of(ENGINES["prime-rl"], plan(multi_turn=True, max_turns=6), sign)["rl.toml"].decode()
    )
    assert made["orchestrator"]["train"]["source"][0]["env"]["agent"]["max_turns"] == 6


CALL = {"id": "c1", "type": "function", "function": {"name": "close", "arguments": {"id": 12}}}
TURNS = [
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "Closed 12."},
    {"role": "assistant", "content": "Done."},
]


def with_turns(given: Plan) -> Plan:
    return replace(
        given, rows=[replace(row, completion="", gym={}, turns=TURNS) for row in given.rows]
    )


def lines_of(content: bytes) -> list[dict]:
    return [json.loads(line) for line in content.splitlines()]


@pytest.mark.parametrize("engine", [slug for slug, method in COMBINATIONS if method == "sft"])
def test_an_episode_leaves_with_its_calls_results_and_answers(engine: str) -> None:
    made = files_of(ENGINES[engine], with_turns(plan("sft", multi_turn=True)), sign)
    row = lines_of(made["data/train.jsonl"])[0]
    turns = row["turns"] if "turns" in row else row["messages"][1:]
    assert [turn["role"] for turn in turns] == ["assistant", "tool", "assistant"]
    arguments = turns[0]["tool_calls"][0]["function"]["arguments"]
    assert (json.loads(arguments) if engine == "prime-rl" else arguments) == {"id": 12}
    tools = json.loads(row["tools"]) if engine == "prime-rl" else row["tools"]
    assert tools[0]["function"]["name"] == "close" and "completion" not in row
    if (
        engine == "nemo-rl"
    ):  # of a single answer's conversation only the last is learned, of an episode all
        assert yaml.safe_load(made["run.yaml"])["sft"]["only_unmask_final"] is False
        assert (
            yaml.safe_load(exported("nemo-rl", {}, "sft")["run.yaml"])["sft"]["only_unmask_final"]
            is True
        )
    if engine == "nemo-automodel":
        assert yaml.safe_load(made["run.yaml"])["dataset"]["mask_history"] is False
        assert (
            yaml.safe_load(exported("nemo-automodel", {}, "sft")["run.yaml"])["dataset"][
                "mask_history"
            ]
            is True
        )
    if engine == "openrlhf":
        assert b"--data.multiturn" in made["launch.sh"] and b"pieces" in made["launch.sh"]


def test_turns_that_a_template_changes_go_as_separate_rows_only() -> None:
    given = with_turns(
        plan("sft", multi_turn=True, changes_turns="an earlier answer is written in another way")
    )
    for engine in ("trl", "unsloth", "openrlhf", "prime-rl"):
        check(ENGINES[engine], given)
    for engine in ("nemo-rl", "nemo-automodel"):
        with pytest.raises(ExportError, match="as separate rows"):
            check(ENGINES[engine], given)
        check(
            ENGINES[engine], plan("sft", multi_turn=True, changes_turns="it is so")
        )  # single answers alone


def test_the_two_sides_of_kto_weigh_the_same() -> None:
    made = json.loads(exported("trl", {}, "kto")["settings.json"])["trl"]
    assert (made["desirable_weight"], made["undesirable_weight"]) == (
        1.0,
        2.0,
    )  # two good answers, one bad
    assert [row["label"] for row in lines_of(exported("trl", {}, "kto")["data/train.jsonl"])] == [
        False,
        True,
        True,
    ]
    with pytest.raises(ExportError, match="all 3 of this data set are good"):
        given = plan("kto")
        files_of(
            ENGINES["trl"],
            replace(given, rows=[replace(row, good=True) for row in given.rows]),
            sign,
        )


EVERYTHING = {
    "use_rslora": True,
    "use_dora": True,
    "curriculum": True,
    "replay_share": 0.5,
    "dynamic_sampling": 2,
    "overlong_buffer": 8,
    "mask_truncated": True,
    "correction": "mis",
    "baseline": "leave_one_out",
    "gradient_checkpointing": True,
}


def exported(engine: str, config: dict, method: str = "grpo") -> dict[str, bytes]:
    return files_of(ENGINES[engine], plan(method, config=config), sign)


def test_settings_go_where_the_engine_has_them() -> None:
    verl = yaml.safe_load(exported("verl", EVERYTHING)["config/run.yaml"])
    assert verl["algorithm"]["rollout_correction"] == {
        "rollout_is": "token",
        "rollout_is_threshold": "0.5_2",
    }
    assert verl["reward"]["reward_manager"] == {"name": "dapo"}
    assert verl["reward"]["reward_kwargs"]["overlong_buffer_cfg"]["len"] == 8
    auto = yaml.safe_load(exported("verl", {})["config/run.yaml"])
    assert (
        auto["algorithm"]["rollout_correction"]["rollout_is_threshold"] == 2.0
        and "reward_manager" not in auto["reward"]
    )
    assert (
        "rollout_correction"
        not in yaml.safe_load(exported("verl", {"correction": "off"})["config/run.yaml"])[
            "algorithm"
        ]
    )
    rl = exported("openrlhf", EVERYTHING)["launch.sh"].decode()
    assert all(
        word in rl
        for word in ("--algo.dynamic_filtering_enable", "overlong_buffer_len", "is_correction_mode")
    )
    nemo = yaml.safe_load(exported("nemo-rl", EVERYTHING)["run.yaml"])["grpo"]
    assert (
        nemo["use_dynamic_sampling"]
        and nemo["reward_shaping"]["overlong_buffer_length"] == 8
        and nemo["use_leave_one_out_baseline"]
    )
    trl = json.loads(exported("trl", EVERYTHING)["settings.json"])
    assert (
        trl["lora"]["use_dora"]
        and trl["lora"]["use_rslora"]
        and trl["trl"]["mask_truncated_completions"]
    )
    unsloth = json.loads(exported("unsloth", EVERYTHING)["settings.json"])["lora"]
    assert unsloth["use_rslora"] and "use_dora" not in unsloth
    assert yaml.safe_load(exported("nemo-automodel", {"use_dora": True}, "sft")["run.yaml"])[
        "peft"
    ]["use_dora"]


@pytest.mark.more(rows=3)
@pytest.mark.parametrize(
    ("engine", "method", "config", "left"),
    [
        (
            "verl",
            "grpo",
            EVERYTHING,
            {
                "rsLoRA scaling",
                "DoRA",
                "the curriculum",
                "replay of fresh failures",
                "dynamic sampling",
            },
        ),
        (
            "trl",
            "grpo",
            EVERYTHING,
            {"the curriculum", "dynamic sampling", "overlong shaping", "rollout correction as set"},
        ),
        (
            "openrlhf",
            "grpo",
            {"correction": "mis", "correction_level": "sequence"},
            {"rollout correction of whole sequences"},
        ),
        ("verl", "grpo", {"advantages": "turn"}, {"advantages per turn"}),
        ("openrlhf", "sft", {"final_lr_share": 0.5}, set()),
        ("trl", "sft", {"use_dora": True}, set()),
        ("nemo-rl", "sft", {"use_dora": True}, {"DoRA"}),
        ("trl", "sft", {"load_in_4bit": True}, {"the base in 4 bits (QLoRA)"}),
        ("unsloth", "sft", {"load_in_4bit": True}, set()),
        ("verl", "grpo", {"final_lr_share": 1.0}, set()),
    ],
)
def test_what_stays_behind_is_said_before_the_download_and_in_the_readme(
    engine: str, method: str, config: dict, left: set
) -> None:
    found = left_behind(engine, method, convert(CONFIG[method] | config, CONFIGS[method], "config"))
    assert left <= set(found) and bool(left) >= bool(
        set(found) - {"the decay of the learning rate"}
    )
    assert all(words in exported(engine, config, method)["README.md"].decode() for words in found)


def test_layers_that_a_model_must_not_adapt_are_left_out() -> None:
    given = plan("sft", exclude=("*out_proj*",))
    assert given.targets == ["q_proj", "v_proj"]
    made = yaml.safe_load(files_of(ENGINES["nemo-automodel"], given, sign)["run.yaml"])
    assert (
        made["peft"]["exclude_modules"] == ["*out_proj*"] and not made["peft"]["match_all_linear"]
    )
    assert (
        "out_proj"
        not in json.loads(files_of(ENGINES["trl"], given, sign)["settings.json"])["lora"][
            "target_modules"
        ]
    )


def test_no_key_is_in_a_folder_and_the_copy_that_has_it_is_private() -> None:
    made = files_of(ENGINES["prime-rl"], plan(), sign)
    assert b"Bearer @FLYWHEEL_API_KEY@" in made["rl.toml"] and b"umask 077" in made["launch.sh"]
    assert not any(b"fw_" in content for content in made.values())


def test_an_adapter_goes_along() -> None:
    made = files_of(
        ENGINES["verl"],
        plan(adapter=Adapter(4, {"adapter_config.json": b"{}", "adapter_model.safetensors": b"x"})),
        sign,
    )
    assert made["adapter/adapter_model.safetensors"] == b"x"
    model = yaml.safe_load(made["config/run.yaml"])["actor_rollout_ref"]["model"]
    assert (model["lora_adapter_path"], model["lora_rank"]) == ("adapter", 4)


def test_every_engine_and_setting_is_decided() -> None:
    assert TRAVELS.keys() == ENGINES.keys() and set().union(*TRAVELS.values()) <= USED.keys()


# Profiles


@pytest.mark.parametrize(
    ("config", "name"),
    [
        ({"model_type": "qwen3"}, "Qwen3"),
        ({"model_type": "llama", "vocab_size": 49152}, "SmolLM2"),
        ({"model_type": "llama", "vocab_size": 128256}, "Llama 3"),
        ({"model_type": "nemotron_h"}, "Nemotron Nano 9B v2"),
        ({"model_type": "gpt_oss"}, "GPT-OSS 20B"),
        ({"model_type": "llama", "vocab_size": 1}, None),
        ({"model_type": ["qwen3"]}, None),
        ({}, None),
    ],
)
def test_a_family_is_found_by_its_config(config: dict, name: str | None) -> None:
    found = profile_of(config)
    assert (found and found.name) == name


def test_every_profile_names_its_sources_and_what_is_dangerous() -> None:
    for one in profiles():
        assert (
            one.sources
            and one.traps
            and all(source.startswith("https://") for source in one.sources)
        )
    assert [
        one.lora_exclude for one in profiles() if one.match == {"model_type": ["nemotron_h"]}
    ] == [["*out_proj*"]]


# With a run


@pytest.fixture
def run(data_dir: Path) -> TrainingRun:
    project = make_project()
    by = admin_of(project)
    home = data_dir / "base"
    home.mkdir()
    (home / "config.json").write_text('{"model_type": "qwen3"}')
    (home / "chat_template.jinja").write_text("{% if tools %}{% endif %}")
    (home / "model.safetensors").write_bytes(
        save(
            {
                f"{LAYER}.weight": numpy.ones((6, 8), numpy.float32),
                "model.norm.weight": numpy.ones(8),
            }
        )
    )
    base = register_base(project=project, name="base", folder=home, by=by)
    environment = make_environment(project)
    override(environment)
    eval_set = make_eval_set(project, train=3, holdout=2, validation=1)
    return prepared_run(
        project=project,
        method=Method.GRPO,
        parent=base,
        dataset=freeze_dataset(eval_set=eval_set, by=by),
        environment=environment,
        config=GRPO,
        by=by,
    )


def contents(made: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(made)) as archive:
        return {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}


@pytest.mark.more
@pytest.mark.django_db
@pytest.mark.parametrize(
    "engine", few([slug for slug, method in COMBINATIONS if method == "grpo"], 2)
)
def test_a_run_leaves_with_its_training_tasks_and_never_a_held_out_one(
    run: TrainingRun, engine: str
) -> None:
    made = contents(export(run=run, engine=engine, by=run.created_by).content)
    everything = b"".join(made.values()).decode()
    tasks = run.dataset.eval_set.tasks
    for task in tasks.filter(split="train"):
        assert task.key in everything
    for task in tasks.filter(split="holdout"):
        number = re.compile(
            rf"(?<![\w-]){task.expected['args']['id']}(?![\w-])"
        )  # no digest's part
        assert task.key not in everything
        assert not number.search(made["data/train.jsonl"].decode())
    said = json.loads(made[MANIFEST])["facts"]
    assert (said["split"], said["eval_set"]) == ("train", str(run.dataset.eval_set))
    assert (
        said["eval_set_digest"] == run.dataset.eval_set.digest
        and said["base_digest"] == run.parent.digest
    )
    event = AuditEvent.objects.get(action="training.exported")
    assert (event.detail["engine"], event.actor) == (ENGINES[engine].label, run.created_by)


@pytest.mark.django_db
def test_prompts_are_the_agents_and_rows_can_be_verified(run: TrainingRun) -> None:
    made = contents(export(run=run, engine="trl", by=run.created_by).content)
    row = json.loads(made["data/train.jsonl"].splitlines()[0])
    assert row["messages"][0]["role"] == "system" and row["messages"][-1]["content"].startswith(
        "Close ticket"
    )
    gym = json.loads(row["row"])
    assert (
        gym["verifier_metadata"]["flywheel"]["split"] == "train"
        and gym["responses_create_params"]["input"][0]["role"] == "system"
    )
    assert has_native_tools(run.parent)


NO_SYSTEM = """{% if messages[0]['role'] == 'system' %}
{{ raise_exception("System role not supported") }}{% endif %}"""


@pytest.mark.more(rows=1)
@pytest.mark.django_db
@pytest.mark.parametrize("named", [False, True], ids=["one template", "named templates"])
def test_a_template_without_a_system_role_gets_the_tools_from_the_user(
    run: TrainingRun, data_dir: Path, named: bool
) -> None:
    (data_dir / "base" / "chat_template.jinja").unlink()
    template = [{"name": "default", "template": NO_SYSTEM}] if named else NO_SYSTEM
    settings = json.dumps({"chat_template": template})
    (data_dir / "base" / "tokenizer_config.json").write_text(settings)
    made = contents(export(run=run, engine="trl", by=run.created_by).content)
    rows = [json.loads(line) for line in made["data/train.jsonl"].splitlines()]
    assert rows
    for row in rows:
        roles = [message["role"] for message in row["messages"]]
        assert roles == (["user", "assistant"] * len(roles))[: len(roles)]
        assert "tickets.close" in row["messages"][0]["content"]
    turns = [
        {"role": "assistant", "content": "Which?"},
        {"role": "user", "content": "The first."},
        {"role": "user", "content": "Please."},
    ]
    asked = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Close it."}]
    row = row_of_example("key", SftRow(messages=asked, turns=turns, tools=[]), NO_SYSTEM)
    assert [message["content"] for message in row.messages] == ["Be brief.\n\nClose it."]
    assert [turn["content"] for turn in row.turns] == ["Which?", "The first.\n\nPlease."]


@pytest.mark.django_db
def test_a_locked_reward_is_not_exported(run: TrainingRun) -> None:
    run.environment.verifier.overrides.all().delete()
    with pytest.raises(TrainingLocked):
        export(run=run, engine="trl", by=run.created_by)
    assert not AuditEvent.objects.filter(action="training.exported").exists()


@pytest.mark.django_db
def test_a_task_that_became_held_out_is_not_exported(run: TrainingRun) -> None:
    later = make_eval_set(run.project, train=0, holdout=2, frozen=False)
    ours = run.dataset.tasks()[0]
    Task.objects.filter(pk=later.tasks.first().pk).update(
        messages=ours.messages, expected=ours.expected
    )
    with pytest.raises(HoldoutLeak, match="Nothing was trained"):
        export(run=run, engine="trl", by=run.created_by)


@pytest.mark.django_db
def test_a_gold_episode_leaves_unless_a_later_turn_says_what_is_held_out(
    run: TrainingRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.method, run.spec = (
        Method.SFT,
        run.spec | {"config": to_builtins(convert(SFT, CONFIGS["sft"], "config"))},
    )
    asked = [{"role": "user", "content": "Please help."}]
    monkeypatch.setattr(
        "apps.training.engines.exporting.sft_row",
        lambda *_: SftRow(messages=asked, tools=[], turns=TURNS),
    )
    made = contents(export(run=run, engine="trl", by=run.created_by).content)
    rows = lines_of(made["data/train.jsonl"])
    assert len(rows) == 3 and [row["turns"] for row in rows] == [TURNS] * 3
    held = run.dataset.eval_set.tasks.filter(split="holdout").first()
    later = [*TURNS, held.messages[-1], {"role": "assistant", "content": "Done, too."}]
    monkeypatch.setattr(
        "apps.training.engines.exporting.sft_row",
        lambda *_: SftRow(messages=asked, tools=[], turns=later),
    )
    with pytest.raises(HoldoutLeak, match="Nothing was trained"):
        export(run=run, engine="trl", by=run.created_by)


@pytest.mark.django_db
def test_an_engine_that_is_not_there_is_named(run: TrainingRun) -> None:
    with pytest.raises(TrainingError, match=r"no engine “axolotl”\. Choose one of verl"):
        export(run=run, engine="axolotl", by=run.created_by)


@pytest.mark.django_db
def test_a_set_with_another_split_in_it_does_not_leave(
    run: TrainingRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = run.dataset.eval_set.tasks.filter(split="holdout").first()
    monkeypatch.setattr(type(run.dataset), "tasks", lambda self: [held])
    with pytest.raises(TrainingError, match="Only train and validation tasks"):
        export(run=run, engine="trl", by=make_member(run.project, Role.ENGINEER))


def test_the_readme_says_when_no_adapter_comes_back() -> None:
    assert (
        "register_model" in files_of(ENGINES["openrlhf"], plan("grpo"), sign)["README.md"].decode()
    )
    assert folder.ADAPTER in files_of(ENGINES["openrlhf"], plan("sft"), sign)["README.md"].decode()
