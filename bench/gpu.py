"""The training half on one GPU. `python -m bench.gpu [--smoke] [--only cycle,trl,throughput] [--out
FILE]`

cycle: evaluation, SFT, evaluation, GRPO, evaluation, each the product's own program in a process of
its own. trl: one GRPO step, ours against stock TRL's, at equal settings; group sizes, a short and a
long shared prompt. throughput: tokens generated a second by the batch's size, and how busy the GPU
is meanwhile.

SmolLM2-135M-Instruct, float32 and bfloat16. It runs without a GPU as well; `--smoke` does all of it
in small, to see that it works. Prints tables and writes all figures as JSON.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from datetime import datetime
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from apps.demo.recipes import FULL, HARNESS, LORA, VERIFIER
from apps.evals.stats import SampleRow, summarise
from bench.trl_reference import (
    gradients,
    largest_relative_difference,
    randomise_adapter,
    trl_inputs,
    trl_trainer,
)
from workers.grpo import Trainer
from workers.lib.engines import Prompt, Sampling
from workers.lib.environments.requests import make_requests
from workers.lib.events import Emitter
from workers.lib.program import StopFlag
from workers.lib.specs.grpo import Grpo
from workers.lib.specs.job import checked
from workers.lib.specs.training import Lora
from workers.ml.models import device, load_base, lora
from workers.ml.policy_gradient import add_gradients
from workers.ml.transformers_engine import TransformersEngine
from workers.prepare_demo_model import prepare

ROOT = Path(__file__).resolve().parent.parent
MODEL = ROOT / "var/models/SmolLM2-135M-Instruct"
DTYPES = ("float32", "bfloat16")
PACKAGES = ("torch", "transformers", "peft", "trl")
CLOSE = {"float32": 1e-3}  # relative, of gradients; other dtypes are told, not judged
console = Console(width=120)
# A program of ours, which says at its end how much of the GPU's memory it had.
WATCHED = """
import atexit, runpy, sys, torch
peak = lambda: torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
atexit.register(lambda: print("peak", peak(), file=sys.stderr))
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
"""


@dataclass(frozen=True)
class Sizes:
    """How much of everything."""

    holdout: int
    samples: int
    training: int
    sft: dict
    grpo: dict
    groups: tuple[int, ...]
    prompts: int
    new_tokens: int
    long_prompt: int  # tokens
    steps: int
    batches: tuple[int, ...]
    repeats: int
    eval_batch: int


WHOLE = Sizes(
    holdout=64,
    samples=8,
    training=120,
    sft=FULL.sft,
    grpo=FULL.grpo | {"eval_every": 0},
    groups=(8, 16, 64),
    prompts=4,
    new_tokens=48,
    long_prompt=2048,
    steps=5,
    batches=(64, 128, 256, 512, 1024, 2048),
    repeats=3,
    eval_batch=512,
)
SMALL = Sizes(
    holdout=2,
    samples=2,
    training=4,
    sft=FULL.sft | {"steps": 2, "batch_size": 2},
    grpo=FULL.grpo
    | {
        "steps": 2,
        "prompts_per_step": 2,
        "generations": 2,
        "max_new_tokens": 4,
        "eval_every": 0,
    },
    groups=(2,),
    prompts=2,
    new_tokens=4,
    long_prompt=300,
    steps=1,
    batches=(2, 4),
    repeats=1,
    eval_batch=4,
)


def now() -> float:
    """Seconds; what the GPU was given is done by then."""
    if device() == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def timed(work: Callable[[], Any]) -> tuple[Any, float, int]:
    """(what the work gives, its seconds, the most bytes it had on the GPU beyond what lay there
    before).
    """
    on_gpu, before = device() == "cuda", 0
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    began = now()
    result = work()
    seconds = now() - began
    return result, seconds, torch.cuda.max_memory_allocated() - before if on_gpu else 0


def environment(system_prompt: str = HARNESS["system_prompt"], **harness: Any) -> dict:
    return {
        "slug": "workplace",
        "version": 1,
        "hash": "",
        "kind": "builtin",
        "name": "workplace",
        "harness": HARNESS | {"system_prompt": system_prompt} | harness,
        "verifier": VERIFIER,
    }


def task(index: int, row: dict) -> dict:
    return {
        "id": str(index),
        "messages": [{"role": "user", "content": row["request"]}],
        "expected": row["expected"],
    }


def spec_of(dtype: str, batch_size: int, out: Path, adapter: str | None = None) -> dict:
    return {
        "model": {"base": str(MODEL), "adapter": adapter},
        "environment": environment(),
        "out_dir": str(out),
        "seed": 0,
        "engine": {"kind": "transformers", "dtype": dtype, "threads": 0, "batch_size": batch_size},
        "resume_from": None,
    }


# The cycle


def program(kind: str, spec: dict, folder: Path) -> tuple[list[dict], dict]:
    """Runs a worker as the product does; its events, and its seconds (start included) and peak.
    Raises SystemExit.
    """
    path = folder / f"{kind}.json"
    path.write_text(json.dumps(spec))
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, f"workers.{kind}", str(path)],
        cwd=ROOT,
        env=os.environ | {"FLYWHEEL_EVENTS_FD": ""},
        capture_output=True,
        text=True,
    )
    seconds = time.perf_counter() - began
    if done.returncode:
        raise SystemExit(
            f"workers.{kind} ended with"
            f" {done.returncode}:\n{done.stderr[-3000:]}\n{done.stdout[-1000:]}"
        )
    events = [json.loads(line) for line in done.stdout.splitlines()]
    peak = next(
        int(line.split()[1])
        for line in reversed(done.stderr.splitlines())
        if line.startswith("peak ")
    )
    return events, {"seconds": seconds, "peak_bytes": peak}


def evaluated(events: list[dict], found: dict) -> dict:
    rows = [
        SampleRow(
            task=row["task_id"], **{name: row[name] for name in ("reward", "success", "masked")}
        )
        for row in events
        if row["type"] == "sample"
    ]
    metrics = summarise(rows)
    tokens = sum(row["output_tokens"] for row in events if row["type"] == "sample")
    return found | {"success": metrics["success"], "reward": metrics["reward"], "tokens": tokens}


def trained(events: list[dict], found: dict) -> dict:
    """Seconds a step: between the metrics of one step and of the next, so without loading the
    model.
    """
    metrics = [row for row in events if row["type"] == "metric"]
    at = [datetime.fromisoformat(row["at"]).timestamp() for row in metrics]
    gaps = [later - earlier for earlier, later in pairwise(at)]
    times = [row["values"] for row in metrics if "time/update_s" in row["values"]]
    return found | {
        "adapter": next(row["adapter"] for row in events if row["type"] == "result"),
        "step_seconds": statistics.median(gaps) if gaps else None,
        "generate_seconds": (
            statistics.median(row["time/generate_s"] for row in times) if times else None
        ),
        "update_seconds": (
            statistics.median(row["time/update_s"] for row in times) if times else None
        ),
        "last": metrics[-1]["values"],
    }


def cycle(sizes: Sizes, dtype: str, folder: Path) -> dict:
    """Base → SFT → GRPO, each evaluated on the same hold-out with the same seed."""
    requests = [
        task(i, row) for i, row in enumerate(make_requests(0, sizes.holdout + sizes.training))
    ]
    holdout, training = requests[: sizes.holdout], requests[sizes.holdout :]
    opening = [{"role": "system", "content": HARNESS["system_prompt"]}, *HARNESS["examples"]]
    rows = [
        {
            "messages": opening + one["messages"],
            "completion": json.dumps(one["expected"], ensure_ascii=False),
        }
        for one in training
    ]
    found: dict[str, Any] = {}

    def evaluate(name: str, adapter: str | None) -> None:
        spec = spec_of(dtype, sizes.eval_batch, folder, adapter) | {
            "tasks": holdout,
            "samples_per_task": sizes.samples,
        }
        found[name] = evaluated(*program("evaluate", spec, folder))

    evaluate("base", None)
    spec = spec_of(dtype, 64, folder / "sft") | {"rows": rows, "config": sizes.sft}
    found["sft"] = trained(*program("sft", spec, folder))
    evaluate("after sft", found["sft"]["adapter"])
    spec = spec_of(dtype, 64, folder / "grpo", found["sft"]["adapter"]) | {
        "tasks": training,
        "config": sizes.grpo,
    }
    found["grpo"] = trained(*program("grpo", spec, folder))
    evaluate("after grpo", found["grpo"]["adapter"])
    return found


# Against TRL


def long_prompt(tokenizer: Any, tokens: int) -> str:
    """The agent's system prompt with a handbook, of at least `tokens` tokens."""
    text, number = HARNESS["system_prompt"], 0
    while len(tokenizer(text)["input_ids"]) < tokens:
        number += 1
        text += (
            f"\nRule {number}: a request of kind {number * 7 % 31} is answered within"
            f" {number % 9 + 1} hours."
        )
    return text


