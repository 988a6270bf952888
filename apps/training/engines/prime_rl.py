"""prime-rl 0.4: GRPO through verifiers' nemo-gym taskset, which calls the environment over REST;
SFT from a dataset folder.
"""

from __future__ import annotations

from typing import Any

from apps.training.engines.plan import ExportError, Plan, chat_rows, gym_rows
from apps.training.engines.text import as_toml, command, script

KEY = "@FLYWHEEL_API_KEY@"  # launch.sh replaces this in a copy that only its owner can read
FILLED = """umask 077
python3 - <<'PYTHON'
import json, os
from pathlib import Path
text = Path("rl.toml").read_text(encoding="utf-8")
Path("rl.local.toml").write_text(text.replace("@FLYWHEEL_API_KEY@", \
json.dumps(os.environ["FLYWHEEL_API_KEY"])[1:-1]), encoding="utf-8")
PYTHON"""


def lora(plan: Plan) -> dict[str, Any]:
    found = {
        "rank": plan.config.lora_rank,
        "alpha": float(plan.alpha),
        "dropout": plan.config.lora_dropout,
    }
    return found | ({"target_modules": plan.named_targets} if plan.named_targets else {})


def rl(plan: Plan) -> dict[str, Any]:
    settings = plan.config
    source = {
        "name": "flywheel",
        "env": {
            "taskset": {
                "id": "nemo-gym",
                "dataset": "data/train.jsonl",
                "task": {
                    "resources_url": plan.server + plan.path,
                    "headers": {"Authorization": f"Bearer {KEY}"},
                },
            },
            "agent": {
                "harness": {"id": "null"},
                "runtime": {"type": "subprocess"},
                "max_turns": plan.max_turns,
            },
        },
    }
    evaluated = source | {
        "name": "validation",
        "env": (
            source["env"]
            | {"taskset": source["env"]["taskset"] | {"dataset": "data/validation.jsonl"}}
        ),
    }
    return {
        "max_steps": settings.steps,
        "seq_len": plan.total_tokens,
        "output_dir": "checkpoints",
        "model": {"name": "model"},
        "ckpt": {"interval": settings.save_every},
        "deployment": {"num_train_gpus": 1, "num_infer_gpus": 1},
        "trainer": {
            "optim": {
                "lr": settings.learning_rate,
                "weight_decay": 0.0,
                "max_norm": settings.max_grad_norm,
            },
            "model": {"lora": lora(plan)},
        },
        "orchestrator": {
            "batch_size": settings.prompts_per_step * settings.generations,
            "group_size": settings.generations,
            "renderer": {"name": plan.renderer or "default"},
            "train": {
                "sampling": {
                    "max_completion_tokens": settings.max_new_tokens,
                    "temperature": settings.temperature,
                },
                "source": [source],
            },
            **(
                {"eval": {"interval": settings.eval_every, "source": [evaluated]}}
                if plan.validation and settings.eval_every
                else {}
            ),
        },
        "inference": {"vllm": {"tool_call_parser": plan.tool_parser}} if plan.tool_parser else {},
    }


def sft(plan: Plan) -> dict[str, Any]:
    settings = plan.config
    if not plan.renderer:
        raise ExportError(
            "prime-rl's SFT has no renderer for this base model's family. Choose NeMo RL, NeMo"
            " AutoModel or TRL."
        )
    return {
        "renderer": {"name": plan.renderer},
        "max_steps": settings.steps,
        "output_dir": "checkpoints",
        "model": {"name": "model", "lora": lora(plan)},
        "data": {
            "name": "data",
            "batch_size": settings.batch_size,
            "seq_len": settings.max_length,
            "seed": plan.seed,
            "splits": ["train"],
        },
        "optim": {
            "lr": settings.learning_rate,
            "weight_decay": 0.0,
            "max_norm": settings.max_grad_norm,
        },
        "ckpt": {"interval": settings.save_every},
    }


def files(plan: Plan) -> dict[str, bytes]:
    if plan.method == "sft":
        run = (
            command("uv", "run", "--project")
            + ' "${PRIME_RL:?Set it to a checkout of prime-rl}" sft @ sft.toml "$@"'
        )
        return {
            "data/train.jsonl": chat_rows(plan.rows, packed=True),
            "sft.toml": as_toml(sft(plan)),
            "launch.sh": script(run, needs_key=False),
        }
    made = {"data/train.jsonl": gym_rows(plan.rows), "rl.toml": as_toml(rl(plan))}
    if plan.validation:
        made["data/validation.jsonl"] = gym_rows(plan.validation)
    run = (
        command("uv", "run", "--project")
        + ' "${PRIME_RL:?Set it to a checkout of prime-rl}" rl @ rl.local.toml "$@"'
    )
    return made | {"launch.sh": script(FILLED, run, needs_key=True)}
