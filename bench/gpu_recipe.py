"""The guide's own next step on one card: a model of 4 to 9 billion parameters on Workplace
Assistant, SFT, then GRPO through vLLM.

`python -m bench.gpu_recipe --model DIR [--vllm .venv-vllm/bin/vllm] [--seed 0] [--smoke] [--out
FILE]`

1. the base is evaluated on tasks that never train;  2. SFT on the gold episodes of the others;  3.
   evaluated;
4. vLLM serves the base with LoRA on the same card, and multi-turn GRPO goes on from SFT's adapter,
one step ahead, with its adapter loaded under a new name each step;  5. evaluated. Each is the
product's own program in a process of its own. bfloat16; a card of 80 GB has room for the trainer
and a server of a 9B model (`--share` of its memory).

`--smoke` does all of it in small on a CPU, with a tiny random model and the tests' stand-in for
vLLM, to see that it works. Writes all figures as JSON as soon as each is there.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.episodes import TOOLS, World, split, without_words
from bench.gpu import console, evaluated, machine, program, trained
from workers.lib.environments.workplace_assistant import tasks as assistant
from workers.lib.environments.workplace_assistant.tools import TOOLS as ASSISTANT_TOOLS

ROOT = Path(__file__).resolve().parent.parent
PORT = 8423
LORA = {"lora_rank": 32, "lora_alpha": 64}
SFT = LORA | {
    "steps": 40,
    "batch_size": 16,
    "learning_rate": 2e-4,
    "warmup_steps": 4,
    "save_every": 20,
    "max_length": 8192,
}
GRPO = LORA | {
    "steps": 40,
    "prompts_per_step": 16,
    "generations": 8,
    "learning_rate": 2e-5,
    "warmup_steps": 2,
    "max_new_tokens": 512,
    "kl_every": 0,
    "save_every": 10,
    "loss_type": "dapo",
    "dynamic_sampling": 1,
}
TINY = {"lora_rank": 4, "lora_alpha": 8}
SMOKE_SFT = SFT | TINY | {"steps": 1, "warmup_steps": 0, "batch_size": 2}
SMOKE_GRPO = (
    GRPO
    | TINY
    | {
        "steps": 2,
        "prompts_per_step": 1,
        "generations": 2,
        "max_new_tokens": 6,
        "dynamic_sampling": 0,
    }
)


def world(smoke: bool) -> World:
    if smoke:
        heldout, training = split(
            assistant.make_tasks(per_template=3, templates=["customers/add"]), 1
        )
        harness = {
            "max_new_tokens": 6,
            "max_turns": 2,
            "shown_tools": without_words(ASSISTANT_TOOLS, TOOLS[3:4]),
        }
        return World(
            "workplace_assistant",
            {"tools": list(TOOLS)},
            harness,
            heldout,
            training[:2],
            SMOKE_SFT,
            SMOKE_GRPO,
        )
    heldout, training = split(assistant.make_tasks(per_template=25), 5)
    return World(
        "workplace_assistant",
        {},
        {"max_new_tokens": 512, "max_turns": 12},
        heldout,
        training,
        SFT,
        GRPO,
    )


@contextmanager
def served(options: argparse.Namespace) -> Iterator[str]:
    """The address of a server of the base, with two places for adapters: one step is sampled while
    the next is learnt.
    """
    if options.smoke:
        from tests.workers.tiny_vllm import tiny_vllm

        with tiny_vllm(options.model) as (_, server):
            yield server.base
        return
    command = [
        str(options.vllm),
        "serve",
        str(options.model),
        "--served-model-name",
        "base",
        "--port",
        str(PORT),
        "--dtype",
        "bfloat16",
        "--gpu-memory-utilization",
        str(options.share),
        "--generation-config",
        "vllm",
        "--enable-lora",
        "--max-lora-rank",
        "32",
        "--max-loras",
        "2",
        "--logprobs-mode",
        "processed_logprobs",
        "--max-model-len",
        "16384",
    ]
    log = options.out.with_suffix(".vllm.log")
    with log.open("w") as lines:
        child = subprocess.Popen(
            command,
            stdout=lines,
            stderr=lines,
            env=os.environ | {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True"},
        )
    try:
        wait_for(f"http://127.0.0.1:{PORT}/v1/models", child, log)
        yield f"http://127.0.0.1:{PORT}/v1"
    finally:
        child.terminate()
        child.wait(60)


def wait_for(address: str, child: subprocess.Popen, log: Path, seconds: float = 900) -> None:
    """Raises SystemExit."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and child.poll() is None:
        try:
            urllib.request.urlopen(address, timeout=5).close()
            return
        except OSError:
            time.sleep(2)
    raise SystemExit(f"vLLM does not answer; its log is {log}.")


def recipe(options: argparse.Namespace, folder: Path, keep: Any) -> None:
    tasks = world(options.smoke)

    def spec(name: str, adapter: str | None) -> dict:
        return {
            "model": {"base": str(options.model), "adapter": adapter},
            "environment": tasks.environment,
            "seed": options.seed,
            "engine": {
                "kind": "transformers",
                "dtype": "float32" if options.smoke else "bfloat16",
                "threads": 0,
                "batch_size": 64,
            },
            "out_dir": str(folder / name),
        }

    def evaluate(name: str, adapter: str | None) -> None:
        given = spec(name, adapter) | {"tasks": tasks.heldout, "samples_per_task": 1}
        keep(name, evaluated(*program("evaluate", given, folder)))

    evaluate("base", None)
    given = spec("sft", None) | {"rows": tasks.rows(), "config": tasks.sft}
    sft = keep("train sft", trained(*program("sft", given, folder)))
    evaluate("after sft", sft["adapter"])
    with served(options) as url:
        server = {"base_url": url, "model": "base", "allow_private": True, "lora_slots": 2}
        rollouts = {"servers": [server], "folder": str(folder / "rollouts"), "steps_ahead": 1}
        given = spec("grpo", sft["adapter"]) | {
            "tasks": tasks.training,
            "config": tasks.grpo,
            "rollouts": rollouts,
        }
        grpo = keep("train grpo", trained(*program("grpo", given, folder)))
    evaluate("after grpo", grpo["adapter"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path)
    parser.add_argument("--vllm", type=Path, default=ROOT / ".venv-vllm/bin/vllm")
    parser.add_argument("--share", type=float, default=0.4, help="of the card's memory for vLLM")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--out", type=Path, default=ROOT / "var/bench/gpu_recipe.json")
    options = parser.parse_args()
    report: dict[str, Any] = {"machine": machine(), "model": str(options.model)}

    def keep(name: str, value: dict) -> dict:
        report[name] = value
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(report, indent=1))
        figures = {key: one for key, one in value.items() if isinstance(one, float | int)}
        console.print(f"{name}: {figures}", highlight=False)
        return value

    with tempfile.TemporaryDirectory() as folder:
        if options.smoke:
            from tests.workers.conftest import make_tiny_model

            options.model = make_tiny_model(Path(folder) / "tiny", max_position_embeddings=16384)
        if options.model is None:
            parser.error(
                "--model is needed: a folder of a model of 4 to 9 billion parameters, in"
                " safetensors"
            )
        recipe(options, Path(folder), keep)
    console.print(f"All figures: {options.out}")


if __name__ == "__main__":
    main()
