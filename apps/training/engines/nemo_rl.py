"""NeMo RL: GRPO through NeMo Gym, whose server forwards every call to the environment; SFT from
rows in OpenAI's format; DPO.
"""

from __future__ import annotations

from typing import Any

from apps.training.engines.plan import ExportError, Plan, chat_rows, gym_rows, prompt_rows
from apps.training.engines.text import as_yaml, script
from flywheel import places

LOSSES = {"dapo": True, "gspo": False, "grpo": False}  # whether the loss is averaged over tokens
CHECKOUT = ': "${NEMO_RL:?Set it to a checkout of NeMo RL}"'


def lora(plan: Plan) -> dict[str, Any]:
    named = plan.config.target_modules != "all-linear"
    return {
        "enabled": True,
        "dim": plan.config.lora_rank,
        "alpha": plan.alpha,
        "dropout": plan.config.lora_dropout,
        "target_modules": plan.named_targets if named else [],
        "match_all_linear": not named and not plan.exclude,
        "exclude_modules": list(plan.exclude),
        "use_triton": False,
    }


def rl(plan: Plan) -> dict[str, Any]:
    settings, gspo = plan.config, plan.config.loss_type == "gspo"
    if settings.loss_type not in LOSSES:
        raise ExportError(
            f"NeMo RL has no loss “{settings.loss_type}” in this export. Choose one of"
            f" {', '.join(LOSSES)}."
        )
    rows = settings.prompts_per_step * settings.generations
    return {
        "defaults": "base.yaml",
        "grpo": {
            "num_prompts_per_step": settings.prompts_per_step,
            "num_generations_per_prompt": settings.generations,
            "max_num_steps": settings.steps,
            "max_num_epochs": settings.steps,
            "seed": plan.seed,
            "max_rollout_turns": 1,
            "normalize_rewards": settings.scale_rewards == "group",
            "use_leave_one_out_baseline": settings.baseline == "leave_one_out",
            **shaping(settings),
            "val_period": settings.eval_every if plan.validation else 0,
            "val_at_start": False,
            "max_val_samples": None,
            "val_batch_size": None,
            "overlong_filtering": settings.loss_type == "dapo",
        },
        "loss_fn": {
            "reference_policy_kl_penalty": settings.beta,
            "ratio_clip_min": 3e-4 if gspo else settings.clip_low,
            "ratio_clip_max": 4e-4 if gspo else settings.clip_high,
            "token_level_loss": LOSSES[settings.loss_type],
            "sequence_level_importance_ratios": gspo,
            "use_importance_sampling_correction": True,
        },
        "checkpointing": {
            "enabled": True,
            "checkpoint_dir": "checkpoints",
            "save_period": settings.save_every,
            "keep_top_k": 2,
            "metric_name": "val:accuracy" if plan.validation and settings.eval_every else None,
            "higher_is_better": True,
        },
        "policy": {
            "model_name": "model",
            "tokenizer": {"name": "model"},
            "train_global_batch_size": rows,
            "train_micro_batch_size": 1,
            "logprob_batch_size": 1,
            "max_total_sequence_length": plan.total_tokens * plan.max_turns,
            "precision": "bfloat16",
            "max_grad_norm": settings.max_grad_norm,
            "dtensor_cfg": {"enabled": True, "_v2": True, "lora_cfg": lora(plan)},
            "sequence_packing": {"enabled": False},
            "optimizer": optimizer(plan),
            "generation": {
                "max_new_tokens": settings.max_new_tokens,
                "temperature": settings.temperature,
                "top_p": settings.top_p,
                "vllm_cfg": {
                    "async_engine": True,
                    "expose_http_server": True,
                    "skip_tokenizer_init": False,
                    "http_server_serving_chat_kwargs": {
                        "enable_auto_tools": bool(plan.tool_parser),
                        "tool_parser": plan.tool_parser or None,
                    },
                },
            },
        },
        "data": {
            "max_input_seq_length": None,
            "shuffle": True,
            "num_workers": 0,
            "train": {"_override_": True, "data_path": "data/train.jsonl"},
            "validation": (
                {"_override_": True, "data_path": "data/validation.jsonl"}
                if plan.validation
                else None
            ),
            "default": {
                "_override_": True,
                "dataset_name": "NemoGymDataset",
                "env_name": "nemo_gym",
                "prompt_file": None,
                "system_prompt_file": None,
                "processor": "nemo_gym_data_processor",
            },
        },
        "env": {
            "_override_": True,
            "should_use_nemo_gym": True,
            "should_mask_flagged_samples": True,
            "should_log_nemo_gym_responses": True,
            "nemo_gym": {
                "is_trajectory_collection": False,
                "config_paths": [
                    "responses_api_models/vllm_model/configs/vllm_model_for_training.yaml",
                    "${oc.env:PWD}/gym/flywheel.yaml",
                ],
                "flywheel_url": "${oc.env:FLYWHEEL_ENVIRONMENT_URL}",
            },
        },
        "logger": logger(plan),
        "cluster": {"gpus_per_node": 1, "num_nodes": 1},
    }


