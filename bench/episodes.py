"""Agents of several turns, trained: SFT on gold episodes, then GRPO, on tasks that never trained.
SmolLM2-135M on this CPU.

`taskset -c 1 python -m bench.episodes [--only workplace_assistant,customer_service] [--seeds 0,1,2]
[--one-sft] [--smoke]` runs for each environment and seed the product's own programs: evaluation of
the base, SFT, evaluation, multi-turn GRPO from SFT's adapter, evaluation. It prints reward and
success on the held-out tasks, means over the seeds with Student's 95% intervals, paired
differences, and where the time of a GRPO step goes.

Each of these cells stays in var/bench/episodes. A run that was broken off goes on where it was,
training from its last checkpoint; a cell whose spec has changed is computed again. The figures go
to var/bench/episodes.json after each cell. `--one-sft`: SFT only with the first seed, so that the
others are seeds of GRPO alone. `--smoke`: all of it in small.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

from rich.console import Console
from rich.table import Table

from apps.core.intervals import student
from workers.lib.environments import load
from workers.lib.environments.customer_service import tasks as service
from workers.lib.environments.customer_service.shop import RETURN_DAYS, TODAY
from workers.lib.environments.customer_service.shop import TOOLS as SERVICE_TOOLS
from workers.lib.environments.workplace_assistant import tasks as assistant
from workers.lib.environments.workplace_assistant.tools import TOOLS as ASSISTANT_TOOLS
from workers.lib.gold import gold_turns
from workers.lib.prompts import FOR_READERS

ROOT = Path(__file__).resolve().parent.parent
MODEL = ROOT / "var/models/SmolLM2-135M-Instruct"
HOME = ROOT / "var/bench/episodes"
LORA = {"lora_rank": 16, "lora_alpha": 32}
SFT = LORA | {"learning_rate": 2e-3, "warmup_steps": 1, "save_every": 3}
GRPO = LORA | {
    "learning_rate": 1e-4,
    "warmup_steps": 1,
    "final_lr_share": 0.5,
    "kl_every": 0,
    "save_every": 2,
}
SMOKE = {
    "sft": {"steps": 1, "batch_size": 2},
    "grpo": {"steps": 1, "prompts_per_step": 1, "generations": 2},
}
PAIRS = (("sft", "base"), ("grpo", "sft"), ("grpo", "base"))
console = Console(width=120)


@dataclass(frozen=True)
class World:
    """An environment, the tasks that are held out, and those that train."""

    name: str
    config: dict
    harness: dict
    heldout: list[dict]
    training: list[dict]
    sft: dict
    grpo: dict

    @property
    def environment(self) -> dict:
        harness = {
            "temperature": 0.0
        } | self.harness  # held-out episodes are greedy, so that they say the same each time
        return {
            "kind": "builtin",
            "name": self.name,
            "config": self.config,
            "harness": harness,
            "verifier": {},
        }

    def rows(self) -> list[dict]:
        """The gold episodes of the training tasks, as the product gives them to SFT
        (apps/training/child_spec.py).
        """
        environment, rows = load(self.environment), []
        for task in self.training:
            episode = environment.open(task)
            if turns := gold_turns(environment, task):
                rows.append(
                    {"messages": episode.messages, "tools": episode.offered, "turns": turns}
                )
        return rows


def without_words(tools: list[dict], names: Sequence[str] = ()) -> list[dict]:
    """The tools' definitions without descriptions: a small model's prompt is half as long."""

    def bare(schema: dict) -> dict:
        return {key: item for key, item in schema.items() if key not in FOR_READERS}

    found = []
    for tool in tools:
        name, parameters = tool["function"]["name"], tool["function"]["parameters"]
        properties = {key: bare(item) for key, item in parameters["properties"].items()}
        if not names or name in names:
            shown = {"name": name, "parameters": bare(parameters) | {"properties": properties}}
            found.append({"type": "function", "function": shown})
    return found


# Which tasks. The generators give more than the environments' own tasks; those, which come first,
# are held out.

TEMPLATES = ("calendar/create", "customers/add", "projects/finish")
TOOLS = (
    "company_directory_find_email_address",
    "calendar_create_event",
    "customer_relationship_manager_add_customer",
    "project_management_search_tasks",
    "project_management_update_task",
)
KINDS = ("refused",)
# of the nine rules those that these tasks need, in a quarter of the words; the verifier still knows
# all nine
POLICY = (
    f"You are a shop's service agent. Today is {TODAY.isoformat()}. Ask for the email address, find"
    " the customer, look the order up. Cancel only processing orders. Take back only items"
    f" delivered at most {RETURN_DAYS} days ago that are no final sale. Before you change anything,"
    " say what you will do, with the order's number, and wait for a yes. Refuse the rest and say"
    " why. Tell amounts exactly."
)


def split(tasks: list[dict], heldout: int) -> tuple[list[dict], list[dict]]:
    """(the first of each template, the rest); a task that asks what a held-out one asks is
    neither.
    """
    first = [task for task in tasks if int(task["id"].rsplit("-", 1)[1]) <= heldout]
    asked = [task["messages"] for task in first]
    return first, [task for task in tasks if task["messages"] not in asked]


def worlds(smoke: bool) -> Iterator[World]:
    heldout, training = split(
        assistant.make_tasks(per_template=25, templates=TEMPLATES), 1 if smoke else 5
    )
    yield World(
        "workplace_assistant",
        {"tools": list(TOOLS)},
        {
            "max_new_tokens": 96,
            "max_turns": 4,
            "shown_tools": without_words(ASSISTANT_TOOLS, TOOLS),
        },
        heldout,
        training[:4] if smoke else training,
        SFT | (SMOKE["sft"] if smoke else {"steps": 8, "batch_size": 8}),
        GRPO
        | {"max_new_tokens": 96}
        | (SMOKE["grpo"] if smoke else {"steps": 3, "prompts_per_step": 6, "generations": 4}),
    )
    heldout, training = split(
        [task for task in service.make_tasks(24) if task["metadata"]["template"] in KINDS],
        1 if smoke else 6,
    )
    yield World(
        "customer_service",
        {},
        {
            "max_new_tokens": 80,
            "max_turns": 5,
            "system_prompt": POLICY,
            "shown_tools": without_words(SERVICE_TOOLS),
        },
        heldout,
        training[:4] if smoke else training,
        SFT | (SMOKE["sft"] if smoke else {"steps": 6, "batch_size": 4}),
        GRPO
        | {"max_new_tokens": 80}
        | (SMOKE["grpo"] if smoke else {"steps": 2, "prompts_per_step": 3, "generations": 4}),
    )


# The cells


class Cell:
    """One program's run, kept in a folder. It counts as long as its spec and the adapter that it
    began with are the same.
    """

    def __init__(self, kind: str, folder: Path, spec: dict) -> None:
        self.kind, self.folder, self.spec = kind, folder, spec | {"out_dir": str(folder)}
        self.identity = self.spec | {"adapter_digest": digest(spec["model"]["adapter"])}
        self.events_file, self.spec_file = folder / "events.jsonl", folder / "spec.json"

    def events(self) -> list[dict]:
        lines = self.events_file.read_text().splitlines() if self.events_file.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def run(self) -> list[dict]:
        """Its events; nothing is computed where they are there. Raises SystemExit where the program
        fails.
        """
        if self.spec_file.exists() and json.loads(self.spec_file.read_text()) != self.identity:
            shutil.rmtree(self.folder)
        if not any(event["type"] == "result" for event in self.events()):
            self.folder.mkdir(parents=True, exist_ok=True)
            self.spec_file.write_text(json.dumps(self.identity))
            self._compute()
        return self.events()

    def _compute(self) -> None:
        attempt, began = self.folder / "attempt.json", time.perf_counter()
        steps = sorted(
            int(folder.name.split("-")[1]) for folder in self.folder.glob("checkpoint-*[0-9]")
        )
        resume = str(self.folder / f"checkpoint-{steps[-1]}") if steps else None
        attempt.write_text(json.dumps(self.spec | {"resume_from": resume}))
        with self.events_file.open("a") as events, (self.folder / "errors.txt").open("w") as errors:
            command = [sys.executable, "-m", f"workers.{self.kind}", str(attempt)]
            environment = os.environ | {"FLYWHEEL_EVENTS_FD": "", "OMP_NUM_THREADS": "1"}
            status = subprocess.run(
                command, cwd=ROOT, env=environment, stdout=events, stderr=errors, check=False
            ).returncode
        if status:
            problem = [event["message"] for event in self.events() if event["type"] == "error"]
            raise SystemExit(
                f"workers.{self.kind} ended with {status} in {self.folder}: {problem[-1:]}"
            )
        name = self.folder.relative_to(HOME)
        console.print(
            f"{time.strftime('%H:%M:%S')} {name}: {time.perf_counter() - began:.0f} s",
            highlight=False,
        )


def digest(adapter: str | None) -> str:
    return (
        hashlib.sha256((Path(adapter) / "adapter_model.safetensors").read_bytes()).hexdigest()
        if adapter
        else ""
    )


def spec_of(world: World, seed: int, adapter: str | None) -> dict:
    return {
        "model": {"base": str(MODEL), "adapter": adapter},
        "environment": world.environment,
        "seed": seed,
        "engine": {"kind": "transformers", "dtype": "float32", "threads": 1, "batch_size": 64},
    }


def chain(world: World, seed: int, sft_seed: int) -> Iterator[tuple[str, dict]]:
    """(stage, its figures): base, SFT, GRPO, each evaluated: greedily, so that their seed is none
    and the base is asked once.
    """
    tuned, here = (HOME / world.name / f"seed-{number}" for number in (sft_seed, seed))

    def evaluated(folder: Path, adapter: str | None) -> dict:
        spec = spec_of(world, 0, adapter) | {"tasks": world.heldout, "samples_per_task": 1}
        return measured(Cell("evaluate", folder, spec).run())

    def adapter_of(events: list[dict]) -> str:
        return next(event["adapter"] for event in events if event["type"] == "result")

    yield "base", evaluated(HOME / world.name / "base", None)
    sft = Cell(
        "sft",
        tuned / "sft",
        spec_of(world, sft_seed, None) | {"rows": world.rows(), "config": world.sft},
    ).run()
    yield "train sft", trained(sft)
    yield "sft", evaluated(tuned / "sft-evaluated", adapter_of(sft))
    spec = spec_of(world, seed, adapter_of(sft)) | {"tasks": world.training, "config": world.grpo}
    grpo = Cell("grpo", here / "grpo", spec).run()
    yield "train grpo", trained(grpo)
    yield "grpo", evaluated(here / "grpo-evaluated", adapter_of(grpo))


# The figures


def measured(events: list[dict]) -> dict[str, Any]:
    """Of an evaluation: means over its tasks, and each task's reward."""
    rows = [event for event in events if event["type"] == "sample"]
    return {
        "reward": fmean(row["reward"] or 0.0 for row in rows),
        "success": fmean(row["success"] for row in rows),
        "unsafe": fmean(row["unsafe"] for row in rows),
        "masked": sum(row["masked"] for row in rows),
        "turns": fmean(row["turns"] for row in rows),
        "rewards": {row["task_id"]: row["reward"] for row in rows},
    }


