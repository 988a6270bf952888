"""OpenRLHF 0.11: SFT and DPO with LoRA; GRPO with all weights, since its RL syncs raw parameters to
vLLM.
"""

from __future__ import annotations

from typing import Any

from apps.training.engines.plan import ExportError, Plan, prompt_rows
from apps.training.engines.text import command, script

PIECES = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def sft_options(plan: Plan) -> dict[str, Any]:
    """An episode is passed as pieces of its rendered text, which a template that adds nothing
    joins; the pieces with the role assistant are learned.
    """
    if plan.episodes:
        data: dict[str, Any] = {
            "--data.input_key": "messages",
            "--data.tokenizer_chat_template": PIECES,
        }
    else:
        data = {
            "--data.input_key": "input",
            "--data.output_key": "output",
            "--data.input_template": "{}",
        }
    return {
        "--model.model_name_or_path": "model",
        "--data.dataset": "json@data/rendered",
        **data,
        **tuning(plan),
    }


def dpo_options(plan: Plan) -> dict[str, Any]:
    settings = plan.config
    if settings.loss_type not in ("sigmoid", "ipo"):
        raise ExportError(
            f"OpenRLHF has no DPO loss “{settings.loss_type}”. Choose sigmoid or ipo."
        )
    return {
        "--model.model_name_or_path": "model",
        "--data.dataset": "json@data/rendered",
        "--data.prompt_key": "prompt",
        "--data.chosen_key": "chosen",
        "--data.rejected_key": "rejected",
        "--model.beta": settings.beta,
        "--model.label_smoothing": settings.label_smoothing,
        **tuning(plan),
    }


