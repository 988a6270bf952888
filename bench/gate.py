"""How often the gate is wrong, and how often it finds what is there, by simulation: `python -m
bench.gate [--runs 1000]`.

Each task has a success rate of its own (Beta distributed); a candidate's rate differs by an effect
that varies between tasks. Nothing else is assumed, and the gate is asked as in production:
`apps.promotion.gate.compare`, with the number of evaluations on the tasks so far; a sequential
policy by `prefix` while the evaluation runs.
"""

from __future__ import annotations

import argparse
import time
import zlib
from dataclasses import dataclass
from functools import cache

import numpy as np

from apps.evals.stats import SampleRow
from apps.promotion.gate import Evaluation, Policy, compare, prefix


@dataclass(frozen=True)
class World:
    """One setting. `masked` is the share of the candidate's failures that the verifier cannot
    score.

    `varies` is the standard deviation between tasks of what a candidate changes, besides the
    effect. `looks`: evaluations of each candidate; in a sequential policy looks at one evaluation
    while it runs. `picked`: all candidates are evaluated, and only the one with the most successes
    is compared.
    """

    name: str
    tasks: int = 60
    samples: int = 8
    effect: float = 0.0
    varies: float = 0.0
    unsafe: float = 0.0
    more_unsafe: float = 0.0  # of the candidate's samples, besides
    masked: float = 0.0
    candidates: int = 1
    looks: int = 1
    picked: bool = False
    sequential: bool = False
    mean: float = 0.5
    spread: float = 2.0  # of the Beta distribution: small is many tasks near 0 and 1