def trained(events: list[dict]) -> dict[str, Any]:
    """Of a training run: the values of each step, the last where it was reported twice. Some steps
    only have those of probes.
    """
    steps: dict[int, dict[str, Any]] = {}
    for event in events:
        if event["type"] == "metric":
            steps.setdefault(event["step"], {}).update(event["values"])
    names = (
        "train/loss",
        "train/reward_mean",
        "train/success",
        "train/unsafe",
        "train/zero_std_share",
        "train/turns",
        "train/completion_length",
        "train/masked_share",
        "time/generate_s",
        "time/update_s",
    )
    found = {name: [values[name] for values in steps.values() if name in values] for name in names}
    return {name: values for name, values in found.items() if values}


def interval(values: Sequence[float]) -> dict[str, float | None]:
    """Mean with Student's 95% interval over the seeds; none of one value, or where all are
    equal.
    """
    error = stdev(values) / sqrt(len(values)) if len(values) > 1 else 0.0
    half = student(len(values) - 1) * error if error else None
    mean = fmean(values)
    return {
        "mean": mean,
        "low": None if half is None else mean - half,
        "high": None if half is None else mean + half,
    }


def summary(found: dict[str, dict]) -> dict[str, Any]:
    """Of one environment, {seed: {stage: figures}}: over the seeds that are complete."""
    seeds = [seed for seed, stages in found.items() if "grpo" in stages]
    if not seeds:
        return {}

    def of(stage: str, name: str) -> list[float]:
        return [found[seed][stage][name] for seed in seeds]

    stages = {
        stage: {
            name: interval(of(stage, name)) for name in ("reward", "success", "unsafe", "turns")
        }
        for stage in ("base", "sft", "grpo")
    }
    differences = {
        f"{later} − {earlier}": {
            name: interval([a - b for a, b in zip(of(later, name), of(earlier, name), strict=True)])
            for name in ("reward", "success")
        }
        for later, earlier in PAIRS
    }
    return {"seeds": seeds, "stages": stages, "differences": differences}


