"""One GRPO step, ours against stock TRL's, at equal settings. `python -m bench.grpo_step [STEPS]`

SmolLM2-135M-Instruct, float32, LoRA r=16 on all linear layers, 4 prompts × 8 completions of at most
48 tokens, the demo's agent prompt; with `--tools 8` the schemas of 8 tools of Workplace Assistant
follow it (1,000 tokens in all). Each side is a process of its own that may have 8 GB, TRL's with
several sizes of the update's micro-batches; generation and update are timed apart, and each tells
its peak memory. Before that, both compute the loss and the gradients on the same samples. Prints a
table for bench/README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from apps.demo.recipes import FULL, HARNESS, LORA, VERIFIER
from bench.trl_reference import (
    gradients,
    largest_relative_difference,
    randomise_adapter,
    trl_inputs,
    trl_trainer,
)
from workers.grpo import Trainer
from workers.lib.environments import load
from workers.lib.environments.requests import make_requests
from workers.lib.environments.workplace_assistant.tools import TOOLS
from workers.lib.events import Emitter
from workers.lib.program import StopFlag
from workers.lib.specs.grpo import Grpo
from workers.lib.specs.job import checked
from workers.lib.specs.training import Lora
from workers.ml.models import load_base, lora
from workers.ml.policy_gradient import add_gradients
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

LIMIT = 8 << 30  # bytes of memory for one side
TRL_ROWS = (4, 8, 16)  # of the 32


def spec_of(folder: Path, out: str, tools: int = 0) -> dict:
    schemas = [json.dumps(tool["function"]) for tool in TOOLS[:tools]]
    harness = HARNESS | {"system_prompt": "\n".join([HARNESS["system_prompt"], *schemas])}
    environment = {
        "slug": "workplace",
        "version": 1,
        "hash": "",
        "kind": "builtin",
        "name": "workplace",
        "harness": harness,
        "verifier": VERIFIER,
    }
    tasks = [
        {
            "id": str(i),
            "messages": [{"role": "user", "content": row["request"]}],
            "expected": row["expected"],
        }
        for i, row in enumerate(make_requests(0, 40))
    ]
    return {
        "model": {"base": str(folder), "adapter": None},
        "engine": {"kind": "transformers", "batch_size": 64},
        "environment": environment,
        "tasks": tasks,
        "config": CONFIG,
        "out_dir": out,
        "seed": 0,
    }


def give_rewards(groups: list, rewards: torch.Generator) -> None:
    """An untrained model fails all alike, and groups without spread cost no update: here every
    group has one.
    """
    for group in groups:
        for score in group.scores:
            score.reward = float(torch.rand(1, generator=rewards))


def equality(ours: Trainer, theirs: Any, groups: list) -> dict[str, float]:
    weights = torch.randn(
        len(groups), ours.config.generations, generator=torch.Generator().manual_seed(1)
    )
    batch = ours.batch_from(list(zip(groups, weights, strict=True)))
    _, metrics = add_gradients(ours.model, batch, None, None, ours.config)
    reference = theirs._compute_loss(theirs.model, trl_inputs(batch.rows, batch.advantage, None))
    reference.backward()
    found = {
        "loss_ours": metrics["train/loss"],
        "loss_trl": float(reference),
        "gradient_relative_difference": largest_relative_difference(
            gradients(ours.model), gradients(theirs.model)
        ),
    }
    ours.optimizer.zero_grad(set_to_none=True)
    theirs.model.zero_grad(set_to_none=True)
    return found


def check(found: dict[str, float]) -> None:
    """A speed says nothing where the results differ. Raises SystemExit."""
    loss = abs(found["loss_ours"] - found["loss_trl"])
    if not (loss < 1e-4 and found["gradient_relative_difference"] < 1e-3):
        raise SystemExit(f"Loss or gradients differ from TRL's: {found}")


# One side, in a process of its own


def our_trainer(folder: Path, out: str, tools: int, **config: int) -> Trainer:
    spec = spec_of(folder, out, tools)
    spec["config"] = CONFIG | config
    trainer = Trainer(checked(spec, Grpo), Emitter(os.open(os.devnull, os.O_WRONLY)), StopFlag())
    randomise_adapter(trainer.model)
    return trainer


def their_trainer(folder: Path, out: str, tools: int, **config: int) -> Any:
    base, tokenizer = load_base(folder)
    model, rewards = lora(base, Lora(**LORA), None), torch.Generator().manual_seed(0)
    randomise_adapter(model)
    trainer = trl_trainer(
        model,
        tokenizer,
        Path(out),
        CONFIG | config,
        conversations(folder, out, tools),
        reward=lambda completions, **_: torch.rand(len(completions), generator=rewards).tolist(),
    )
    trainer.model.train()
    return trainer


def conversations(folder: Path, out: str, tools: int = 0) -> list[list[dict]]:
    spec = spec_of(folder, out, tools)
    environment = load(spec["environment"])
    return [environment.conversation(task) for task in spec["tasks"]]


def equality_of(folder: Path, out: str, tools: int) -> dict[str, Any]:
    """Of a small step, for which both have memory enough in one process."""
    small = {
        "prompts_per_step": 1 if tools else 2,
        "generations": 2,
    }  # TRL keeps the scores of each row's prompt
    ours = our_trainer(folder, out, tools, **small)
    return equality(ours, their_trainer(folder, out, tools, **small), ours.rollout(0))


def our_steps(folder: Path, out: str, tools: int, steps: int) -> dict[str, Any]:
    trainer, rewards = our_trainer(folder, out, tools), torch.Generator().manual_seed(0)
    found: dict[str, list] = {"generate": [], "update": [], "tokens": []}
    for step in range(steps):
        at = time.perf_counter()
        groups = trainer.rollout(step)
        found["generate"].append(time.perf_counter() - at)
        found["tokens"].append(sum(group.tokens for group in groups))
        give_rewards(groups, rewards)
        at = time.perf_counter()
        trainer.update(groups)
        found["update"].append(time.perf_counter() - at)
    return found


def their_steps(folder: Path, out: str, tools: int, steps: int, together: int) -> dict[str, Any]:
    """All rows are generated together; the update takes `together` of them at a time."""
    trainer, chats = their_trainer(folder, out, tools), conversations(folder, out, tools)
    trained = [p for p in trainer.model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=CONFIG["learning_rate"])
    found: dict[str, list] = {"generate": [], "update": [], "tokens": []}
    prompts, each = CONFIG["prompts_per_step"], CONFIG["generations"]
    for step in range(steps):
        chosen = [chats[at % len(chats)] for at in range(step * prompts, (step + 1) * prompts)]
        at = time.perf_counter()
        batch = trainer._generate_and_score_completions(
            [{"prompt": chat} for chat in chosen for _ in range(each)]
        )
        found["generate"].append(time.perf_counter() - at)
        found["tokens"].append(int(batch["completion_mask"].sum()))
        at = time.perf_counter()
        for first in range(0, prompts * each, together):
            rows = slice(first, first + together)
            # The loss divides by the tokens of the whole batch, so that the parts add up to it.
            trainer._compute_loss(
                trainer.model, {name: part_of(value, rows) for name, value in batch.items()}
            ).backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        found["update"].append(time.perf_counter() - at)
    return found


def part_of(value: Any, rows: slice) -> Any:
    return value[rows] if isinstance(value, torch.Tensor) and value.dim() else value


def one_side(side: str, steps: int, tools: int) -> None:
    folder = prepare(ROOT / "var/models/SmolLM2-135M-Instruct")
    with tempfile.TemporaryDirectory() as out:
        if side == "equality":
            found = equality_of(folder, out, tools)
        elif side == "ours":
            found = our_steps(folder, out, tools, steps)
        else:
            found = their_steps(folder, out, tools, steps, int(side))
    found["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print("FOUND " + json.dumps(found), flush=True)


# All sides


def run(side: str, steps: int, tools: int) -> dict[str, Any] | None:
    """What a side found; None where it failed, as one without memory enough does."""
    print(f"{side} …", file=sys.stderr, flush=True)
    limit = 2 * LIMIT if side == "equality" else LIMIT  # which has both models
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "bench.grpo_step",
            str(steps),
            "--side",
            side,
            "--tools",
            str(tools),
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (limit, limit)),
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    return json.loads(lines[-1].removeprefix("FOUND ")) if done.returncode == 0 and lines else None


def row_of(name: str, found: dict[str, Any] | None, ours: dict[str, Any]) -> str:
    if found is None:
        return f"| {name} | failed, or needs more than {LIMIT >> 30} GB (see above) | | | | |"
    generate, update = statistics.median(found["generate"]), statistics.median(found["update"])
    mine = [statistics.median(ours["generate"]), statistics.median(ours["update"])]
    each = " / ".join(f"{value:.1f} s" for value in (generate + update, generate, update))
    ratios = [(generate + update) / sum(mine), generate / mine[0], update / mine[1]]
    numbers = " | ".join(f"{ratio:.1f}×" for ratio in ratios)
    return f"| {name} | {each} | {numbers} | {found['peak_mb'] / 1024:.2f} GB |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("steps", type=int, nargs="?", default=3)
    parser.add_argument(
        "--tools",
        type=int,
        default=0,
        help="how many tools' schemas the prompt has beside the demo's",
    )
    parser.add_argument(
        "--trl-rows", default=",".join(map(str, TRL_ROWS)), help="sizes of TRL's micro-batches"
    )
    parser.add_argument(
        "--side", help="equality, ours, or how many rows TRL updates at a time: for the children"
    )
    options = parser.parse_args()
    if options.side:
        one_side(options.side, options.steps, options.tools)
        return
    same, ours = (run(side, options.steps, options.tools) for side in ("equality", "ours"))
    if same is None or ours is None:
        raise SystemExit("A process of ours failed; its error stands above.")
    check(same)
    theirs = {rows: run(rows, options.steps, options.tools) for rows in options.trl_rows.split(",")}
    print(
        f"Loss {same['loss_ours']:.6f}, TRL's {same['loss_trl']:.6f}; gradients differ by "
        f"{same['gradient_relative_difference']:.1e}. {options.steps} steps, medians, over ours:\n"
    )
    print(
        "| | step / generate / update | step | generate | update | peak memory"
        " |\n|---|---|---|---|---|---|"
    )
    print(row_of("ours", ours, ours))
    for together, found in theirs.items():
        print(row_of(f"TRL, update of {together} rows at a time", found, ours))
    written = {name: found["tokens"] for name, found in {"ours": ours, **theirs}.items() if found}
    print(f"\nTokens written: {written}")


if __name__ == "__main__":
    main()
