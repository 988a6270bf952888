"""NeMo AutoModel 0.7: SFT of a PEFT adapter with its recipe. Every answer of an episode is learned;
of a single-answer conversation only the last.
"""

from __future__ import annotations

from typing import Any

from apps.training.engines.plan import Plan, chat_rows
from apps.training.engines.text import as_yaml, script


def config(plan: Plan) -> dict[str, Any]:
    settings = plan.config
    named = settings.target_modules != "all-linear"
    return {
        "recipe": "TrainFinetuneRecipeForNextTokenPrediction",
        "step_scheduler": {
            "global_batch_size": settings.batch_size,
            "local_batch_size": 1,
            "max_steps": settings.steps,
            "num_epochs": settings.steps,
            "ckpt_every_steps": settings.save_every,
        },
        "rng": {
            "_target_": "nemo_automodel.components.training.rng.StatefulRNG",
            "seed": plan.seed,
            "ranked": True,
        },
        "dist_env": {"backend": "nccl", "timeout_minutes": 10},
        "model": {
            "_target_": "nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained",
            "pretrained_model_name_or_path": "model",
        },
        "peft": {
            "_target_": "nemo_automodel.components._peft.lora.PeftConfig",
            "match_all_linear": not named and not plan.exclude,
            "target_modules": (
                [f"*{name}" for name in plan.named_targets] if named or plan.exclude else []
            ),
            "exclude_modules": list(plan.exclude),
            "dim": settings.lora_rank,
            "alpha": plan.alpha,
            "dropout": settings.lora_dropout,
            "use_dora": settings.use_dora,
        },
        "distributed": {"strategy": "fsdp2", "tp_size": 1, "cp_size": 1},
        "dataset": {
            "_target_": "nemo_automodel.components.datasets.llm.chat_dataset.ChatDataset",
            "path_or_dataset_id": "data/train.jsonl",
            "seq_length": settings.max_length,
            "truncation": "do_not_truncate",
            "mask_history": not plan.episodes,
            "mask_generation_prompt": True,
        },
        "packed_sequence": {"packed_sequence_size": 0},
        "dataloader": {
            "_target_": "torchdata.stateful_dataloader.StatefulDataLoader",
            "collate_fn": "nemo_automodel.components.datasets.utils.default_collater",
            "shuffle": True,
        },
        "loss_fn": {"_target_": "nemo_automodel.components.loss.masked_ce.MaskedCrossEntropy"},
        "optimizer": {
            "_target_": "torch.optim.AdamW",
            "lr": settings.learning_rate,
            "weight_decay": 0.0,
            "betas": [0.9, 0.999],
        },
        "lr_scheduler": {
            "lr_decay_style": "linear",
            "lr_warmup_steps": settings.warmup_steps,
            "min_lr": settings.learning_rate * settings.final_lr_share,
        },
        "checkpoint": {
            "enabled": True,
            "checkpoint_dir": "checkpoints",
            "model_save_format": "safetensors",
            "save_consolidated": False,
        },
        "clip_grad_norm": {"max_norm": settings.max_grad_norm},
    }


def files(plan: Plan) -> dict[str, bytes]:
    launch = script('automodel run.yaml --nproc-per-node "${GPUS:-1}" "$@"', needs_key=False)
    return {
        "data/train.jsonl": chat_rows(plan.rows),
        "run.yaml": as_yaml(config(plan)),
        "launch.sh": launch,
    }