def shaping(settings: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if settings.dynamic_sampling:
        found |= {
            "use_dynamic_sampling": True,
            "dynamic_sampling_max_gen_batches": 1 + settings.dynamic_sampling,
        }
    if settings.overlong_buffer:
        found["reward_shaping"] = {
            "enabled": True,
            "overlong_buffer_length": settings.overlong_buffer,
            "overlong_buffer_penalty": settings.overlong_penalty,
            "max_response_length": settings.max_new_tokens,
        }
    return found


def optimizer(plan: Plan) -> dict[str, Any]:
    kwargs = {
        "lr": plan.config.learning_rate,
        "weight_decay": 0.0,
        "betas": [0.9, 0.999],
        "eps": 1e-8,
    }
    return {"name": "torch.optim.AdamW", "kwargs": kwargs}


def logger(plan: Plan) -> dict[str, Any]:
    named = {"project": "flywheel", "name": plan.name}
    return {
        "log_dir": "logs",
        "wandb_enabled": False,
        "tensorboard_enabled": True,
        "monitor_gpus": True,
        "wandb": named,
    }


def sft(plan: Plan) -> dict[str, Any]:
    settings = plan.config
    rows = {
        "_override_": True,
        "dataset_name": "openai_format",
        "data_path": "data/train.jsonl",
        "chat_key": "messages",
        "tool_key": "tools",
        "use_preserving_dataset": True,
    }
    return {
        "defaults": "base.yaml",
        "sft": {
            "max_num_steps": settings.steps,
            "max_num_epochs": settings.steps,
            "seed": plan.seed,
            "val_period": 0,
            "val_at_start": False,
            "only_unmask_final": not plan.episodes,
        },
        "checkpointing": {
            "enabled": True,
            "checkpoint_dir": "checkpoints",
            "save_period": settings.save_every,
            "keep_top_k": 2,
            "metric_name": None,
        },
        "policy": {
            "model_name": "model",
            "tokenizer": {"_override_": True, "name": "model", "chat_template_kwargs": None},
            "train_global_batch_size": settings.batch_size,
            "train_micro_batch_size": 1,
            "max_total_sequence_length": settings.max_length,
            "precision": "bfloat16",
            "max_grad_norm": settings.max_grad_norm,
            "dtensor_cfg": {"enabled": True, "_v2": True, "lora_cfg": lora(plan)},
            "optimizer": optimizer(plan),
        },
        "data": {"train": rows, "validation": None, "add_generation_prompt": True},
        "logger": logger(plan),
        "cluster": {"gpus_per_node": 1, "num_nodes": 1},
    }


def dpo(plan: Plan) -> dict[str, Any]:
    """Pairs are passed as rendered text that no chat template touches (`chat_template: null`),
    because its reader of pairs does not support tools.
    """
    settings = plan.config
    if settings.loss_type != "sigmoid":
        raise ExportError(f"NeMo RL has no DPO loss “{settings.loss_type}”. Choose sigmoid.")
    return {
        "defaults": "base.yaml",
        "dpo": {
            "max_num_steps": settings.steps,
            "max_num_epochs": settings.steps,
            "seed": plan.seed,
            "val_period": 0,
            "val_at_start": False,
            "reference_policy_kl_penalty": settings.beta,
            "preference_average_log_probs": False,
            "sft_loss_weight": 0,
        },
        "checkpointing": {
            "enabled": True,
            "checkpoint_dir": "checkpoints",
            "save_period": settings.save_every,
            "keep_top_k": 2,
            "metric_name": None,
        },
        "policy": {
            "model_name": "model",
            "tokenizer": {
                "_override_": True,
                "name": "model",
                "chat_template": None,
                "chat_template_kwargs": None,
            },
            "train_global_batch_size": settings.batch_size,
            "train_micro_batch_size": 1,
            "max_total_sequence_length": settings.max_length,
            "precision": "bfloat16",
            "max_grad_norm": settings.max_grad_norm,
            "dtensor_cfg": {"enabled": True, "_v2": True, "lora_cfg": lora(plan)},
            "optimizer": optimizer(plan),
        },
        "data": {
            "train": {"_override_": True, "data_path": "data/rendered.jsonl"},
            "validation": None,
            "default": {
                "_override_": True,
                "dataset_name": "PreferenceDataset",
                "prompt_file": None,
                "system_prompt_file": None,
            },
        },
        "logger": logger(plan),
        "cluster": {"gpus_per_node": 1, "num_nodes": 1},
    }


def gym() -> dict[str, bytes]:
    """Our own resources server for NeMo Gym, as docs/environments-protocol.md describes it."""
    home = places.carried("docs/nemo-gym")
    paths = (
        "flywheel.yaml",
        "resources_servers/flywheel/app.py",
        "resources_servers/flywheel/requirements.txt",
    )
    return {f"gym/{path}": (home / path).read_bytes() for path in paths}


def files(plan: Plan) -> dict[str, bytes]:
    made = {
        "data/train.jsonl": chat_rows(plan.rows) if plan.method == "sft" else gym_rows(plan.rows)
    }
    run = 'uv run --project "$NEMO_RL" "$NEMO_RL/{}" --config "$PWD/run.yaml" "$@"'
    if plan.method == "sft":
        link = 'ln -sfn "$NEMO_RL/examples/configs/sft.yaml" base.yaml'
        launch = script(CHECKOUT, link, run.format("examples/run_sft.py"), needs_key=False)
        return made | {"run.yaml": as_yaml(sft(plan)), "launch.sh": launch}
    if plan.method == "dpo":
        link = 'ln -sfn "$NEMO_RL/examples/configs/dpo.yaml" base.yaml'
        render = (
            'uv run --project "$NEMO_RL" render.py data/train.jsonl data/rendered.jsonl nemo_pair'
        )
        launch = script(CHECKOUT, link, render, run.format("examples/run_dpo.py"), needs_key=False)
        return {
            "data/train.jsonl": prompt_rows(plan.rows),
            "run.yaml": as_yaml(dpo(plan)),
            "launch.sh": launch,
        }
    if plan.validation:
        made["data/validation.jsonl"] = gym_rows(plan.validation)
    link = 'ln -sfn "$NEMO_RL/examples/configs/grpo_math_1B.yaml" base.yaml'
    server = (
        "export FLYWHEEL_ENVIRONMENT_URL=\"$(python3 -c 'from flywheel_environment import address;"
        " print(address())')\""
    )
    copied = (
        'mkdir -p "$NEMO_RL/3rdparty/Gym-workspace/Gym/resources_servers" && cp -r'
        ' gym/resources_servers/flywheel "$NEMO_RL/3rdparty/Gym-workspace/Gym/resources_servers/"'
    )
    launch = script(
        CHECKOUT,
        link,
        server,
        copied,
        run.format("examples/nemo_gym/run_grpo_nemo_gym.py"),
        needs_key=True,
    )
    return made | gym() | {"run.yaml": as_yaml(rl(plan)), "launch.sh": launch}