def environment_seconds(world: World) -> float:
    """What tools, simulated user and verifier take of an episode, median over gold episodes:
    nothing else is in them.
    """
    environment, seconds = load(world.environment), []
    for task in world.heldout:
        began = time.perf_counter()
        gold_turns(environment, task)
        seconds.append(time.perf_counter() - began)
    return median(seconds)


def shown(estimate: dict[str, float | None]) -> str:
    text = f"{estimate['mean']:.2f}"
    return (
        text
        if estimate["low"] is None
        else f"{text} ({estimate['low']:.2f} to {estimate['high']:.2f})"
    )


def report(world: World, figures: dict[str, Any]) -> None:
    totals = summary(figures["seeds"])
    if not totals:
        return
    table = Table(
        title=(
            f"{world.name}, {len(world.heldout)} held-out tasks, seeds {', '.join(totals['seeds'])}"
        )
    )
    for column in ("", "reward", "success", "reward of each seed"):
        table.add_column(column)
    for stage, estimates in totals["stages"].items():
        each = " ".join(
            f"{figures['seeds'][seed][stage]['reward']:.2f}" for seed in totals["seeds"]
        )
        table.add_row(stage, shown(estimates["reward"]), shown(estimates["success"]), each)
    for pair, estimates in totals["differences"].items():
        table.add_row(pair, shown(estimates["reward"]), shown(estimates["success"]), "")
    console.print(table)
    steps = [figures["seeds"][seed]["train grpo"] for seed in totals["seeds"]]
    generate, update = (
        median([value for one in steps for value in one[f"time/{name}_s"]])
        for name in ("generate", "update")
    )
    console.print(
        f"A GRPO step, median: {generate:.1f} s rollouts, {update:.1f} s update. Tools, user and"
        f" verifier of an episode: {figures['environment_s'] * 1000:.0f} ms.",
        highlight=False,
    )


