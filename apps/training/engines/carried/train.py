"""Trains with TRL, or with Unsloth if settings.json says so. The settings are in settings.json, the
rows in data/.

Prints a line `FLYWHEEL {"step": …, "values": {…}}` for each logged step, which Flywheel follows,
and writes metrics.jsonl.
"""

import json
from pathlib import Path

SETTINGS = json.loads(Path("settings.json").read_text(encoding="utf-8"))
if SETTINGS["engine"] == "unsloth":
    from unsloth import FastLanguageModel  # before TRL, which it patches

import torch  # noqa: E402
from datasets import Dataset  # noqa: E402
from flywheel_environment import verified  # noqa: E402
from peft import LoraConfig, PeftModel, get_peft_model  # noqa: E402
from render import ended, episode, pair, rendered, tokens  # noqa: E402
from transformers import (  # noqa: E402
    AutoModelForCausalLM,
    AutoTokenizer,
    TrainerCallback,
    set_seed,
)

OUT = Path("result")
# TRL's names for metrics that Flywheel's alarms and charts name differently. NaN is kept: it raises
# an alarm.
NAMES = {
    "reward": "train/reward_mean",
    "reward_std": "train/reward_std",
    "completions/mean_length": "train/completion_length",
    "completions/clipped_ratio": "train/truncated_share",
    "frac_reward_zero_std": "train/zero_std_share",
}


def load():
    """(model with a trainable adapter, tokenizer)."""
    lora, before = SETTINGS["lora"], Path("adapter")
    if SETTINGS["engine"] == "unsloth":
        model, tokenizer = FastLanguageModel.from_pretrained(
            model_name="adapter" if before.is_dir() else "model",
            max_seq_length=SETTINGS["max_length"],
            load_in_4bit=SETTINGS["load_in_4bit"],
        )
        if not before.is_dir():
            model = FastLanguageModel.get_peft_model(model, random_state=SETTINGS["seed"], **lora)
        return model, tokenizer
    dtype = torch.bfloat16 if torch.cuda.is_available() else torch.float32
    model, tokenizer = (
        AutoModelForCausalLM.from_pretrained("model", dtype=dtype),
        AutoTokenizer.from_pretrained("model"),
    )
    if before.is_dir():
        return PeftModel.from_pretrained(model, "adapter", is_trainable=True), tokenizer
    return get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **lora)), tokenizer


def rows(name):
    return [
        json.loads(line) for line in Path("data", name).read_text(encoding="utf-8").splitlines()
    ]


class Report(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **_):
        values = {
            NAMES.get(name, f"train/{name}"): value
            for name, value in (logs or {}).items()
            if isinstance(value, (int, float))
        }
        line = json.dumps({"step": state.global_step, "total": state.max_steps, "values": values})
        print("FLYWHEEL " + line, flush=True)
        with Path("metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(line + "\n")


def reward(prompts, completions, row, **_):
    """TRL leaves out samples whose reward is None."""
    return [
        verified(json.loads(one), completion)["score"]
        for one, completion in zip(row, completions, strict=True)
    ]


def single(tokenizer, row):
    return {
        "prompt": rendered(tokenizer, row),
        "completion": ended(tokenizer, row, row["completion"]),
    }


def learned(tokenizer, given):
    """The rows of SFT, as tokens: only they can mark which parts are learned, and keep the prompt's
    last token apart from the answer's first.
    """
    return [tokens(tokenizer, pieces) for row in given for pieces in episode(tokenizer, row)]


def started(kind, model, tokenizer, made, config):
    return kind(
        model=model,
        processing_class=tokenizer,
        train_dataset=Dataset.from_list(made),
        args=config,
        callbacks=[Report()],
    )


def trainer(model, tokenizer):
    common = {
        "output_dir": "checkpoints",
        "max_steps": SETTINGS["steps"],
        "learning_rate": SETTINGS["learning_rate"],
        "warmup_steps": SETTINGS["warmup_steps"],
        "max_grad_norm": SETTINGS["max_grad_norm"],
        "seed": SETTINGS["seed"],
        "logging_steps": 1,
        "save_steps": SETTINGS["save_every"],
        "report_to": "none",
        "use_cpu": not torch.cuda.is_available(),
        "bf16": torch.cuda.is_available() and torch.cuda.is_bf16_supported(),
        "lr_scheduler_type": "warmup_stable_decay",
        "lr_scheduler_kwargs": {
            "num_decay_steps": max(1, SETTINGS["steps"] - SETTINGS["warmup_steps"]),
            "decay_type": "linear",
            "min_lr_ratio": SETTINGS["final_lr_share"],
        },
    }
    given = rows("train.jsonl")
    if SETTINGS["method"] == "sft":
        from trl import SFTConfig, SFTTrainer

        config = SFTConfig(**common, **SETTINGS["trl"], completion_only_loss=True)
        return started(SFTTrainer, model, tokenizer, learned(tokenizer, given), config)
    if SETTINGS["method"] == "dpo":
        from trl import DPOConfig, DPOTrainer

        return started(
            DPOTrainer,
            model,
            tokenizer,
            [pair(tokenizer, row) for row in given],
            DPOConfig(**common, **SETTINGS["trl"]),
        )
    if SETTINGS["method"] == "kto":
        from trl import KTOConfig, KTOTrainer

        made = [single(tokenizer, row) | {"label": row["label"]} for row in given]
        return started(KTOTrainer, model, tokenizer, made, KTOConfig(**common, **SETTINGS["trl"]))
    from trl import GRPOConfig, GRPOTrainer

    made = [{"prompt": rendered(tokenizer, row), "row": row["row"]} for row in given]
    config = GRPOConfig(**common, **SETTINGS["trl"])
    return GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=reward,
        train_dataset=Dataset.from_list(made),
        args=config,
        callbacks=[Report()],
    )


def main():
    set_seed(SETTINGS["seed"])
    model, tokenizer = load()
    run = trainer(model, tokenizer)
    run.train()
    run.model.save_pretrained(OUT, safe_serialization=True)


if __name__ == "__main__":
    main()
