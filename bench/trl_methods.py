"""Updates of SFT and DPO, ours against stock TRL's trainers on the same batch. `python -m
bench.trl_methods [--layers N] [--rounds 3]`

SmolLM2-135M-Instruct, float32, LoRA r=16 on all linear layers, one thread, no gradient
checkpointing. Both sides begin from the same weights and take TRL's own batch of the demo's tasks
(8 rows, or 4 pairs), or of rows that share nothing (`apart`); the run ends where loss or gradients
differ. They are timed in turns, in CPU time, which a busy machine moves least; *kept* is the most
bytes kept for the backward pass at a time. Prints a table for bench/README.md.
"""

from __future__ import annotations

import argparse
import copy
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from bench.grpo_step import conversations
from bench.prefix_tree import MODEL, RANK, most_kept
from bench.trl_reference import gradients, largest_relative_difference, randomise_adapter
from workers.lib.environments.requests import make_requests
from workers.lib.specs.training import Lora
from workers.ml.models import load_base, lora
from workers.ml.shared_forward import share_prompts
from workers.ml.tree import use_tree
from workers.prepare_demo_model import prepare
from workers.sft import add_gradients

SETS = ("sft demo", "sft apart", "dpo demo", "dpo apart")
Update = Callable[[], float]


def rows_of(name: str, tokenizer: Any, folder: Path, out: str) -> list[dict]:
    """Prompts and answers of the demo's agent, or words of chance."""
    draw = random.Random(0)

    def words(n: int) -> str:
        return tokenizer.decode([draw.randrange(1000, 40_000) for _ in range(n)])

    if "demo" in name:
        chats, asked = conversations(folder, out), make_requests(0, 40)
        answers = [str(row["expected"]) for row in asked]
    else:
        chats = [[{"role": "user", "content": words(draw.randint(60, 120))}] for _ in range(9)]
        answers = [words(draw.randint(25, 48)) for _ in chats]
    said = [[{"role": "assistant", "content": answer}] for answer in answers]
    if "sft" in name:
        return [
            {"prompt": chat, "completion": answer} for chat, answer in zip(chats, said, strict=True)
        ][:8]
    return [
        {"prompt": chat, "chosen": good, "rejected": bad}
        for chat, good, bad in zip(chats, said, said[1:] + said[:1], strict=True)
    ][:4]


def update_of(
    side: str, name: str, model: Any, tokenizer: Any, rows: list[dict], out: str
) -> Update:
    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

    kind, settings = (SFTTrainer, SFTConfig) if "sft" in name else (DPOTrainer, DPOConfig)
    trainer = kind(
        model=model,
        processing_class=tokenizer,
        train_dataset=Dataset.from_list(rows),
        args=settings(
            output_dir=out,
            per_device_train_batch_size=len(rows),
            max_length=None,
            report_to="none",
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            disable_tqdm=True,
            seed=0,
            **({"completion_only_loss": True} if "sft" in name else {}),
        ),
    )
    if "ref" in getattr(model, "peft_config", {}):
        model.delete_adapter("ref")  # the reference is the bare base
    batch = next(iter(trainer.get_train_dataloader()))
    model.train()
    if side == "ours" and "sft" in name:
        use_tree(model)
        ids, real, labels = (batch[key] for key in ("input_ids", "attention_mask", "labels"))
        return lambda: add_gradients(model, ids, real.bool(), labels)["train/loss"]
    if side == "ours":
        share_prompts(trainer)

    def update() -> float:
        loss = trainer.compute_loss(model, copy.copy(batch))
        loss.backward()
        return float(loss.detach())

    return update


def compare(name: str, options: argparse.Namespace) -> str:
    folder, sides, models = prepare(options.model), dict[str, Update](), dict[str, Any]()
    with tempfile.TemporaryDirectory() as out:
        for side in ("TRL", "ours"):
            base, tokenizer = load_base(folder)
            base.model.layers = base.model.layers[: options.layers]
            base.config.num_hidden_layers = len(base.model.layers)
            models[side] = lora(base, Lora(lora_rank=RANK), None)
            randomise_adapter(models[side])
            rows = rows_of(name, tokenizer, folder, out)
            sides[side] = update_of(side, name, models[side], tokenizer, rows, out)
        weights = {
            side: {p.data_ptr() for p in model.parameters()} for side, model in models.items()
        }
        kept, losses, found = {}, {}, {}
        for side, update in sides.items():
            kept[side] = most_kept(
                lambda update=update, side=side: losses.update({side: update()}), weights[side]
            )
            found[side] = gradients(models[side])
        gap = largest_relative_difference(found["ours"], found["TRL"])
        if not (
            abs(losses["ours"] - losses["TRL"]) < 1e-4 * max(1, abs(losses["TRL"])) and gap < 1e-3
        ):
            raise SystemExit(f"{name}: loss or gradients differ: {losses}, {gap}")
        times: dict[str, list[float]] = {side: [] for side in sides}
        for _ in range(options.rounds):
            for side, update in sides.items():
                began = time.process_time()
                update()
                times[side].append(time.process_time() - began)
    ratio = statistics.median(
        theirs / ours for theirs, ours in zip(times["TRL"], times["ours"], strict=True)
    )
    return f"| {name} | {ratio:.2f}× | {kept['ours'] / kept['TRL']:.2f} | {gap:.0e} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=",".join(SETS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--layers", type=int, default=30, help="of the model's 30, for a shorter run"
    )
    parser.add_argument("--model", type=Path, default=MODEL)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(
        "| batch | CPU time of TRL, ours = 1 | kept for the backward pass, TRL = 1 | gradients"
        " differ by |\n|---|---|---|---|"
    )
    for name in options.only.split(","):
        print(compare(name, options), flush=True)


if __name__ == "__main__":
    main()
