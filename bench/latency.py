"""How often latency is judged wrongly: `python -m bench.latency [--tries 20]`, on a busy machine
and by simulation.

The first table runs the real job on a small random Llama while other processes, started here, take
the processors in bursts: one model against itself, and an identity adapter (all zeros) against its
base, merged and hot. Beside it what comparing two evaluations at different times would have said.
The second simulates machines that no test machine shows.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from apps.promotion.gate import Evaluation, Policy, Timing
from apps.promotion.gate.latency import latency
from workers import measure_latency
from workers.lib.events import Emitter
from workers.lib.program import StopFlag
from workers.lib.shares import SHARE
from workers.lib.specs.job import checked
from workers.lib.specs.measure_latency import MeasureLatency
from workers.lib.specs.training import Lora

TASKS = 24


class Kept(Emitter):
    def __init__(self) -> None:
        self.rows: list[dict] = []

    def emit(self, type: str, **fields: Any) -> None:
        self.rows.append({"type": type, **fields})


def verdict(times: dict[str, dict[str, list[float]]]) -> tuple[str, str, float]:
    """(state of the median, of the p95, ratio of the medians) of two sides' milliseconds by
    task.
    """
    sides = [
        Evaluation(side, "s", "t", "v", 1, [], timing=Timing("job", "merged", by_task))
        for side, by_task in times.items()
    ]
    found = latency(*sides, Policy())
    assert found[0].baseline and found[0].difference is not None
    return found[0].state, found[1].state, 1 + found[0].difference / found[0].baseline


# On this machine


def burn(seed: int) -> None:
    """Takes a processor in bursts of 0.1 to 3 s, for as long as its parent lives."""
    rng, parent = random.Random(seed), os.getppid()
    while os.getppid() == parent:
        until = time.monotonic() + rng.uniform(0.1, 3)
        while time.monotonic() < until:
            pass
        time.sleep(rng.uniform(0.05, 1.5))


@contextmanager
def load(processes: int) -> Iterator[None]:
    burning = [
        multiprocessing.Process(target=burn, args=(seed,), daemon=True) for seed in range(processes)
    ]
    for one in burning:
        one.start()
    try:
        yield
    finally:
        for one in burning:
            one.kill()


def models(folder: Path) -> tuple[str, str]:
    """(a small random model, an adapter on it that changes nothing)."""
    from tests.workers.conftest import make_tiny_model
    from workers.ml.models import load_base, lora

    make_tiny_model(folder / "base", hidden_size=64, intermediate_size=128)
    lora(load_base(folder / "base")[0], Lora(lora_rank=16), None).save_pretrained(
        folder / "identity"
    )
    return str(folder / "base"), str(folder / "identity")


def measured(
    base: str, adapters: list[str | None], how: str, seed: int
) -> dict[str, dict[str, list[float]]]:
    environment = {
        "kind": "single_turn",
        "harness": {"max_new_tokens": 6, "temperature": 1.0},
        "verifier": {"kind": "exact"},
    }
    engine = {"kind": "transformers", "threads": 1, "batch_size": 1}
    spec = {
        "versions": [
            {
                "id": str(n),
                "model": {"base": base, "adapter": adapter},
                "engine": engine,
                "environment": environment,
            }
            for n, adapter in enumerate(adapters)
        ],
        "tasks": [
            {
                "id": f"t{n}",
                "messages": [{"role": "user", "content": f"Count to {n}. " * (1 + n % 3)}],
                "expected": {},
            }
            for n in range(TASKS)
        ],
        "adapters": how,
        "seed": seed,
    }
    events = Kept()
    measure_latency.main(checked(spec, MeasureLatency), events, StopFlag())
    times: dict[str, dict[str, list[float]]] = {str(n): {} for n in range(len(adapters))}
    for row in events.rows:
        if row["type"] == "sample" and row["latency_ms"]:
            times[row["version"]].setdefault(row["task_id"], []).append(row["latency_ms"])
    return times


def one_after_the_other(times: list[dict[str, dict[str, list[float]]]]) -> float:
    """How often the p95 of one model's evaluations at different times differ by more than 1.25,
    over all ordered pairs.
    """
    p95 = [
        np.percentile([ms for answers in found["0"].values() for ms in answers], 95)
        for found in times
    ]
    pairs = [(a, b) for a in range(len(p95)) for b in range(len(p95)) if a != b]
    return float(np.mean([p95[b] / p95[a] > 1.25 for a, b in pairs])) if pairs else 0.0


def real(tries: int, processes: int) -> None:
    print(
        f"\nReal models, {os.cpu_count()} processors, {processes} other processes in bursts,"
        f" {tries} tries each\n"
    )
    print("| pair | rejected | inconclusive | not worse | ratio | at different times, p95 > 1.25 |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder, load(processes):
        base, identity = models(Path(folder))
        for name, adapters, how in (
            ("a model and itself", [None, None], "merged"),
            ("base and identity adapter, merged", [None, identity], "merged"),
            ("base and identity adapter, hot", [None, identity], "hot"),
        ):
            times = [measured(base, adapters, how, seed) for seed in range(tries)]
            found = [verdict(one) for one in times]
            states = Counter("worse" if "worse" in one[:2] else one[0] for one in found)
            ratios = [ratio for _, _, ratio in found]
            not_worse = states["same"] + states["better"]
            print(
                f"| {name} | {states['worse']} | {states['inconclusive']} | {not_worse} |"
                f" {min(ratios):.2f} to {max(ratios):.2f} | {one_after_the_other(times):.0%} |",
                flush=True,
            )


# By simulation


def slowness(machine: str, steps: int, rng: np.random.Generator) -> np.ndarray:
    """By how much the machine is slower than it could be, [steps], one for each answer in the order
    of time.
    """
    if machine == "quiet":
        return rng.lognormal(0, 0.05, steps)
    if machine == "noisy":
        return rng.lognormal(0, 0.4, steps)
    if machine == "drifting":  # a random walk: ten times as slow at the end, perhaps
        return np.exp(np.cumsum(rng.normal(0, 0.15, steps))) * rng.lognormal(0, 0.1, steps)
    if machine == "bursts":  # busy for about ten answers at a time, five times as slow
        busy = np.zeros(steps)
        for step in range(1, steps):
            busy[step] = rng.random() < (0.9 if busy[step - 1] else 0.05)
        return (1 + 4 * busy) * rng.lognormal(0, 0.1, steps)
    return 1 + rng.pareto(1.1, steps)  # heavy tails: the mean hardly exists


def simulated(
    machine: str, ratio: float, tasks: int, rng: np.random.Generator
) -> tuple[str, str, float]:
    """Two rounds: the coin decides who goes first, the machine goes on being what it is."""
    length = rng.lognormal(5, 0.5, tasks)
    slow = slowness(machine, 4 * tasks, rng).reshape(2, tasks, 2)
    first = rng.random((2, tasks)) < 0.5
    before = (
        np.where(first, slow[..., 0], slow[..., 1]) * length * rng.lognormal(0, 0.1, (2, tasks))
    )
    after = (
        np.where(first, slow[..., 1], slow[..., 0])
        * length
        * ratio
        * rng.lognormal(0, 0.1, (2, tasks))
    )
    names = [f"t{n}" for n in range(tasks)]
    return verdict(
        {
            side: dict(zip(names, ms.T.tolist(), strict=True))
            for side, ms in (("0", before), ("1", after))
        }
    )


def simulation(runs: int, seed: int) -> None:
    print(
        f"\nSimulated, 40 tasks twice, {runs} measurements each: rejected / inconclusive / not"
        " worse\n"
    )
    ratios = (1.0, 1.1, 1.25, 1.5, 2.0)
    print("| machine | " + " | ".join(f"{ratio:g} times as slow" for ratio in ratios) + " |")
    print("|---|" + "---|" * len(ratios))
    rng = np.random.default_rng(seed)
    for machine in ("quiet", "noisy", "drifting", "bursts", "heavy tails"):
        cells = []
        for ratio in ratios:
            found = [simulated(machine, ratio, 40, rng) for _ in range(runs)]
            worse = sum("worse" in one[:2] for one in found)
            undecided = sum("worse" not in one[:2] and one[0] == "inconclusive" for one in found)
            cells.append(
                f"{worse / runs:.1%} / {undecided / runs:.1%} /"
                f" {1 - (worse + undecided) / runs:.1%}"
            )
        print(f"| {machine} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tries", type=int, default=20)
    parser.add_argument("--processes", type=int, default=2 * (os.cpu_count() or 1))
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--seed", type=int, default=11)
    given = parser.parse_args()
    os.environ[SHARE] = "0/1"  # what this program calls cannot start another like it
    simulation(given.runs, given.seed)
    real(given.tries, given.processes)