def evaluation(
    world: World,
    rates: np.ndarray,
    rng: np.random.Generator,
    masked: float = 0.0,
    more_unsafe: float = 0.0,
) -> Evaluation:
    passed = rng.random((len(rates), world.samples)) < rates[:, None]
    unsafe = rng.random(passed.shape) < world.unsafe + more_unsafe
    hidden = (rng.random(passed.shape) < masked) & ~passed
    scored = zip(
        passed.ravel().tolist(), unsafe.ravel().tolist(), hidden.ravel().tolist(), strict=True
    )
    rows = [
        sample(at // world.samples, good, bad, lost) for at, (good, bad, lost) in enumerate(scored)
    ]
    planned = [str(task) for task in range(len(rates))] if world.sequential else ()
    return Evaluation("m", "set", "task", "verifier", world.samples, rows, planned=planned)


@cache
def sample(task: int, good: bool, bad: bool, lost: bool) -> SampleRow:
    return SampleRow(
        task=str(task),
        reward=None if lost else float(good),
        success=good,
        unsafe=bad,
        masked=lost,
        latency_ms=1000.0,
        input_tokens=100,
        output_tokens=20,
    )


@dataclass
class Outcome:
    """What one team saw: the verdicts in order, and the share of the tasks that were done at the
    last one.
    """

    verdicts: list[str]
    used: float = 1.0


def outcome(world: World, rng: np.random.Generator, policy: Policy) -> Outcome:
    rates = rng.beta(world.mean * world.spread, (1 - world.mean) * world.spread, world.tasks)
    baseline = evaluation(world, rates, rng)
    if world.sequential:
        return while_it_runs(world, baseline, candidate_of(world, rates, rng), policy)
    evaluated: list[Evaluation] = []
    for _ in range(world.candidates):
        other = changed(world, rates, rng)
        evaluated += [
            evaluation(world, other, rng, world.masked, world.more_unsafe)
            for _ in range(world.looks)
        ]
    numbered = list(enumerate(evaluated, 1))
    if world.picked:
        best = max(evaluated, key=lambda found: sum(row.success for row in found.rows))
        numbered = [(len(evaluated), best)]
    return Outcome([compare(baseline, found, policy, number).verdict for number, found in numbered])


def candidate_of(world: World, rates: np.ndarray, rng: np.random.Generator) -> Evaluation:
    return evaluation(world, changed(world, rates, rng), rng, world.masked, world.more_unsafe)


def changed(world: World, rates: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    scale = abs(world.effect) + world.varies
    return np.clip(rates + rng.normal(world.effect, scale, world.tasks), 0, 1) if scale else rates


def while_it_runs(
    world: World, baseline: Evaluation, candidate: Evaluation, policy: Policy
) -> Outcome:
    """Looks at equal distances; stops at the first decision."""
    found: list[str] = []
    for look in range(1, world.looks + 1):
        most = round(world.tasks * look / world.looks)
        found.append(compare(*prefix(baseline, candidate, most), policy).verdict)
        if found[-1] != "inconclusive":
            return Outcome(found, most / world.tasks)
    return Outcome(found)


def row(world: World, runs: int, seed: int) -> str:
    policy, started = Policy(sequential=world.sequential), time.process_time()
    own = zlib.crc32(repr(world).encode())  # settings share no draws
    found = [
        outcome(world, np.random.default_rng([seed, own, number]), policy) for number in range(runs)
    ]
    promoted = sum("promote" in one.verdicts for one in found) / runs
    # Of identical models the first comparison is what an honest team sees; a sequential one ends
    # with its first decision.
    rejected = sum(one.verdicts[-1 if world.sequential else 0] == "reject" for one in found) / runs
    used = f"{sum(one.used for one in found) / runs:.0%}" if world.sequential else "–"
    times = f"{world.candidates} × {world.looks}"
    return (
        f"| {world.name} | {world.tasks} × {world.samples} | {times} | {world.effect:+.0%} |"
        f" {promoted:.1%} | {rejected:.1%} | {used} | {runs:,} |"
        f" {time.process_time() - started:.0f} |"
    )


EFFECTS = (0.03, 0.05, 0.1)
SIZES = ((76, 8), (100, 8), (60, 4))
WORLDS = [
    World("ten identical candidates", candidates=10, samples=4),
    World("ten candidates equal on average", candidates=10, varies=0.15, samples=4),
    World("one identical candidate evaluated ten times", looks=10, samples=4),
    World(
        "the best of ten identical candidates, chosen before the gate",
        candidates=10,
        picked=True,
        samples=4,
    ),
    World(
        "ten identical candidates, ten evaluations each",
        candidates=10,
        looks=10,
        tasks=30,
        samples=1,
    ),
    World("sequential, ten looks, identical", looks=10, sequential=True, samples=4),
    *(World("identical", tasks=n, samples=k) for n in (30, 60, 240) for k in (1, 8)),
    World("different, equal on average", varies=0.15),
    World("identical, most tasks always pass or always fail", spread=0.3),
    World("identical, success rare", mean=0.05),
    *(
        World(f"identical, {share:.0%} of the candidate's failures masked", masked=share)
        for share in (0.05, 0.25, 0.5)
    ),
    World("identical, unsafe in 2% of the samples of both", unsafe=0.02),
    *(
        World("better", tasks=n, samples=k, effect=effect)
        for n in (30, 60, 240)
        for k in (1, 8)
        for effect in EFFECTS
    ),
    *(World("worse", tasks=n, effect=effect) for n in (60, 240) for effect in (-0.05, -0.1)),
    *(World("safety: identical", tasks=n, samples=k) for n, k in SIZES),
    *(World("safety: better, nothing unsafe", tasks=n, samples=k, effect=0.2) for n, k in SIZES),
    *(
        World(
            "safety: better, unsafe 0% → 5%, a new kind",
            tasks=n,
            samples=k,
            effect=0.2,
            more_unsafe=0.05,
        )
        for n, k in SIZES
    ),
    *(
        World(
            "safety: better, unsafe 0% → 0.5%, a new kind",
            tasks=n,
            samples=k,
            effect=0.2,
            more_unsafe=0.005,
        )
        for n, k in SIZES
    ),
    *(
        World(
            "safety: better, unsafe 2% → 7%, of a known kind",
            tasks=n,
            samples=k,
            effect=0.2,
            unsafe=0.02,
            more_unsafe=0.05,
        )
        for n, k in SIZES
    ),
    *(
        World("safety: better, unsafe 2% in both", tasks=n, samples=k, effect=0.2, unsafe=0.02)
        for n, k in SIZES
    ),
    World("ten candidates, all better", candidates=10, effect=0.1, samples=4),
    *(
        World(
            "sequential, ten looks, better",
            tasks=n,
            looks=10,
            effect=effect,
            sequential=True,
            samples=4,
        )
        for n in (60, 240)
        for effect in (0.05, 0.1, 0.2)
    ),
    World(
        "sequential, ten looks, worse", tasks=240, looks=10, effect=-0.1, sequential=True, samples=4
    ),
    World("sequential, ten looks, identical", tasks=240, looks=10, sequential=True, samples=4),
]
HEADER = (
    "| models | tasks × samples | candidates × looks | true effect | promoted | rejected | tasks"
    " used | runs | CPU s |\n|---|---|---|---|---|---|---|---|---|"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="Settings whose name contains this")
    given = parser.parse_args()
    print(HEADER, flush=True)
    for world in WORLDS:
        if given.only in world.name:
            # Rates of error need more runs than power does.
            print(
                row(
                    world, given.runs if world.effect == 0 else max(20, given.runs // 5), given.seed
                ),
                flush=True,
            )


if __name__ == "__main__":
    main()
