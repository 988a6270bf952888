"""TRL, plain or under Unsloth: `carried/train.py` with its settings. Plain TRL runs on a CPU
too.
"""

from __future__ import annotations

import json
from typing import Any

from apps.training.engines.plan import ExportError, Plan, prompt_rows
from apps.training.engines.text import script

LOSSES = ("dapo", "grpo", "dr_grpo", "gspo")


def settings_of(plan: Plan, engine: str) -> dict[str, Any]:
    given = plan.config
    unsloth = engine == "unsloth"
    targets: Any = plan.named_targets if unsloth else plan.targets or "all-linear"
    return {
        "engine": engine,
        "method": plan.method,
        "seed": plan.seed,
        "steps": given.steps,
        "learning_rate": given.learning_rate,
        "warmup_steps": given.warmup_steps,
        "max_grad_norm": given.max_grad_norm,
        "save_every": given.save_every,
        "max_length": plan.total_tokens if plan.method == "grpo" else given.max_length,
        "final_lr_share": given.final_lr_share,
        "lora": {
            "r": given.lora_rank,
            "lora_alpha": plan.alpha,
            "lora_dropout": given.lora_dropout,
            "target_modules": targets,
            "use_rslora": given.use_rslora,
            **({} if unsloth else {"use_dora": given.use_dora}),
        },
        **({"load_in_4bit": given.load_in_4bit} if unsloth else {}),
        "trl": {"sft": sft, "dpo": dpo, "kto": kto, "grpo": grpo}[plan.method](plan),
    }


def sft(plan: Plan) -> dict[str, Any]:
    return {
        "per_device_train_batch_size": plan.config.batch_size,
        "max_length": plan.config.max_length,
    }


def dpo(plan: Plan) -> dict[str, Any]:
    given = plan.config
    return sft(plan) | {
        "beta": given.beta,
        "loss_type": [given.loss_type],
        "label_smoothing": given.label_smoothing,
    }


def kto(plan: Plan) -> dict[str, Any]:
    """The two sides weigh the same unless the run says otherwise, as in `workers.kto`."""
    given, good = plan.config, sum(bool(row.good) for row in plan.rows)
    bad = len(plan.rows) - good
    if plan.rows and not (good and bad):
        raise ExportError(
            f"KTO needs good and bad answers, and all {len(plan.rows)} of this data set are"
            f" {'good' if good else 'bad'}."
        )
    equal = (max(1.0, bad / good), max(1.0, good / bad)) if plan.rows else (1.0, 1.0)
    weights = given.desirable_weight or equal[0], given.undesirable_weight or equal[1]
    return sft(plan) | {
        "beta": given.beta,
        "desirable_weight": weights[0],
        "undesirable_weight": weights[1],
    }


def grpo(plan: Plan) -> dict[str, Any]:
    given, gspo = plan.config, plan.config.loss_type == "gspo"
    if given.loss_type not in LOSSES:
        raise ExportError(
            f"TRL has no loss “{given.loss_type}” in this export. Choose one of"
            f" {', '.join(LOSSES)}."
        )
    return {
        "per_device_train_batch_size": given.generations,
        "gradient_accumulation_steps": given.prompts_per_step,
        "num_generations": given.generations,
        "max_completion_length": given.max_new_tokens,
        "temperature": given.temperature,
        "top_p": given.top_p,
        "beta": given.beta,
        "epsilon": 3e-4 if gspo else given.clip_low,
        "epsilon_high": 4e-4 if gspo else given.clip_high,
        "num_iterations": given.updates_per_batch,
        "scale_rewards": given.scale_rewards,
        "mask_truncated_completions": given.mask_truncated,
        "gradient_checkpointing": given.gradient_checkpointing,
        "loss_type": "grpo" if gspo else given.loss_type,
        "importance_sampling_level": "sequence" if gspo else "token",
    }


def files(plan: Plan, engine: str) -> dict[str, bytes]:
    if engine == "unsloth" and not plan.named_targets:
        raise ExportError(
            "Unsloth needs the names of the layers to adapt. Name them under “Target modules”."
        )
    launch = script('python3 train.py "$@"', needs_key=plan.method == "grpo")
    settings = json.dumps(settings_of(plan, engine), indent=2).encode() + b"\n"
    return {
        "data/train.jsonl": prompt_rows(plan.rows),
        "settings.json": settings,
        "launch.sh": launch,
    }


def trl(plan: Plan) -> dict[str, bytes]:
    return files(plan, "trl")


def unsloth(plan: Plan) -> dict[str, bytes]:
    return files(plan, "unsloth")
