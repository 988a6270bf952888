"""How often the gate promotes or rejects equal models in worlds that `bench.gate` does not make, by
generators of their own.

python -m bench.gate_worlds [--runs 400] [--seed 11] [--only TEXT]

Samples of one task that repeat each other, skewed difficulty, masks on the candidate alone, effects
that a whole template shares, gains on nearly all tasks that a rare loss takes away. No effect on
average in any of them, except where it is said.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from apps.evals.stats import SampleRow
from apps.promotion.gate import Evaluation, Policy, compare

Rng = np.random.Generator
SIZES = ((30, 4), (60, 4), (60, 8))


@dataclass(frozen=True)
class World:
    """`spread`: a and b of the tasks' Beta distributed success. `repeats`: the share of a task's
    samples in one evaluation that copy its first one. `masked`: of the candidate's samples, of its
    failures first where `failures`.
    """

    name: str
    spread: tuple[float, float] = (1.0, 1.0)
    repeats: float = 0.0
    templates: int = 0
    change: Callable[[Rng, np.ndarray], np.ndarray] | None = None
    masked: float = 0.0
    failures: bool = False


def drawn_again(a: float, b: float) -> Callable[[Rng, np.ndarray], np.ndarray]:
    return lambda rng, rates: rng.beta(a, b, len(rates))


def rare_loss(share: float, gain: float) -> Callable[[Rng, np.ndarray], np.ndarray]:
    """Better by `gain` on all tasks but a share, which it loses altogether; the baseline is always
    at that share's odds.
    """
    return lambda rng, rates: np.where(rng.random(len(rates)) < share, 0.0, rates + gain)


def by_template(count: int) -> Callable[[Rng, np.ndarray], np.ndarray]:
    return lambda rng, rates: rates + rng.normal(0, 0.25, count)[np.arange(len(rates)) % count]


def better(rng: Rng, rates: np.ndarray) -> np.ndarray:
    return rates + 0.2 * rng.random(len(rates))


MOSTLY = (0.2, 0.2)  # most tasks nearly always pass or nearly always fail
WORLDS = [
    World("identical"),
    World("identical, most tasks always or never", MOSTLY),
    World("identical, easy", (8.0, 0.5)),
    World("identical, hard", (0.3, 3.0)),
    World("identical, half of a task's samples repeat", repeats=0.5),
    World("identical, all of a task's samples repeat", MOSTLY, repeats=1.0),
    World("equal on average, easy", (8.0, 0.5), change=drawn_again(8.0, 0.5)),
    World("equal on average, hard", (0.3, 3.0), change=drawn_again(0.3, 3.0)),
    World("identical, 5% masked, failures first", masked=0.05, failures=True),
    World("identical, 5% masked", masked=0.05),
    World("6 templates that gain or lose", templates=6, change=by_template(6)),
    World("12 templates that gain or lose", templates=12, change=by_template(12)),
    World("2% better but for one task in 50, lost", (97.0, 3.0), change=rare_loss(0.02, 0.02)),
    World("5% better but for one task in 20, lost", (90.0, 10.0), change=rare_loss(0.05, 0.047)),
    World("better by 10%", change=better),
]


def evaluation(
    world: World, rng: Rng, rates: np.ndarray, samples: int, masked: float = 0.0
) -> Evaluation:
    passed = rng.random((len(rates), samples)) < rates[:, None]
    passed = np.where(rng.random(passed.shape) < world.repeats, passed[:, :1], passed)
    chance = np.full(passed.shape, masked)
    if world.failures:
        chance = np.where(passed, 0.0, masked / max((~passed).mean(), masked, 1e-9))
    hidden = rng.random(passed.shape) < chance
    rows = [
        SampleRow(
            str(task),
            None if lost else float(good),
            success=bool(good and not lost),
            masked=bool(lost),
            input_tokens=50,
            output_tokens=20,
        )
        for task, (goods, losts) in enumerate(zip(passed, hidden, strict=True))
        for good, lost in zip(goods, losts, strict=True)
    ]
    groups = (
        {str(task): str(task % world.templates) for task in range(len(rates))}
        if world.templates
        else {}
    )
    return Evaluation("m", "set", "task", "verifier", samples, rows, groups=groups)


def verdict(world: World, rng: Rng, tasks: int, samples: int) -> str:
    rates = rng.beta(*world.spread, tasks)
    after = np.clip(world.change(rng, rates), 0, 1) if world.change else rates
    sides = (
        evaluation(world, rng, rates, samples),
        evaluation(world, rng, after, samples, world.masked),
    )
    return compare(*sides, Policy()).verdict


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=400)
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    print(
        "| models | tasks × samples | promoted | rejected | runs |\n|---|---|---|---|---|",
        flush=True,
    )
    for number, world in enumerate(WORLDS):
        for tasks, samples in SIZES if given.only in world.name else ():
            seeds = ([given.seed, number, tasks, samples, run] for run in range(given.runs))
            found = Counter(
                verdict(world, np.random.default_rng(seed), tasks, samples) for seed in seeds
            )
            shares = " | ".join(f"{found[name] / given.runs:.1%}" for name in ("promote", "reject"))
            print(f"| {world.name} | {tasks} × {samples} | {shares} | {given.runs} |", flush=True)


if __name__ == "__main__":
    main()
