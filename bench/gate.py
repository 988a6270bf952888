"""How often the gate is wrong, and how often it finds what is there, by simulation: `python -m bench.gate [--runs 1000]`.

Each task has a success rate of its own (Beta distributed); a candidate's rate differs by an effect that varies between
tasks. Nothing else is assumed, and the gate is asked as in production: `apps.promotion.gate.compare`.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from apps.evals.stats import SampleRow
from apps.promotion.gate import Evaluation, Policy, compare


@dataclass(frozen=True)
class World:
    """One setting. `masked` is the share of the candidate's failures that the verifier cannot score."""

    name: str
    tasks: int = 60
    samples: int = 8
    effect: float = 0.0
    unsafe: float = 0.0
    masked: float = 0.0
    candidates: int = 1
    looks: int = 1
    mean: float = 0.5
    spread: float = 2.0  # of the Beta distribution: small is many tasks near 0 and 1


def evaluation(world: World, rates: np.ndarray, rng: np.random.Generator, masked: float = 0.0) -> Evaluation:
    passed = rng.random((len(rates), world.samples)) < rates[:, None]
    unsafe = rng.random(passed.shape) < world.unsafe
    hidden = (rng.random(passed.shape) < masked) & ~passed
    slow = rng.lognormal(0, 0.2) * 1000  # the machine is busier for one evaluation than for the other
    rows = [
        SampleRow(
            task=str(task), reward=None if hidden[task, index] else float(passed[task, index]),
            success=bool(passed[task, index]), unsafe=bool(unsafe[task, index]), masked=bool(hidden[task, index]),
            latency_ms=slow * (1 + 0.3 * (index % 3)), input_tokens=100, output_tokens=20,
        )
        for task in range(len(rates))
        for index in range(world.samples)
    ]  # fmt: skip
    return Evaluation("m", "set", "environment", "verifier", world.samples, rows)


def verdicts(world: World, rng: np.random.Generator, policy: Policy) -> Iterator[str]:
    """The verdict on each candidate at each look at it, in the order in which they are compared."""
    rates = rng.beta(world.mean * world.spread, (1 - world.mean) * world.spread, world.tasks)
    baseline, comparison = evaluation(world, rates, rng), 0
    for _ in range(world.candidates):
        other = np.clip(rates + rng.normal(world.effect, abs(world.effect), world.tasks), 0, 1)
        for _ in range(world.looks):
            comparison += 1
            candidate = evaluation(world, other if world.effect else rates, rng, world.masked)
            yield compare(baseline, candidate, policy, comparison).verdict


def row(world: World, runs: int, policy: Policy, seed: int) -> str:
    counts: Counter[str] = Counter()
    for number in range(runs):
        found = list(verdicts(world, np.random.default_rng([seed, number]), policy))
        counts["promote"] += "promote" in found
        counts["reject"] += found[0] == "reject"
    return (
        f"| {world.name} | {world.tasks} × {world.samples} | {world.effect:+.0%} | {counts['promote'] / runs:.1%} "
        f"| {counts['reject'] / runs:.1%} |"
    )


WORLDS = [
    *(World("equal", tasks=n, samples=k) for n in (30, 60, 120) for k in (1, 4, 8)),
    World("equal, most tasks always pass or always fail", spread=0.3),
    World("equal, success rare", mean=0.05),
    World("equal, a quarter of the failures masked", masked=0.25),
    World("equal, half of the failures masked", masked=0.5),
    World("equal, a twentieth of the failures masked", masked=0.05),
    World("equal, unsafe in 2% of the samples of both", unsafe=0.02),
    World("ten equal candidates", candidates=10),
    World("one equal candidate evaluated ten times", looks=10),
    World("ten equal candidates, ten evaluations each", candidates=10, looks=10, samples=4),
    *(World("better", tasks=n, effect=effect) for n in (60, 100, 240) for effect in (0.03, 0.05, 0.1)),
    *(World("worse", tasks=n, effect=effect) for n in (60, 240) for effect in (-0.03, -0.1)),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    policy = Policy()
    print("| models | tasks × samples | true effect | promoted | rejected (first comparison) |\n|---|---|---|---|---|")
    for world in WORLDS:
        runs = max(20, given.runs // (world.candidates * world.looks))
        print(row(world, runs, policy, given.seed), flush=True)


if __name__ == "__main__":
    main()
