"""One GRPO step, ours against stock TRL's, at equal settings in one run. `python -m bench.grpo_step [STEPS]`

SmolLM2-135M-Instruct, float32, LoRA r=16 on all linear layers, 4 prompts × 8 completions of at most 48 tokens, the demo's
agent prompt. The two are timed in turn; generation and update apart. Before that, both compute the loss and the
gradients on the same samples.
"""

from __future__ import annotations

import copy
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from apps.demo.recipes import FULL, HARNESS, LORA, VERIFIER
from bench.trl_reference import gradients, largest_relative_difference, randomise_adapter, trl_inputs, trl_trainer
from workers.grpo import Trainer, add_gradients
from workers.lib.environments.requests import make_requests
from workers.lib.events import Emitter
from workers.lib.program import StopFlag
from workers.lib.specs import Lora, checked
from workers.ml.models import load_base, lora
from workers.prepare_demo_model import prepare

ROOT = Path(__file__).resolve().parent.parent
CONFIG = FULL.grpo | {
    "prompts_per_step": 4,
    "generations": 8,
    "steps": 100,
    "eval_every": 0,
    "kl_every": 0,
    "save_every": 1000,
}


def spec_of(folder: Path, out: str) -> dict:
    environment = {
        "slug": "workplace", "version": 1, "hash": "", "kind": "builtin", "name": "workplace", "harness": HARNESS,
        "verifier": VERIFIER,
    }  # fmt: skip
    tasks = [
        {"id": str(i), "messages": [{"role": "user", "content": row["request"]}], "expected": row["expected"]}
        for i, row in enumerate(make_requests(0, 40))
    ]
    return {
        "model": {"base": str(folder), "adapter": None}, "engine": {"kind": "transformers", "batch_size": 64},
        "environment": environment, "tasks": tasks, "config": CONFIG, "out_dir": out, "seed": 0,
    }  # fmt: skip


def give_rewards(groups: list, rewards: torch.Generator) -> None:
    """An untrained model fails all alike, and groups without spread cost no update: here every group has one."""
    for group in groups:
        for score in group.scores:
            score.reward = float(torch.rand(1, generator=rewards))


def equality(ours: Trainer, theirs: Any, groups: list) -> dict[str, float]:
    weights = torch.randn(len(groups), ours.config["generations"], generator=torch.Generator().manual_seed(1))
    batch = ours.batch_from(list(zip(groups, weights, strict=True)))
    _, metrics = add_gradients(ours.model, batch, None, None, ours.config, ours.fill)
    reference = theirs._compute_loss(
        theirs.model, trl_inputs(batch.prompts, batch.completions, batch.advantage, None, ours.fill)
    )
    reference.backward()
    found = {
        "loss_ours": metrics["train/loss"], "loss_trl": float(reference),
        "gradient_relative_difference": largest_relative_difference(gradients(ours.model), gradients(theirs.model)),
    }  # fmt: skip
    ours.optimizer.zero_grad(set_to_none=True)
    theirs.model.zero_grad(set_to_none=True)
    return found


def check(found: dict[str, float]) -> None:
    """A speed says nothing where the results differ. Raises SystemExit."""
    loss = abs(found["loss_ours"] - found["loss_trl"])
    if not (loss < 1e-4 and found["gradient_relative_difference"] < 1e-3):
        raise SystemExit(f"Loss or gradients differ from TRL's: {found}")


def main(steps: int) -> None:
    folder = prepare(ROOT / "var/models/SmolLM2-135M-Instruct")
    with tempfile.TemporaryDirectory() as out:
        ours = Trainer(checked(spec_of(folder, out), "grpo"), Emitter(os.open(os.devnull, os.O_WRONLY)), StopFlag())
        base, tokenizer = load_base(folder)
        twin = lora(base, Lora(**LORA), None)
        randomise_adapter(ours.model)
        randomise_adapter(twin)
        twin.load_state_dict(copy.deepcopy(ours.model.state_dict()))
        rewards = torch.Generator().manual_seed(0)
        conversations = [ours.environment.conversation(task) for task in ours.tasks]
        theirs = trl_trainer(
            twin, tokenizer, Path(out), CONFIG, conversations,
            reward=lambda completions, **_: torch.rand(len(completions), generator=rewards).tolist(),
        )  # fmt: skip
        theirs.model.train()
        optimizer = torch.optim.AdamW([p for p in twin.parameters() if p.requires_grad], lr=CONFIG["learning_rate"])
        first = ours.rollout(0)
        report: dict[str, Any] = {"equality": equality(ours, theirs, first)}
        check(report["equality"])
        times: dict[str, list[float]] = {"ours_generate": [], "ours_update": [], "trl_generate": [], "trl_update": []}
        tokens: dict[str, list[int]] = {"ours": [], "trl": []}
        for step in range(steps):
            at = time.perf_counter()
            groups = ours.rollout(step)
            times["ours_generate"].append(time.perf_counter() - at)
            tokens["ours"].append(sum(output.output_tokens for group in groups for output in group.outputs))
            give_rewards(groups, rewards)
            at = time.perf_counter()
            ours.update(groups)
            times["ours_update"].append(time.perf_counter() - at)
            rows = [
                {"prompt": ours.environment.conversation(group.task)}
                for group in groups
                for _ in range(CONFIG["generations"])
            ]
            at = time.perf_counter()
            batch = theirs._generate_and_score_completions(rows)
            times["trl_generate"].append(time.perf_counter() - at)
            tokens["trl"].append(int(batch["completion_mask"].sum()))
            at = time.perf_counter()
            theirs._compute_loss(theirs.model, batch).backward()
            torch.nn.utils.clip_grad_norm_(twin.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            times["trl_update"].append(time.perf_counter() - at)
            print(step, {name: round(values[-1], 1) for name, values in times.items()}, flush=True)
    medians = {name: statistics.median(values) for name, values in times.items()}
    ours_step = medians["ours_generate"] + medians["ours_update"]
    trl_step = medians["trl_generate"] + medians["trl_update"]
    report |= {
        "median_seconds": medians, "completion_tokens": tokens, "step_ratio": trl_step / ours_step,
        "generate_ratio": medians["trl_generate"] / medians["ours_generate"],
        "update_ratio": medians["trl_update"] / medians["ours_update"],
    }  # fmt: skip
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
