"""An update over the prefix tree against the two-level code before it (commit 23094aa), and against
the floor.

`python -m bench.prefix_tree [--layers N] [--rounds 3] [--only demo,turns,…]` starts both sides for
each set of rows, each a process with one thread, and lets them compute loss and gradients of the
same rows in turns; the ratios are of CPU time, which a busy machine moves least.
SmolLM2-135M-Instruct, float32, LoRA r=16 on all linear layers. The floor: distinct tokens ×
parameters that they go through × 4 (twice forward, twice backward by the input; the weights are
frozen), at the rate of a matrix product of 256 tokens, measured beside each update; and the same
with attention's six products of what each token sees. Prints a table for bench/README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
MODEL = ROOT / "var" / "models" / "SmolLM2-135M-Instruct"
BEFORE, TWO_LEVELS = "23094aa", ROOT / "var" / "bench" / "two_levels"
TASKS, SAMPLES, TURNS, RANK = 4, 8, 4, 16
SETS = {
    "demo": "the demo's prompt (330 tokens), answers of 25 to 48 tokens",
    "tools": "a prompt of 1,000 tokens with tools, the same answers",
    "turns": "four turns after a prompt of 600 tokens; a third of the first turns alike",
    "apart": "16 rows that share nothing",
}
Groups = list[tuple[list[int], list[tuple[list[int], list[bool]]]]]


def groups_of(name: str, tasks: int) -> Groups:
    """[(a task's prompt, [(the tokens of a sample after it, which of them are learnt)])]; the same
    for both sides.
    """
    draw = random.Random(0)

    def tokens(shortest: int, longest: int) -> list[int]:
        return [draw.randrange(10, 40_000) for _ in range(draw.randint(shortest, longest))]

    def answered(
        turns: int, first: list[tuple[list[int], list[int]]]
    ) -> tuple[list[int], list[bool]]:
        ids, learnt = [], []
        for turn in range(turns):
            said, result = (
                draw.choice(first) if first and turn == 0 else (tokens(25, 48), tokens(10, 60))
            )
            result = result if turn + 1 < turns else []
            ids += said + result
            learnt += [True] * len(said) + [False] * len(result)
        return ids, learnt

    if name == "apart":
        return [(tokens(40, 80), [answered(1, [])]) for _ in range(4 * tasks)]
    length, turns = {"demo": (330, 1), "tools": (1000, 1), "turns": (600, TURNS)}[name]
    system = tokens(length, length)
    found = []
    for _ in range(tasks):
        first = [(tokens(25, 48), tokens(10, 60)) for _ in range(3)] if name == "turns" else []
        found.append((system + tokens(15, 40), [answered(turns, first) for _ in range(SAMPLES)]))
    return found


# One side, in a process of its own


def tree_update(model: Any, groups: Groups) -> Callable[[], float]:
    from workers.lib.token_rows import TokenRow
    from workers.ml.tree import scored_parts, use_tree

    use_tree(model)
    rows = [
        TokenRow(prompt + ids, [False] * len(prompt) + learnt)
        for prompt, group in groups
        for ids, learnt in group
    ]

    def update() -> float:
        total = 0.0
        for some in scored_parts(model, rows):
            loss = -some.tokens.logprobs.sum() / 1000
            loss.backward()
            total += float(loss.detach())
        return total

    return update


def two_level_update(model: Any, groups: Groups) -> Callable[[], float]:
    """A prompt and all that follows it, as far as the code of that commit could take episodes."""
    import torch
    from workers.ml.branches import completion_parts, decoder_of, use_branches

    from workers.ml.losses import token_logprobs

    use_branches(model)
    decoder, head = decoder_of(model)
    prompts, completions = (
        [prompt for prompt, _ in groups],
        [[ids for ids, _ in group] for _, group in groups],
    )
    learnt = [mask for _, group in groups for _, mask in group]

    def update() -> float:
        total = 0.0
        for rows, hidden, ids, real in completion_parts(decoder, prompts, completions, 0):
            used = torch.zeros_like(real)
            for row, mask in enumerate(learnt[rows]):
                used[row, : len(mask)] = torch.tensor(mask)
            loss = -token_logprobs(head, hidden[used], ids[used], 1.0).logprobs.sum() / 1000
            loss.backward()
            total += float(loss.detach())
        return total

    return update


def one_side(side: str, name: str, options: argparse.Namespace) -> None:
    import torch

    from workers.lib.specs.training import Lora
    from workers.ml.models import load_base, lora

    torch.set_num_threads(1)
    base, _ = load_base(options.model)
    base.model.layers = base.model.layers[: options.layers]
    base.config.num_hidden_layers = len(base.model.layers)
    model = lora(base, Lora(lora_rank=RANK), None).eval()
    generator = torch.Generator().manual_seed(0)
    trained = [p for p in model.parameters() if p.requires_grad]
    for parameter in trained:
        parameter.data = torch.randn(parameter.shape, generator=generator) * 0.02
    groups = groups_of(name, options.tasks)
    update = {"tree": tree_update, "two levels": two_level_update}[side](model, groups)
    inner = sum(p.numel() for p in model.get_base_model().model.layers.parameters())
    operations = 4 * (
        distinct(groups) * inner + learnt_tokens(groups) * base.lm_head.weight.numel()
    )
    attention = 12 * seen_pairs(groups) * base.config.hidden_size * len(base.model.layers)
    left, right = torch.randn(256, 576), torch.randn(576, 1536)

    def rate() -> float:
        began = time.process_time()
        for _ in range(40):
            left @ right
        return 40 * 2 * 256 * 576 * 1536 / (time.process_time() - began)

    kept = most_kept(update, {p.data_ptr() for p in model.parameters()})
    print("ready", flush=True)
    for _ in sys.stdin:
        model.zero_grad(set_to_none=True)
        rates = [rate()]
        began = time.process_time()
        loss = update()
        seconds = time.process_time() - began
        rates.append(rate())
        found = {
            "seconds": seconds,
            "floor": operations / statistics.mean(rates),
            "loss": loss,
            "with_attention": (operations + attention) / statistics.mean(rates),
            "norm": float(torch.stack([p.grad.norm() for p in trained]).norm()),
            "kept": kept,
        }
        print(json.dumps(found), flush=True)


def most_kept(update: Callable[[], float], weights: set[int]) -> int:
    """The most bytes that are kept for the backward pass at a time, each tensor once, weights left
    out. Unlike a process's peak it is the same in every run."""
    import torch

    users: Counter[int] = Counter()
    now = most = 0

    class Kept:
        def __init__(self, tensor: torch.Tensor) -> None:
            nonlocal now, most
            storage = tensor.untyped_storage()
            self.tensor, self.where, self.size = tensor, storage.data_ptr(), storage.nbytes()
            users[self.where] += 1
            if users[self.where] == 1 and self.where not in weights:
                now += self.size
                most = max(most, now)

        def __del__(self) -> None:
            nonlocal now
            users[self.where] -= 1
            if not users[self.where] and self.where not in weights:
                now -= self.size

    with torch.autograd.graph.saved_tensors_hooks(Kept, lambda kept: kept.tensor):
        update()
    return most


def distinct(groups: Groups) -> int:
    """Tokens that have to be computed: all but what no learnt token follows."""
    beginnings = set()
    for prompt, group in groups:
        for ids, _ in group:
            row = (*prompt, *ids[:-1])
            beginnings |= {hash(row[: at + 1]) for at in range(len(row))}
    return len(beginnings)


def seen_pairs(groups: Groups) -> int:
    """Pairs of a distinct token and one that it attends to: six products of head size each, forward
    and backward.
    """
    from workers.lib.prefixes import Tree

    rows = [prompt + ids[:-1] for prompt, group in groups for ids, _ in group]
    return int((Tree(rows).tokens().positions + 1).sum())


def learnt_tokens(groups: Groups) -> int:
    return len(
        {
            hash((*prompt, *ids[: at + 1]))
            for prompt, group in groups
            for ids, learnt in group
            for at, one in enumerate(learnt)
            if one
        }
    )


# Both sides


def start(side: str, name: str, options: argparse.Namespace) -> subprocess.Popen:
    where = TWO_LEVELS if side == "two levels" else ROOT
    return subprocess.Popen(
        [
            sys.executable,
            str(Path(__file__).resolve()),
            "--side",
            side,
            "--only",
            name,
            "--layers",
            str(options.layers),
            "--tasks",
            str(options.tasks),
            "--model",
            str(options.model),
        ],
        cwd=where,
        env=os.environ | {"PYTHONPATH": str(where), "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def compare(name: str, options: argparse.Namespace) -> str:
    sides = {side: start(side, name, options) for side in ("two levels", "tree")}
    found: dict[str, list[dict]] = {side: [] for side in sides}
    try:
        for child in sides.values():
            if child.stdout.readline() != "ready\n":
                raise SystemExit("A side failed; its error stands above.")
        for _ in range(options.rounds):
            for side, child in sides.items():
                child.stdin.write("once\n")
                child.stdin.flush()
                found[side].append(json.loads(child.stdout.readline()))
    finally:
        for child in sides.values():
            child.kill()
    two, tree = found["two levels"], found["tree"]
    for quantity in ("loss", "norm"):
        gap = abs(two[-1][quantity] - tree[-1][quantity])
        if not gap < 1e-4 * abs(two[-1][quantity]):
            raise SystemExit(
                f"{name}: the sides differ in their {quantity}: {two[-1][quantity]},"
                f" {tree[-1][quantity]}"
            )
    ratio = statistics.median(a["seconds"] / b["seconds"] for a, b in zip(tree, two, strict=True))
    floor = statistics.median(a["seconds"] / a["floor"] for a in tree)
    whole = statistics.median(a["seconds"] / a["with_attention"] for a in tree)
    memory = tree[-1]["kept"] / two[-1]["kept"]
    return f"| {SETS[name]} | {ratio:.2f} | {memory:.2f} | {floor:.2f} | {whole:.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=",".join(SETS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--layers", type=int, default=30, help="of the model's 30, for a shorter run"
    )
    parser.add_argument("--tasks", type=int, default=TASKS)
    parser.add_argument("--model", type=Path, default=MODEL)
    parser.add_argument("--side", help="for the children")
    options = parser.parse_args()
    if options.side:
        one_side(options.side, options.only, options)
        return
    TWO_LEVELS.mkdir(parents=True, exist_ok=True)
    archive = subprocess.run(
        ["git", "archive", BEFORE, "workers"], cwd=ROOT, stdout=subprocess.PIPE, check=True
    )
    subprocess.run(["tar", "-x", "-C", str(TWO_LEVELS)], input=archive.stdout, check=True)
    print(
        "| rows | CPU time, two levels = 1 | kept for the backward pass, two levels = 1 | CPU time,"
        " floor = 1 | floor with attention = 1 |\n|---|---|---|---|---|"
    )
    for name in options.only.split(","):
        print(compare(name, options), flush=True)


if __name__ == "__main__":
    main()
