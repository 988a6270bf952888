"""GRPO on the demo's model with rollouts through a vLLM server, held against the update in
process on the same samples.

`python -m bench.server_rollouts URL [--steps 5] [--small] [--ahead]`. The server serves SmolLM2 as
`base`, with LoRA:

    VLLM_ALLOW_RUNTIME_LORA_UPDATING=True VLLM_CPU_KVCACHE_SPACE=2 \\
        .venv-vllm/bin/vllm serve var/models/SmolLM2-135M-Instruct \\
        --served-model-name base --dtype float32 --enforce-eager --generation-config vllm \\
        --enable-lora --max-lora-rank 16 --max-loras 2 --logprobs-mode processed_logprobs

Each step's samples are given to a second trainer that starts from the same weights and knows no
server: its loss must be the same. Prints for each step both losses, the ratio and what is
corrected, and how long the adapter took.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from workers.lib.events import Emitter
from workers.lib.specs.grpo import Grpo

MODEL = Path("var/models/SmolLM2-135M-Instruct")
TOLERANCE = 1e-4  # of a step's loss, absolute: float32 on a CPU, losses of about 0.1
OUT = Path("var/bench/server_rollouts.json")


@dataclass
class Step:
    """One step by both trainers."""

    served: dict[str, float]
    here: dict[str, float]

    @property
    def gap(self) -> float:
        return abs(self.served["train/loss"] - self.here["train/loss"])

    @property
    def seconds(self) -> float:
        return sum(self.served[f"time/{name}_s"] for name in ("generate", "update"))

    @property
    def swap_share(self) -> float:
        return self.served["time/adapter_s"] / self.seconds


@dataclass(frozen=True)
class Size:
    steps: int = 5
    prompts: int = 4
    generations: int = 8
    tokens: int = 48
    ahead: int = 0
    small: bool = False  # a prompt of one line, and rewards that differ whatever is written


SMALL = Size(prompts=2, generations=2, tokens=12, small=True)


def spec_of(model: Path, out: Path, server: dict[str, Any] | None, size: Size) -> dict:
    from apps.demo.recipes import HARNESS, VERIFIER
    from workers.lib.environments.requests import make_requests

    tasks = [
        {
            "id": f"t{at}",
            "messages": [{"role": "user", "content": one["request"]}],
            "expected": one["expected"],
        }
        for at, one in enumerate(make_requests(0, 40))
    ]

    harness = HARNESS | (
        {"system_prompt": "Answer with one JSON tool call.", "examples": []} if size.small else {}
    )
    spec = {
        "seed": 0,
        "job_id": "bench",
        "attempt": 1,
        "out_dir": str(out),
        "model": {"base": str(model)},
        "engine": {"kind": "transformers", "dtype": "float32", "batch_size": 64},
        "environment": {
            "kind": "builtin",
            "name": "workplace",
            "harness": harness,
            "verifier": VERIFIER,
        },
        "tasks": tasks,
        "config": {
            "steps": size.steps,
            "learning_rate": 1e-4,
            "prompts_per_step": size.prompts,
            "generations": size.generations,
            "max_new_tokens": size.tokens,
            "kl_every": 0,
            "temperature": 1.0,
            "save_every": 100,
            "sampled_outputs": 0,
        },
    }
    if server:
        spec["rollouts"] = {
            "servers": [server],
            "folder": str(out / "rollouts"),
            "steps_ahead": size.ahead,
        }
    return spec


def compared(model: Path, folder: Path, server: dict[str, Any], size: Size) -> list[Step]:
    """Raises what the run through the server raises."""
    from workers.grpo import Trainer
    from workers.lib.program import StopFlag
    from workers.lib.specs.job import checked

    class Rewarded(Trainer):
        def groups_of(self, *args: Any) -> list[Any]:
            groups = super().groups_of(*args)
            for episode in (episode for group in groups for episode in group.episodes):
                episode.score.reward = len(episode.output) % 5 / 5
            return groups

    def trainer(name: str, given: dict[str, Any] | None) -> tuple[Any, list[dict[str, float]]]:
        events = Emitter(os.open(folder / f"{name}.jsonl", os.O_CREAT | os.O_WRONLY))
        metrics: list[dict[str, float]] = []
        events.metric = lambda step, values: metrics.append(values)  # type: ignore[method-assign]

        made = (Rewarded if size.small else Trainer)(
            checked(spec_of(model, folder / name, given, size), Grpo), events, StopFlag()
        )
        return made, metrics

    served, theirs = trainer("served", server)
    sampled, update = [], served.update
    served.update = lambda groups, **more: (sampled.append(groups), update(groups, **more))[1]
    served.train()
    here, ours = trainer("here", None)
    here.rollout = lambda step: sampled[step]
    here.train()
    return [Step(*pair) for pair in zip(theirs, ours, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument(
        "--small",
        action="store_true",
        help="2 prompts × 2 completions of 12 tokens, made-up rewards",
    )
    parser.add_argument("--ahead", action="store_true")
    parser.add_argument("--model", type=Path, default=MODEL)
    given = parser.parse_args()
    server = {"base_url": given.url, "model": "base", "allow_private": True, "lora_slots": 2}
    with tempfile.TemporaryDirectory() as folder:
        size = replace(SMALL if given.small else Size(), steps=given.steps, ahead=int(given.ahead))
        steps = compared(given.model, Path(folder), server, size)
    for at, step in enumerate(steps, 1):
        found = step.served
        print(
            f"step {at}: loss {found['train/loss']:+.6f} / in process"
            f" {step.here['train/loss']:+.6f}, ratio"
            f" {found.get('train/ratio_min', 1):.5f}–{found.get('train/ratio_max', 1):.5f},"
            f" corrected {found.get('train/corrected_share', 0):.1%}, staleness"
            f" {found['rollout/staleness']}, gap {found['rollout/adapter_gap']:.1e}, move"
            f" {found.get('rollout/adapter_move', float('nan')):.3f}, adapter"
            f" {found['time/adapter_s']:.2f} s of {step.seconds:.1f} s ({step.swap_share:.1%})"
        )
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps([vars(step) for step in steps], indent=1))


if __name__ == "__main__":
    main()
