"""veRL 0.9: GRPO with a custom reward function. Prompts are passed rendered, so that tools and
template are Flywheel's.
"""

from __future__ import annotations

from typing import Any

from apps.training.engines.plan import ExportError, Plan, prompt_rows
from apps.training.engines.text import as_yaml, command, script

IDENTITY = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
LOSSES = {
    "dapo": "token-mean",
    "grpo": "seq-mean-token-mean",
    "dr_grpo": "seq-mean-token-sum-norm",
    "gspo": "seq-mean-token-mean",
}


def config(plan: Plan) -> dict:
    settings, gspo = plan.config, plan.config.loss_type == "gspo"
    if settings.loss_type not in LOSSES:
        raise ExportError(
            f"veRL has no loss “{settings.loss_type}” in this export. Choose one of"
            f" {', '.join(LOSSES)}."
        )
    batch = settings.prompts_per_step
    adapter = {"lora_adapter_path": "adapter"} if plan.adapter else {}
    return {
        "hydra": {"searchpath": ["pkg://verl.trainer.config"]},
        "defaults": ["ppo_trainer", "_self_"],
        "data": {
            "train_files": "data/train.verl.jsonl",
            "val_files": (
                "data/validation.verl.jsonl" if plan.validation else "data/train.verl.jsonl"
            ),
            "train_batch_size": batch,
            "max_prompt_length": plan.prompt_tokens,
            "max_response_length": settings.max_new_tokens,
            "filter_overlong_prompts": True,
            "truncation": "error",
            "seed": plan.seed,
            "shuffle": True,
        },
        "actor_rollout_ref": {
            "model": {
                "path": "model",
                "custom_chat_template": IDENTITY,
                "lora_rank": plan.adapter.rank if plan.adapter else settings.lora_rank,
                "lora_alpha": plan.alpha,
                "target_modules": plan.targets or "all-linear",
                "use_shm": False,
                **adapter,
            },
            "actor": {
                "optim": {
                    "lr": settings.learning_rate,
                    "lr_warmup_steps": settings.warmup_steps,
                    "weight_decay": 0.0,
                },
                "ppo_mini_batch_size": batch,
                "ppo_micro_batch_size_per_gpu": 1,
                "ppo_epochs": settings.updates_per_batch,
                "use_kl_loss": settings.beta > 0,
                "kl_loss_coef": settings.beta,
                "entropy_coeff": 0,
                "clip_ratio_low": 3e-4 if gspo else settings.clip_low,
                "clip_ratio_high": 4e-4 if gspo else settings.clip_high,
                "loss_agg_mode": LOSSES[settings.loss_type],
                "policy_loss": {"loss_mode": "gspo" if gspo else "vanilla"},
            },
            "rollout": {
                "name": "vllm",
                "n": settings.generations,
                "temperature": settings.temperature,
                "top_p": settings.top_p,
                "load_format": "safetensors",
                "layered_summon": True,
                "tensor_model_parallel_size": 1,
                "log_prob_micro_batch_size_per_gpu": 1,
            },
            "ref": {"log_prob_micro_batch_size_per_gpu": 1},
        },
        "algorithm": {
            "adv_estimator": "grpo",
            "norm_adv_by_std_in_grpo": settings.scale_rewards == "group",
            "use_kl_in_reward": False,
            **(
                {"rollout_correction": correction(settings)} if settings.correction != "off" else {}
            ),
        },
        "reward": {
            "custom_reward_function": {"path": "verl_reward.py", "name": "compute_score"},
            **(overlong(settings) if settings.overlong_buffer else {}),
        },
        "trainer": {
            "total_training_steps": settings.steps,
            "total_epochs": settings.steps,
            "n_gpus_per_node": 1,
            "nnodes": 1,
            "logger": ["console"],
            "project_name": "flywheel",
            "experiment_name": plan.name,
            "save_freq": settings.save_every,
            "test_freq": settings.eval_every or -1,
            "val_before_train": False,
            "default_local_dir": "checkpoints",
            "rollout_data_dir": "rollouts",
        },
    }


def correction(settings: Any) -> dict:
    """A sampler separate from the trainer is corrected unless that is turned off: TIS clamps
    weights at the upper bound, MIS and IcePop zero them outside both."""
    bounds = f"{settings.correction_min:g}_{settings.correction_max:g}"
    clamps = settings.correction in ("auto", "tis")
    threshold = settings.correction_max if clamps else bounds
    return {"rollout_is": settings.correction_level, "rollout_is_threshold": threshold}


def overlong(settings: Any) -> dict:
    buffer = {
        "enable": True,
        "len": settings.overlong_buffer,
        "penalty_factor": settings.overlong_penalty,
        "log": False,
    }
    return {
        "reward_manager": {"name": "dapo"},
        "reward_kwargs": {"overlong_buffer_cfg": buffer, "max_resp_len": settings.max_new_tokens},
    }


def files(plan: Plan) -> dict[str, bytes]:
    made = {"data/train.jsonl": prompt_rows(plan.rows), "config/run.yaml": as_yaml(config(plan))}
    if plan.validation:
        made["data/validation.jsonl"] = prompt_rows(plan.validation)
    renders = [
        command("python3", "render.py", f"data/{split}.jsonl", f"data/{split}.verl.jsonl", "verl")
        for split in ("train", "validation")
        if f"data/{split}.jsonl" in made
    ]
    run = (
        command("python3", "-m", "verl.trainer.main_ppo", "--config-path")
        + ' "$PWD/config" --config-name run "$@"'
    )
    return made | {"launch.sh": script(*renders, run, needs_key=True)}
