"""Alarms that ordinary GRPO runs raise: none of these runs is ill, so none may be paused or stopped.

`python -m bench.false_alarms [--runs 20] [--steps 60] [--seed 0]`. A tiny model of random weights learns three tasks in turn, each run
with another seed: say a vowel (rewarded in few outputs at first), be short (most outputs are right at first), and two turns of
letters, then digits (a reward by degrees). Learning rates up to the suite's, half of the runs with a KL penalty;
validation on tasks of their own. What each run raises is printed, and the shares at the end.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from tests.workers.conftest import Recorder, make_tiny_model
from workers import grpo
from workers.lib import environments
from workers.lib.program import Stop, StopFlag
from workers.lib.specs import checked
from workers.lib.watching import Alarmed

RATES = (3e-3, 5e-3, 1e-2)
CONFIG = {
    "prompts_per_step": 4, "generations": 8, "lora_rank": 4, "lora_alpha": 8, "max_new_tokens": 8, "save_every": 10, "eval_every": 5,
    "eval_samples": 2,
}  # fmt: skip
VOWEL = {"kind": "regex", "pattern": "[aeiou]"}
SHORT = {"kind": "regex", "pattern": "^.{1,7}$"}
KINDS: dict[str, dict[str, Any]] = {
    "vowel": {"kind": "single_turn", "verifier": VOWEL},
    "short": {"kind": "single_turn", "verifier": SHORT},
    "two turns": {"kind": "builtin", "name": "two_turns", "verifier": {}},
}
Raised = list[tuple[str, str, int]]  # (alarm, action, step)


def tasks(name: str, n: int) -> list[dict]:
    return [
        {"id": f"{name} {at}", "messages": [{"role": "user", "content": f"Say {name} {at}."}], "expected": {}}
        for at in range(n)
    ]


def run(kind: str, seed: int, steps: int, model: Path, out: Path) -> tuple[Raised, list[float]]:
    """What a run raised, and its mean reward at each step."""
    environment = KINDS[kind] | {"harness": {"max_new_tokens": 8, "temperature": 1.0}}
    config = CONFIG | {
        "steps": steps,
        "learning_rate": RATES[seed // 3 % len(RATES)],
        "beta": 0.02 * (seed % 2),
        "warmup_steps": 2,
    }
    spec = {
        "job_id": "job", "attempt": 1, "seed": seed, "out_dir": str(out / "out"), "model": {"base": str(model), "adapter": None},
        "engine": {"kind": "transformers", "dtype": "float32", "threads": 1, "batch_size": 64}, "environment": environment,
        "tasks": tasks("train", 12), "validation_tasks": tasks("test", 8), "config": config,
    }  # fmt: skip
    events = Recorder(out / "events.jsonl")
    try:
        grpo.main(checked(spec, "grpo"), events, StopFlag())
    except (Stop, Alarmed) as end:
        print(f"  {end}", flush=True)
    raised = [(row["name"], row["action"], row["step"]) for row in events.rows("alarm") if not row["cleared"]]
    rewards = [row["values"]["train/reward_mean"] for row in events.rows("metric") if "train/loss" in row["values"]]
    return raised, rewards


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    environments.BUILTIN["two_turns"] = "tests.workers.two_turns:TwoTurns"
    found: dict[str, Raised] = {}
    with tempfile.TemporaryDirectory() as home:
        model = make_tiny_model(Path(home) / "model")
        for seed in range(given.seed, given.seed + given.runs):
            kind, out = list(KINDS)[seed % len(KINDS)], Path(home) / f"run-{seed}"
            out.mkdir()
            raised, rewards = run(kind, seed, given.steps, model, out)
            found[f"{kind} {seed}"] = raised
            ends = f"{sum(rewards[:5]) / 5:.2f} → {sum(rewards[-5:]) / len(rewards[-5:]):.2f}"
            print(f"{kind} {seed}: reward {ends}, {raised or 'nothing'}", flush=True)
    ended = [name for name, raised in found.items() if any(action != "warn" for _, action, _ in raised)]
    warned = [name for name, raised in found.items() if raised]
    print(json.dumps({"runs": len(found), "paused or stopped": ended, "warned": len(warned)}, ensure_ascii=False))


if __name__ == "__main__":
    main()
