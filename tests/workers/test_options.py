"""Every setting of every method is read: another value changes what is learned, or is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import structs
from safetensors.torch import load_file

from tests.workers import test_best_of_n, test_dpo, test_kto, test_on_policy, test_reward_model
from tests.workers import test_sft as sft_tests
from tests.workers.conftest import Recorder, typed
from tests.workers.test_best_of_n import few_at_once  # noqa: F401 - a model that ends its answers
from workers import best_of_n, dpo, grpo, kto, on_policy, reward_model, sft
from workers.lib.errors import JobError, SpecError
from workers.lib.program import StopFlag
from workers.lib.specs.methods import CONFIGS

# Settings that must not change what is learned: how it is computed, saved, measured and shown.
ELSEWHERE = {
    "alarms",
    "eval_every",
    "eval_samples",
    "gradient_checkpointing",
    "judge_outputs",
    "kl_every",
    "micro_batch",
    "processes",
    "retry_smaller",
    "sample_batch",
    "sampled_outputs",
    "save_every",
    "shard",
    "teacher_answers_as",
    "teacher_tokens",
    "teacher_usd",
    "validation_share",
    "load_in_4bit",
    "max_length",  # longer rows are refused
}
COMMON = {
    "lora_rank": 2,
    "lora_alpha": 3,
    "target_modules": ["q_proj"],
    "use_rslora": True,
    "use_dora": True,
    "lora_dropout": 0.3,
    "steps": 4,
    "learning_rate": 2e-3,
    "warmup_steps": 2,
    "final_lr_share": 0.9,
    "max_grad_norm": 1e-3,
}
DRAWN = {"temperature": 0.7, "top_p": 0.6, "max_new_tokens": 2}
ON_POLICY = {"prompts_per_step": 3, "generations": 2, "max_new_tokens": 4}
GRPO = DRAWN | {
    "prompts_per_step": 3,
    "generations": 3,
    "loss_type": "gspo",
    "baseline": "leave_one_out",
    "scale_rewards": "none",
    "advantages": "turn",
    "clip_low": 0.0,
    "clip_high": 0.0,
    "beta": 0.5,
    "overlong_buffer": 4,
    "overlong_penalty": 3.0,
    "mask_truncated": True,
    "dynamic_sampling": 2,
    "curriculum": True,
    "replay_share": 0.5,
    "updates_per_batch": 3,
    "minibatches": 2,
    "correction": "tis",
    "correction_level": "sequence",
    "correction_min": 0.95,
    "correction_max": 0.7,
}
# Read with `advantages: gae` only, which has tests of its own (tests/workers/test_ppo*.py).
PPO = {
    "clip_value",
    "critic_learning_rate",
    "gae_lambda",
    "gamma",
    "kl_horizon",
    "kl_target",
    "whiten_advantages",
}
PREFERENCE = {"batch_size": 2, "beta": 0.5}
FLIPS: dict[str, dict[str, Any]] = {
    "sft": {"batch_size": 2},
    "dpo": PREFERENCE | {"loss_type": "ipo", "label_smoothing": 0.2},
    "kto": PREFERENCE | {"desirable_weight": 3.0, "undesirable_weight": 3.0},
    "reward_model": {"batch_size": 2, "center_rewards": 0.5, "show_tools": True},
    "best_of_n": DRAWN | {"batch_size": 1, "samples": 2, "keep": "all"},
    "on_policy": ON_POLICY,
    "grpo": GRPO,
}
# What a setting needs besides, to be read.
BESIDE: dict[tuple[str, str], dict[str, Any]] = {
    ("dpo", "label_smoothing"): {"loss_type": "robust"},
    ("grpo", "overlong_penalty"): {"overlong_buffer": 6},
    ("grpo", "correction_level"): {"correction": "mis", "dtype": "bfloat16"},
    ("grpo", "correction_min"): {"correction": "mis", "top_p": 0.8},
    ("grpo", "correction_max"): {"correction": "mis", "top_p": 0.8},
    ("grpo", "correction"): {"top_p": 0.8, "correction": "mis", "correction_min": 0.9},
    ("grpo", "clip_low"): {"updates_per_batch": 3},
    ("grpo", "clip_high"): {"updates_per_batch": 3},
    ("grpo", "dynamic_sampling"): {"prompts_per_step": 1, "generations": 2},
    ("best_of_n", "samples"): {"keep": "all"},
    ("best_of_n", "max_new_tokens"): {"keep": "all"},
    ("grpo", "overlong_buffer"): {"max_new_tokens": 4},
}
REFUSED = {
    ("dpo", "lora_dropout"),
    ("kto", "lora_dropout"),
    ("reward_model", "lora_dropout"),
    ("on_policy", "lora_dropout"),
    ("grpo", "lora_dropout"),
    ("dpo", "label_smoothing"),
    ("grpo", "overlong_penalty"),
    ("grpo", "correction_level"),
    ("grpo", "correction_min"),
    ("grpo", "correction_max"),
}
OFF = {"correction": "off"}
TOOL = {"type": "function", "function": {"name": "close", "parameters": {"type": "object"}}}
PROGRAMS = {
    "sft": (sft, sft_tests.sft_spec),
    "dpo": (dpo, test_dpo.dpo_spec),
    "kto": (kto, test_kto.kto_spec),
    "reward_model": (reward_model, test_reward_model.spec_of),
    "best_of_n": (best_of_n, test_best_of_n.spec_of),
    "on_policy": (on_policy, lambda make, **config: test_on_policy.spec_of(make, None, **config)),
    "grpo": (grpo, test_best_of_n.spec_of),
}


@pytest.mark.parametrize("method", FLIPS)
def test_every_setting_is_named_here(method: str) -> None:
    names = {field.encode_name for field in structs.fields(CONFIGS[method])}
    assert names - PPO <= ELSEWHERE | COMMON.keys() | FLIPS[method].keys()


@pytest.fixture(scope="module")
def known() -> dict[tuple[str, str], dict[str, torch.Tensor]]:
    """What is learned without a change, by method and settings."""
    return {}


def learned(
    method: str, make_spec: Callable[..., dict], folder: Path, config: dict
) -> dict[str, torch.Tensor]:
    """The adapter that a short run makes."""
    program, spec_of = PROGRAMS[method]
    few = {"steps": 3, "lora_rank": 4, "learning_rate": 1e-2, "warmup_steps": 0, "batch_size": 3}
    names = {field.encode_name for field in structs.fields(CONFIGS[method])}
    of_method = {
        "kto": {"batch_size": 4},
        "grpo": {"prompts_per_step": 2, "generations": 4, "sampled_outputs": 0},
    }
    settings = few | of_method.get(method, {}) | config
    dtype = settings.pop("dtype", "float32")
    spec = spec_of(make_spec, **{name: value for name, value in settings.items() if name in names})
    spec["out_dir"], spec["engine"] = str(folder), spec["engine"] | {"dtype": dtype}
    for row in spec.get("rows", ()):
        row["tools"] = [TOOL]
    if method == "grpo":
        spec["environment"]["verifier"] = {"kind": "regex", "pattern": "[a-mA-M]"}
        spec["success_rates"] = {"task-1234": 0.5, "task-2345": 0.0, "task-3456": 1.0}
    recorder = Recorder(folder.with_suffix(".jsonl"))
    with suppress(JobError):  # no weight has changed: every reward is the same, or masked
        program.main(typed(spec, method), recorder, StopFlag())
    recorder.file.close()
    if not (folder / "adapter").is_dir():
        return {}
    return load_file(folder / "adapter" / "adapter_model.safetensors")


# The code of most common settings is shared.
SHARED = COMMON.keys() - {"lora_dropout", "use_dora", "max_grad_norm"}


READ = [
    (method, name)
    for method in FLIPS
    for name in COMMON | FLIPS[method]
    if method in ("sft", "grpo") or name not in SHARED
]


@pytest.mark.more(rows=2)
@pytest.mark.parametrize(("method", "name"), READ)
def test_a_setting_changes_what_is_learned_or_is_refused(
    method: str, name: str, make_spec: Callable[..., dict], tmp_path: Path, known: dict
) -> None:
    flip, beside = (COMMON | FLIPS[method])[name], BESIDE.get((method, name), {})
    if (method, name) in REFUSED:
        with pytest.raises(SpecError, match=f"{name}. must be"):
            learned(method, make_spec, tmp_path / "refused", OFF | {name: flip})
        if not beside:
            return
    key = (method, repr(beside))
    plain = known[key] if key in known else learned(method, make_spec, tmp_path / "plain", beside)
    known[key] = plain
    try:
        changed = learned(method, make_spec, tmp_path / "changed", beside | {name: flip})
    except SpecError as refused:
        assert (name, method) == ("advantages", "grpo") and name in str(refused)
    else:
        same = plain.keys() == changed.keys() and all(
            plain[key].shape == changed[key].shape and torch.equal(plain[key], changed[key])
            for key in plain
        )
        assert not same, f"{method} does not read {name}"


@pytest.mark.more(rows=1)
@pytest.mark.parametrize(("method", "dropout"), [("sft", 0.4), ("dpo", 0.0)])
def test_dropout_is_the_runs_own_where_it_continues_an_adapter(
    method: str, dropout: float, make_spec: Callable[..., dict], tmp_path: Path
) -> None:
    learned("sft", make_spec, tmp_path / "start", {"lora_dropout": 0.9})
    start = str(tmp_path / "start" / "adapter")

    def from_start(**fields: Any) -> dict:
        spec = make_spec(**fields)
        return spec | {"model": spec["model"] | {"adapter": start}}

    learned(method, from_start, tmp_path / "next", {"lora_dropout": dropout})
    recorded = json.loads((tmp_path / "next" / "adapter" / "adapter_config.json").read_text())
    assert (recorded["lora_dropout"], recorded["r"]) == (dropout, 4)