def about(world: World) -> dict[str, Any]:
    return {
        "heldout": [task["id"] for task in world.heldout],
        "training": [task["id"] for task in world.training],
        "tools": world.config.get("tools"),
        "sft": world.sft,
        "grpo": world.grpo,
        "environment_s": environment_seconds(world),
        "seeds": {},
    }


def main() -> None:
    global HOME
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="workplace_assistant,customer_service")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--one-sft", action="store_true")
    parser.add_argument("--smoke", action="store_true")
    arguments = parser.parse_args()
    if arguments.smoke:
        HOME = HOME.with_name("episodes-smoke")
    every = [world for world in worlds(arguments.smoke) if world.name in arguments.only.split(",")]
    HOME.mkdir(parents=True, exist_ok=True)
    found = {world.name: about(world) for world in every}
    seeds = arguments.seeds.split(",")
    for seed in seeds:
        for world in every:
            mine = found[world.name]["seeds"].setdefault(seed, {})
            for name, figures in chain(
                world, int(seed), int(seeds[0] if arguments.one_sft else seed)
            ):
                mine[name] = figures
                totals = {name: one | summary(one["seeds"]) for name, one in found.items()}
                HOME.with_suffix(".json").write_text(json.dumps(totals, indent=1))
    for world in every:
        report(world, found[world.name])


if __name__ == "__main__":
    main()