def tuning(plan: Plan) -> dict[str, Any]:
    settings = plan.config
    epochs = max(1, -(-settings.steps * settings.batch_size // max(1, len(plan.rows))))
    return {
        "--data.max_len": settings.max_length,
        "--train.batch_size": settings.batch_size,
        "--train.micro_batch_size": 1,
        "--train.max_epochs": epochs,
        "--train.seed": plan.seed,
        "--adam.lr": settings.learning_rate,
        "--max_norm": settings.max_grad_norm,
        "--lr_warmup_ratio": round(settings.warmup_steps / settings.steps, 4),
        "--min_lr_ratio": settings.final_lr_share,
        "--ds.zero_stage": 2,
        "--ds.param_dtype": "bf16",
        "--ds.attn_implementation": "sdpa",
        **lora(plan),
        "--ckpt.output_dir": "result",
        "--ckpt.save_steps": settings.save_every,
        "--logger.logging_steps": 1,
    }


def lora(plan: Plan) -> dict[str, Any]:
    settings = plan.config
    return {
        "--ds.lora.rank": settings.lora_rank,
        "--ds.lora.alpha": plan.alpha,
        "--ds.lora.dropout": settings.lora_dropout,
        "--ds.lora.target_modules": plan.targets or ["all-linear"],
    }


def rl_options(plan: Plan) -> dict[str, Any]:
    settings = plan.config
    if settings.loss_type not in ("dapo", "grpo", "gspo", "dr_grpo"):
        raise ExportError(f"OpenRLHF has no loss “{settings.loss_type}”.")
    gspo = settings.loss_type == "gspo"
    per_step = settings.prompts_per_step * settings.generations
    return {
        "--actor.model_name_or_path": "model",
        "--reward.remote_url": "openrlhf_reward.py",
        "--data.prompt_dataset": "json@data/rendered",
        "--data.input_key": "input",
        "--data.label_key": "label",
        "--data.max_len": plan.total_tokens,
        "--rollout.max_new_tokens": settings.max_new_tokens,
        "--rollout.batch_size": settings.prompts_per_step,
        "--rollout.n_samples_per_prompt": settings.generations,
        "--rollout.temperature": settings.temperature,
        "--rollout.top_p": settings.top_p,
        "--train.batch_size": per_step,
        "--train.micro_batch_size": 1,
        "--train.max_epochs": settings.updates_per_batch,
        "--train.num_episodes": max(
            1, -(-settings.steps * settings.prompts_per_step // len(plan.rows))
        ),
        "--train.seed": plan.seed,
        "--algo.advantage.estimator": (
            "dr_grpo" if settings.loss_type == "dr_grpo" else "group_norm"
        ),
        "--actor.policy_loss_type": "gspo" if gspo else "ppo",
        "--actor.eps_clip_low_high": (
            [3e-4, 4e-4] if gspo else [settings.clip_low, settings.clip_high]
        ),
        "--algo.kl.init_coef": settings.beta,
        "--actor.adam.lr": settings.learning_rate,
        "--actor.max_norm": settings.max_grad_norm,
        "--actor.num_nodes": 1,
        "--actor.num_gpus_per_node": 1,
        "--ref.num_nodes": 1,
        "--ref.num_gpus_per_node": 1,
        "--vllm.num_engines": 1,
        "--vllm.tensor_parallel_size": 1,
        "--ds.zero_stage": 3,
        "--ds.param_dtype": "bf16",
        "--ckpt.output_dir": "result",
        "--ckpt.save_steps": settings.save_every,
        **shaping(settings),
    }


def shaping(settings: Any) -> dict[str, Any]:
    """Overlong shaping and token-level correction: TIS clips the weights of tokens, MIS and IcePop
    drop tokens outside the bounds.
    """
    found: dict[str, Any] = {}
    if settings.overlong_buffer:
        found |= {
            "--reward.overlong_buffer_len": settings.overlong_buffer,
            "--reward.overlong_penalty_factor": settings.overlong_penalty,
        }
    if settings.correction != "off" and settings.correction_level == "token":
        clips = settings.correction in ("auto", "tis")
        found |= {
            "--algo.advantage.is_correction_level": "token",
            "--algo.advantage.is_correction_mode": "clip" if clips else "mask",
            "--algo.advantage.is_correction_threshold": [
                settings.correction_min,
                settings.correction_max,
            ],
        }
    return found


def words(options: dict[str, Any]) -> list[Any]:
    return [
        word
        for name, value in options.items()
        for word in (name, *(value if isinstance(value, list) else [value]))
    ]


PROGRAMS = {
    "sft": ("train_sft", sft_options),
    "dpo": ("train_dpo", dpo_options),
    "grpo": ("train_ppo_ray", rl_options),
}


def flags_of(plan: Plan) -> list[str]:
    settings = plan.config
    if plan.method == "sft":
        return ["--data.multiturn", "--data.apply_chat_template"] if plan.episodes else []
    if plan.method == "dpo":
        return ["--model.ipo_enable"] if settings.loss_type == "ipo" else []
    beta, dynamic = bool(settings.beta), bool(settings.dynamic_sampling)
    return [
        "--train.colocate_all",
        "--vllm.enable_sleep",
        *["--algo.kl.use_loss"] * beta,
        *["--algo.dynamic_filtering_enable"] * dynamic,
    ]


def files(plan: Plan) -> dict[str, bytes]:
    module, options = PROGRAMS[plan.method]
    form = {
        "grpo": "openrlhf",
        "dpo": "pair",
        "sft": "pieces" if plan.episodes else "openrlhf_sft",
    }[plan.method]
    render = "mkdir -p data/rendered\n" + command(
        "python3", "render.py", "data/train.jsonl", "data/rendered/train.jsonl", form
    )
    scored = plan.method == "grpo"
    start = ["python3", "-m"] if scored else ["deepspeed", "--module"]
    run = (
        command(*start, f"openrlhf.cli.{module}", *words(options(plan)), *flags_of(plan)) + ' "$@"'
    )
    return {
        "data/train.jsonl": prompt_rows(plan.rows),
        "launch.sh": script(render, run, needs_key=scored),
    }
