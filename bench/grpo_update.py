"""A GRPO update on made-up episodes, ours against stock TRL's loss, and the floor. `python -m
bench.grpo_update [--only demo,tools,turns]`

`python -m bench.grpo_step` plays the demo; here the rows are those of bench.prefix_tree, so that
every case has its lengths: the demo's prompt, one of 1,000 tokens with tools, episodes of four
turns, and rows that share nothing. For four turns TRL gets what its own multi-turn path
(`environment_factory`) makes of an episode: prompt, everything after it, and a mask of the agent's
tokens.

SmolLM2-135M-Instruct, float32, LoRA r=16 on all linear layers, one thread. First, both compute loss
and gradients of a few of the rows; the run ends if they differ. Then each side, TRL with several
micro-batches, is a process of its own that may have 8 GB. CPU time, which a busy machine moves
least. Prints a table for bench/README.md; `--layers 30` is the whole model.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from apps.demo.recipes import FULL
from bench.prefix_tree import MODEL, RANK, ROOT, SETS, distinct, groups_of, learnt_tokens
from bench.trl_reference import (
    gradients,
    largest_relative_difference,
    randomise_adapter,
    trl_inputs,
    trl_trainer,
)
from workers.lib.specs.training import Lora
from workers.lib.token_rows import TokenRow
from workers.ml.models import load_base, lora
from workers.ml.tree import pad, scored_parts, use_tree

LIMIT = 8 << 30  # bytes of memory for one side
TRL_ROWS = (2, 4, 8)  # of all
CONFIG = FULL.grpo | {
    "loss_type": "dapo",
    "beta": 0.0,
    "prompts_per_step": 4,
    "generations": 8,
    "max_new_tokens": 512,
}


def rows_of(name: str, tasks: int) -> tuple[list[TokenRow], torch.Tensor]:
    rows = [
        TokenRow(prompt + ids, [False] * len(prompt) + learnt, [0.0] * (len(prompt) + len(ids)))
        for prompt, group in groups_of(name, tasks)
        for ids, learnt in group
    ]
    return rows, torch.randn(len(rows), generator=torch.Generator().manual_seed(1))


def model_of(options: argparse.Namespace) -> tuple[Any, Any]:
    base, tokenizer = load_base(options.model)
    base.model.layers = base.model.layers[: options.layers]
    base.config.num_hidden_layers = len(base.model.layers)
    model = lora(base, Lora(lora_rank=RANK), None)
    randomise_adapter(model)
    return model.train(), tokenizer


def our_update(model: Any, rows: list[TokenRow], advantages: torch.Tensor) -> float:
    """On policy and by token: −advantage × ratio, over all tokens."""
    tokens, total = sum(map(sum, (row.learnt for row in rows))), 0.0
    for some in scored_parts(model, rows):
        ratio = (some.tokens.logprobs - some.tokens.logprobs.detach()).exp()
        loss = -(ratio * advantages[some.rows][:, None] * some.real).sum() / tokens
        loss.backward()
        total += float(loss.detach())
    return total


def trl_batches(
    rows: list[TokenRow], advantages: torch.Tensor, together: int
) -> list[dict[str, torch.Tensor]]:
    """Whose losses add up to that of all rows."""
    found, tokens = [], torch.tensor(sum(sum(row.learnt) for row in rows))
    for first in range(0, len(rows), together):
        some = rows[first : first + together]
        inputs = trl_inputs(some, advantages[first : first + together], None)
        mask = pad([[int(mine) for mine in row.learnt[row.start :]] for row in some], 0)[0]
        found.append(inputs | {"tool_mask": mask, "num_items_in_batch": tokens})
    return found


def trl_update(trainer: Any, batches: list[dict[str, torch.Tensor]]) -> float:
    total = 0.0
    for batch in batches:
        loss = trainer._compute_loss(trainer.model, batch)
        loss.backward()
        total += float(loss.detach())
    return total


def stock(options: argparse.Namespace, out: str) -> Any:
    model, tokenizer = model_of(options)
    return trl_trainer(model, tokenizer, Path(out), CONFIG, [[{"role": "user", "content": "Hi"}]])


def rate() -> float:
    """Operations a second of a matrix product of 256 tokens."""
    left, right = torch.randn(256, 576), torch.randn(576, 1536)
    for _warm in range(2):
        began = time.process_time()
        for _ in range(100):
            left @ right
    return 100 * 2 * left.numel() * 1536 / (time.process_time() - began)


def one_side(options: argparse.Namespace) -> dict[str, Any]:
    torch.set_num_threads(1)
    rows, advantages = rows_of(options.only, options.tasks)
    with tempfile.TemporaryDirectory() as out:
        if options.side == "equality":
            few = 2 if options.only == "tools" else 4
            rows, advantages = rows[:few], advantages[:few]
            trainer = stock(options, out)
            theirs = trl_update(trainer, trl_batches(rows, advantages, few))
            model, _ = model_of(options)
            use_tree(model)
            ours = our_update(model, rows, advantages)
            gap = largest_relative_difference(gradients(model), gradients(trainer.model))
            return {"ours": ours, "theirs": theirs, "gradients": gap}
        if options.side == "ours":
            model, _ = model_of(options)
            use_tree(model)
            base, groups = model.get_base_model(), groups_of(options.only, options.tasks)
            inner = sum(
                p.numel() for name, p in base.model.layers.named_parameters() if "lora_" not in name
            )
            work = 4 * (
                distinct(groups) * inner + learnt_tokens(groups) * base.lm_head.weight.numel()
            )
            update = lambda: our_update(model, rows, advantages)  # noqa: E731
        else:
            trainer, work = stock(options, out), 0
            batches = trl_batches(rows, advantages, int(options.side))
            update = lambda: trl_update(trainer, batches)  # noqa: E731
        seconds, floors = [], []
        for _ in range(options.rounds):
            before, began = rate(), time.process_time()
            update()
            seconds.append(time.process_time() - began)
            floors.append(2 * work / (before + rate()))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return {
        "seconds": statistics.median(seconds),
        "floor": statistics.median(floors),
        "peak_gb": peak,
    }


def run(side: str, name: str, options: argparse.Namespace) -> dict[str, Any] | None:
    """What a side found; None where it failed, as one without memory enough does."""
    print(f"{name}: {side} …", file=sys.stderr, flush=True)
    limit = 2 * LIMIT if side == "equality" else LIMIT  # which has both models
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "bench.grpo_update",
            "--side",
            side,
            "--only",
            name,
            "--layers",
            str(options.layers),
            "--tasks",
            str(options.tasks),
            "--rounds",
            str(options.rounds),
            "--model",
            str(options.model),
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (limit, limit)),
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    return json.loads(lines[-1].removeprefix("FOUND ")) if done.returncode == 0 and lines else None


def row_of(name: str, options: argparse.Namespace) -> str:
    same, ours = run("equality", name, options), run("ours", name, options)
    if same is None or ours is None:
        raise SystemExit("A process of ours failed; its error is above.")
    if not (abs(same["ours"] - same["theirs"]) < 1e-4 and same["gradients"] < 1e-3):
        raise SystemExit(f"{name}: loss or gradients differ from TRL's: {same}")
    theirs = {rows: run(rows, name, options) for rows in options.trl_rows.split(",")}
    fits = {rows: found for rows, found in theirs.items() if found}
    best = min(fits, key=lambda rows: fits[rows]["seconds"], default=None)
    ratio = (
        f"{fits[best]['seconds'] / ours['seconds']:.1f}× ({best} rows at a time)"
        if best
        else "needs more than 8 GB"
    )
    peak = f"{fits[best]['peak_gb']:.2f}" if best else "–"
    return (
        f"| {SETS[name]} | {ratio} | {ours['seconds'] / ours['floor']:.2f} | {ours['peak_gb']:.2f}"
        f" GB, TRL {peak} GB | {same['gradients']:.0e} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=",".join(SETS))
    parser.add_argument(
        "--layers", type=int, default=30, help="of the model's 30, for a shorter run"
    )
    parser.add_argument("--tasks", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--trl-rows", default=",".join(map(str, TRL_ROWS)), help="sizes of TRL's micro-batches"
    )
    parser.add_argument("--model", type=Path, default=MODEL)
    parser.add_argument("--side", help="for the children")
    options = parser.parse_args()
    if options.side:
        print("FOUND " + json.dumps(one_side(options)), flush=True)
        return
    print(
        "| rows | CPU time of TRL, ours = 1 | ours, floor = 1 | peak memory | gradients differ by"
        " |\n|---|---|---|---|---|"
    )
    for name in options.only.split(","):
        print(row_of(name, options), flush=True)


if __name__ == "__main__":
    main()