class Pair:
    """Our trainer and stock TRL's on the same weights, adapter and tasks."""

    def __init__(self, sizes: Sizes, dtype: str, group: int, long: bool, folder: Path) -> None:
        base, tokenizer = load_base(MODEL, dtype)
        self.config = FULL.grpo | {
            "prompts_per_step": sizes.prompts,
            "generations": group,
            "max_new_tokens": sizes.new_tokens,
            "steps": 100,
            "eval_every": 0,
            "kl_every": 0,
            "save_every": 1000,
        }
        spec = spec_of(dtype, sizes.prompts * group, folder) | {"config": self.config}
        if long:
            spec["environment"] = environment(long_prompt(tokenizer, sizes.long_prompt))
        spec["tasks"] = [task(i, row) for i, row in enumerate(make_requests(0, 40))]
        self.ours = Trainer(
            checked(spec, Grpo), Emitter(os.open(os.devnull, os.O_WRONLY)), StopFlag()
        )
        self.twin = lora(base, Lora(**LORA), None)
        randomise_adapter(self.ours.model)
        self.twin.load_state_dict(copy.deepcopy(self.ours.model.state_dict()))
        self.twin.to(device())
        self.rewards = torch.Generator().manual_seed(0)
        conversations = [self.ours.environment.conversation(one) for one in self.ours.tasks]
        self.theirs = trl_trainer(
            self.twin,
            tokenizer,
            folder,
            self.config,
            conversations,
            reward=lambda completions, **_: torch.rand(
                len(completions), generator=self.rewards
            ).tolist(),
        )
        if self.theirs.args.device.type != device():
            raise SystemExit(
                f"TRL's trainer is on {self.theirs.args.device.type}, ours on {device()}."
            )
        self.theirs.model.train()
        trainable = [p for p in self.twin.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(
            trainable, lr=self.config["learning_rate"], weight_decay=0.0
        )
        self.prompt_tokens = len(self.ours.engine.prompt_ids(conversations[0]))

    def equality(self) -> dict[str, float]:
        """Loss and gradients of both on the same samples: a speed says nothing where the results
        differ.
        """
        groups = self.ours.rollout(0)
        weights = torch.randn(
            len(groups), self.ours.config.generations, generator=torch.Generator().manual_seed(1)
        )
        batch = self.ours.batch_from(list(zip(groups, weights, strict=True)))
        _, metrics = add_gradients(self.ours.model, batch, None, None, self.ours.config)
        inputs = trl_inputs(batch.rows, batch.advantage, None)
        reference = self.theirs._compute_loss(
            self.theirs.model, {k: v.to(device()) for k, v in inputs.items()}
        )
        reference.backward()
        found = {
            "loss_ours": metrics["train/loss"],
            "loss_trl": float(reference.detach()),
            "gradients": largest_relative_difference(
                gradients(self.ours.model), gradients(self.theirs.model)
            ),
        }
        self.ours.optimizer.zero_grad(set_to_none=True)
        self.theirs.model.zero_grad(set_to_none=True)
        return found

    def our_step(self, step: int) -> dict[str, float]:
        groups, generate, peak = timed(lambda: self.ours.rollout(step))
        for group in groups:
            for (
                score
            ) in group.scores:  # an untrained model fails all alike; here every group has a spread
                score.reward = float(torch.rand(1, generator=self.rewards))
        _, update, update_peak = timed(lambda: self.ours.update(groups))
        tokens = sum(group.tokens for group in groups)
        return {
            "generate": generate,
            "update": update,
            "tokens": tokens,
            "peak": max(peak, update_peak),
        }

    def their_step(self, step: int) -> dict[str, float]:
        rows = [
            {"prompt": self.ours.environment.conversation(one)}
            for one in (self.ours.tasks[place] for place in self.ours.draw.draw(step))
            for _ in range(self.config["generations"])
        ]
        batch, generate, peak = timed(lambda: self.theirs._generate_and_score_completions(rows))
        _, update, update_peak = timed(lambda: self._their_update(batch))
        tokens = int(batch["completion_mask"].sum())
        return {
            "generate": generate,
            "update": update,
            "tokens": tokens,
            "peak": max(peak, update_peak),
        }

    def _their_update(self, batch: dict) -> None:
        self.theirs._compute_loss(self.theirs.model, batch).backward()
        torch.nn.utils.clip_grad_norm_(self.twin.parameters(), self.ours.config.max_grad_norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


def against_trl(sizes: Sizes, dtype: str, group: int, long: bool, folder: Path) -> dict:
    """Medians of the steps after a first one that does not count. A side without memory enough is
    null.
    """
    pair = Pair(sizes, dtype, group, long, folder)
    found: dict[str, Any] = {
        "dtype": dtype,
        "group": group,
        "prompt_tokens": pair.prompt_tokens,
        "ours": None,
        "trl": None,
        "equality": None,
    }
    for name, step in (("ours", pair.our_step), ("trl", pair.their_step)):
        try:
            step(0)
            found[name] = medians([step(number) for number in range(1, sizes.steps + 1)])
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
    if found["ours"] and found["trl"]:
        # Ours and theirs have moved on apart: both back to where they began together.
        randomise_adapter(pair.ours.model)
        pair.twin.load_state_dict(copy.deepcopy(pair.ours.model.state_dict()))
        found["equality"] = judged(pair.equality(), dtype)
    return found


def judged(found: dict[str, float], dtype: str) -> dict[str, float]:
    """Raises SystemExit where loss or gradients differ by more than the order of the sums
    explains.
    """
    limit = CLOSE.get(dtype)
    if limit and not (
        abs(found["loss_ours"] - found["loss_trl"]) < limit and found["gradients"] < limit
    ):
        raise SystemExit(f"Loss or gradients differ from TRL's: {found}")
    return found


def medians(steps: list[dict[str, float]]) -> dict[str, float]:
    found = {
        name: statistics.median(step[name] for step in steps)
        for name in ("generate", "update", "tokens")
    }
    return found | {
        "step": found["generate"] + found["update"],
        "peak": max(step["peak"] for step in steps),
    }


# Throughput


class Operations(TorchDispatchMode):
    """Counts operations that compute something (views do not): on a GPU each is about one kernel to
    launch.
    """

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        with self:
            made = function.decompose(*args, **(kwargs or {}))
        if made is not NotImplemented:
            return made
        self.count += not function.is_view
        return function(*args, **(kwargs or {}))


def write_all(engine: TransformersEngine, batch: int, new_tokens: int) -> int:
    """`batch` answers of `new_tokens` tokens each, eight or fewer to a conversation; how many
    tokens that is.
    """
    each = min(8, batch)
    chats = [
        [{"role": "system", "content": HARNESS["system_prompt"]}, *one["messages"]]
        for one in (task(i, row) for i, row in enumerate(make_requests(0, batch // each)))
    ]
    engine.batch_size = batch
    prompts = [
        Prompt(chat, [each * index + sample for sample in range(each)])
        for index, chat in enumerate(chats)
    ]
    answers = engine.generate(prompts, Sampling(1.0, 1.0, new_tokens))
    return sum(output.output_tokens for _, outputs in answers for output in outputs)


def throughput(sizes: Sizes, dtype: str, with_adapter: bool) -> list[dict]:
    """Of one policy, by batch size. Without an adapter is what merging it into the weights would
    give.
    """
    model, tokenizer = load_base(MODEL, dtype)
    if with_adapter:
        model = lora(model, Lora(**LORA), None)
        randomise_adapter(model)
    engine = TransformersEngine(model.to(device()).eval(), tokenizer)
    engine.stops = engine.stops[
        :0
    ]  # every answer is written to its full length: the same work each time
    operations = operations_a_token(engine, sizes)
    found = []
    for batch in sizes.batches:
        write_all(engine, batch, 2)
        runs = [
            timed(lambda: write_all(engine, batch, sizes.new_tokens))  # noqa: B023
            for _ in range(sizes.repeats)
        ]
        tokens, seconds = runs[0][0], statistics.median(run[1] for run in runs)
        found.append(
            {
                "dtype": dtype,
                "adapter": with_adapter,
                "batch": batch,
                "tokens": tokens,
                "seconds": seconds,
                "tokens_a_second": tokens / seconds,
                "ms_a_token_step": seconds / sizes.new_tokens * 1000,
                "peak": max(run[2] for run in runs),
                "operations_a_token": operations,
                "gpu_busy": gpu_busy(engine, batch, sizes.new_tokens, seconds),
            }
        )
    return found


def operations_a_token(engine: TransformersEngine, sizes: Sizes) -> float:
    """Of one decoding step: what two more steps add, halved."""
    counts = []
    for new in (2, 4):
        with Operations() as operations:
            write_all(engine, sizes.batches[0], new)
        counts.append(operations.count)
    return (counts[1] - counts[0]) / 2


def gpu_busy(
    engine: TransformersEngine, batch: int, new_tokens: int, seconds: float
) -> float | None:
    """Share of the unprofiled time in which kernels ran. Well under 1: the GPU waits for Python to
    launch them.
    """
    if device() != "cuda":
        return None
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        write_all(engine, batch, new_tokens)
    return sum(row.self_device_time_total for row in profiled.key_averages()) / 1e6 / seconds


# The report


def table(title: str, head: list[str], lines: Iterable[list[Any]]) -> None:
    made = Table(title=title, title_justify="left")
    for place, name in enumerate(head):
        made.add_column(name, justify="right" if place else "left")
    for line in lines:
        made.add_row(*map(str, line))
    console.print(made)


def gib(size: float) -> str:
    return f"{size / 2**30:.2f}"


def interval(value: dict, form: str) -> str:
    return f"{value['mean']:{form}} [{value['low']:{form}}, {value['high']:{form}}]"


def show_cycle(dtype: str, found: dict) -> None:
    lines = []
    for name, row in found.items():
        results = (
            [interval(row["success"], ".1%"), interval(row["reward"], ".3f"), "–"]
            if "success" in row
            else ["–", "–", f"{row['step_seconds']:.3f}" if row["step_seconds"] else "–"]
        )
        lines.append([name, *results, f"{row['seconds']:.1f}", gib(row["peak_bytes"])])
    table(f"Cycle, {dtype}", ["", "success", "reward", "s a step", "s in all", "peak GiB"], lines)


def show_trl(found: list[dict]) -> None:
    lines = []
    for row in found:
        ours, trl = row["ours"], row["trl"]
        ratios = [
            f"{trl[name] / ours[name]:.2f}" if ours and trl else "–"
            for name in ("step", "generate", "update")
        ]
        sides = [f"{side['step']:.3f}" if side else "no memory" for side in (ours, trl)]
        peaks = [gib(side["peak"]) if side else "–" for side in (ours, trl)]
        lines.append(
            [
                f"{row['dtype']} G={row['group']} {row['prompt_tokens']} tokens",
                *sides,
                *ratios,
                *peaks,
            ]
        )
    head = ["", "ours, s", "TRL, s", "step ×", "generate ×", "update ×", "ours GiB", "TRL GiB"]
    table("One GRPO step: TRL over ours", head, lines)


def show_throughput(found: list[dict]) -> None:
    lines = [
        [
            f"{row['dtype']}{' + adapter' if row['adapter'] else ''}, {row['batch']}",
            f"{row['tokens_a_second']:.0f}",
            f"{row['ms_a_token_step']:.1f}",
            f"{row['operations_a_token']:.0f}",
            f"{row['gpu_busy']:.0%}" if row["gpu_busy"] is not None else "–",
            gib(row["peak"]),
        ]
        for row in found
    ]
    table(
        "Generating",
        ["", "tokens/s", "ms a token", "operations a token", "GPU busy", "peak GiB"],
        lines,
    )


def machine() -> dict[str, Any]:
    return {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "python": sys.version.split()[0],
        "device": torch.cuda.get_device_name() if device() == "cuda" else "cpu",
        "cores": os.cpu_count(),
        "cuda": torch.version.cuda,
        "versions": {name: version(name) for name in PACKAGES},
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--only", default="cycle,trl,throughput")
    parser.add_argument("--out", type=Path, default=ROOT / "var/bench/gpu.json")
    options = parser.parse_args()
    sizes, parts = SMALL if options.smoke else WHOLE, options.only.split(",")
    prepare(MODEL)
    report: dict[str, Any] = {"machine": machine(), "sizes": asdict(sizes)}

    def keep(name: str, value: Any) -> Any:
        """Written as soon as it is there: an hour of a GPU is not lost to a fault in the next
        part.
        """
        report[name] = value
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(report, indent=1))
        return value

    with tempfile.TemporaryDirectory() as folder:
        if "throughput" in parts:
            rows = [
                row
                for dtype in DTYPES
                for adapter in (True, False)
                for row in throughput(sizes, dtype, adapter)
            ]
            show_throughput(keep("throughput", rows))
        if "trl" in parts:
            cases = [
                (dtype, group, long)
                for dtype in DTYPES
                for long in (False, True)
                for group in sizes.groups
            ]
            compared: list[dict] = []
            for case in cases:
                compared.append(against_trl(sizes, *case, Path(folder)))
                keep("trl", compared)
            show_trl(compared)
        if "cycle" in parts:
            for dtype in DTYPES:
                show_cycle(dtype, keep(f"cycle {dtype}", cycle(sizes, dtype, Path(folder))))
    console.print(f"All figures: {options.out}")


if __name__ == "__main__":
    main()
