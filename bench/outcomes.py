"""Learning from people's decisions: does it help where there is something to learn, and never harm?
`python -m bench.outcomes [--projects 50] [--only WORLD] [--delays 300]`

Simulated projects of several languages decide on 20 to 400 runs, in triage and in random checks. As
in the product, a model is trained after each batch, used if it is better than what is in use, and
switched off for its false alarms; each time it is measured on 1,000 new runs. Then the families of
traffic and tau-bench's airline runs, all their decisions given. Writes var/bench/outcomes.json.
"""

from __future__ import annotations

import argparse
import json
import random
from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from rich.console import Console
from rich.table import Table

from apps.core.intervals import exact, wilson
from apps.core.sequential import above
from apps.failures.outcomes.features import (
    Facts,
    Features,
    Usual,
    features,
    hashed,
    sizes,
    words_of,
)
from apps.failures.outcomes.model import FALSE_ALARMS, OVER, Weights
from apps.failures.outcomes.training import Example, TooFew, train
from apps.failures.rules.reading import read
from bench.failures import tau_inputs
from bench.families import DATA, planted
from bench.peers import HOME, machine

LANGUAGES = (
    ("退款 没有 到账 请 再查一次", "谢谢 已经 收到 很好"),
    ("Geld noch immer nicht zurück", "danke hat alles geklappt"),
    ("เงินยังไม่คืน กรุณาตรวจสอบ", "ขอบคุณ เรียบร้อยแล้ว"),
)
BATCHES = (20, 40, 60, 80, 110, 140, 180, 220, 260, 300, 350, 400)
FAILED, MEASURED_ON, DRAWN = 0.25, 1_000, 0.6


@dataclass(frozen=True)
class World:
    """`learnable`: the probability that a run shows whether it failed, in its words and verdict;
    `noise`: how often people decide wrongly; `drift`: after half of the decisions, every other run
    that went well looks like a failure.
    """

    learnable: float = 1.0
    noise: float = 0.0
    drift: bool = False


WORLDS = {
    "nothing to learn": World(0.0),
    "a little to learn": World(0.4),
    "much to learn": World(0.8),
    "much, one decision in ten wrong": World(0.8, noise=0.1),
    "much, then drift": World(0.8, drift=True),
}


def example(chance: random.Random, name: str, world: World, drifted: bool = False) -> Example:
    """A run of one of three languages; a quarter fail."""
    failed = chance.random() < FAILED
    shows = failed if chance.random() < world.learnable else chance.random() < FAILED
    shows = shows or (drifted and chance.random() < 0.5)
    bad, good = chance.choice(LANGUAGES)
    useless = " ".join(f"w{chance.randrange(500)}" for _ in range(8))
    tokens = [f"user {word}" for word in words_of(f"{bad if shows else good} {useless}")]
    dense = {"size_calls": chance.uniform(-1, 1), "rule_looped": float(chance.random() < 0.2)}
    if chance.random() < 0.3:
        dense["judge"] = 0.8 if shows else -0.8
    return Example(Features(dense, hashed(tokens)), failed, name, drawn=True)


def decided(item: Example, chance: random.Random, world: World) -> Example:
    """As people decide on it: some wrongly, and some in triage instead of a random check."""
    wrong = chance.random() < world.noise
    return replace(item, failed=item.failed != wrong, drawn=chance.random() < DRAWN)


def flagged(weights: Weights, items: Iterable[Example]) -> list[bool]:
    return [weights.score(item.run) >= weights.threshold for item in items]


def false_alarms(weights: Weights, items: Iterable[Example]) -> tuple[int, int]:
    """(false alarms, runs that went well)."""
    alarms = flagged(weights, [item for item in items if not item.failed])
    return sum(alarms), len(alarms)


def is_over(weights: Weights, checked: Iterable[Example]) -> bool:
    """Whether the random checks since the model was made show too many false alarms."""
    alarms = flagged(weights, [item for item in checked if not item.failed])
    return above(FALSE_ALARMS, ((hit, 1.0) for hit in alarms)).value >= OVER


def life(world: World, seed: int) -> dict[str, Any]:
    """What is in use after each batch of decisions, and its share of false alarms and of found
    failures on new runs.
    """
    chance, known, new = random.Random(seed), [], []
    in_use: Weights | None = None
    steps: list[dict[str, Any]] = []
    for n in BATCHES:
        drifted = world.drift and n > BATCHES[-1] // 2
        batch = [
            decided(example(chance, f"g{at}", world, drifted), chance, world)
            for at in range(len(known), n)
        ]
        known, new = known + batch, new + [item for item in batch if item.drawn]
        if in_use and is_over(in_use, new):
            in_use = None
        try:
            trained = train(known, in_use)
        except TooFew:
            continue
        if not trained.why_not:
            in_use, new = trained.weights, []
        if in_use:
            test = [example(chance, "", world, drifted) for _ in range(MEASURED_ON)]
            hits = flagged(in_use, [item for item in test if item.failed])
            alarms, fine = false_alarms(in_use, test)
            steps.append({"n": n, "alarms": alarms / fine, "recall": sum(hits) / len(hits)})
    return {"steps": steps, "recall": steps[-1]["recall"] if in_use else 0.0, "on": bool(in_use)}


def report(world: World, projects: int) -> dict[str, Any]:
    lives = [life(world, seed) for seed in range(projects)]
    steps = [step for one in lives for step in one["steps"]]
    over = sum(step["alarms"] > FALSE_ALARMS for step in steps)
    ever = [one for one in lives if one["steps"]]
    return {
        "ever in use": f"{len(ever)} of {projects}",
        "from decisions": min((one["steps"][0]["n"] for one in ever), default=None),
        "false alarms (mean)": sum(step["alarms"] for step in steps) / max(1, len(steps)),
        "over the limit": f"{over} of {len(steps)} ({projects * len(BATCHES)} steps)",
        "harmed": share(over, projects * len(BATCHES)),
        "recall at the end": sum(one["recall"] for one in lives) / projects,
        "off at the end": sum(not one["on"] for one in ever),
    }


def share(hits: int, n: int) -> str:
    low, high = wilson(hits, n)
    return f"{hits / n:.1%} [{low:.1%}, {high:.1%}]"


def learned_from(runs: list[tuple[dict, bool, str]]) -> dict[str, Any]:
    """Of (run, whether it failed, its request): what all decisions teach, on held-out ones."""
    unknown = {"outcome_status": "unknown", "outcome_reason": "", "metadata": {}}
    of = [read(run | unknown) for run, _, _ in runs]
    usual = Usual.of(sizes(run, Facts()) for run in of)
    examples = [
        Example(features(run, Facts(), usual), failed, request)
        for run, (_, failed, request) in zip(of, runs, strict=True)
    ]
    try:
        trained = train(examples)
    except TooFew as few:
        return {"why_not": str(few)}
    names = ("n", "failed", "auc", "found", "false_alarms", "auc_gain", "recall_gain")
    return {name: trained.measured[name] for name in names} | {"why_not": trained.why_not}


RISES, GOOD = (0.45, 0.3, 0.2, 0.16), (0, 100, 300)  # false alarms, and checks before they rise
FEW, MOST = 0.04, 600  # false alarms before; checks after


def delays(simulations: int) -> dict[str, Any]:
    """How many checks of successful runs pass until a model is switched off after its false alarms
    have risen (median, 90th percentile), and how often one is whose false alarms have not; by the
    interval of all checks instead, at each look: `by_interval`.
    """
    chance, enough = random.Random(1), [_hits_enough(n) for n in range(GOOD[-1] + MOST + 1)]

    def taken(good: int, rate: float, n: int = MOST) -> tuple[list[int], list[int]]:
        lives = [
            [chance.random() < (FEW if at < good else rate) for at in range(good + n)]
            for _ in range(simulations)
        ]
        ours = [_first(lambda n, life=life: _evidence(life[:n]) >= OVER, life) for life in lives]
        theirs = [
            next((n for n, hits in enumerate(accumulate(life), 1) if hits >= enough[n]), 10**6)
            for life in lives
        ]
        return ours, theirs

    found: dict[str, Any] = {}
    for rate in RISES:
        for good in GOOD:
            row = {}
            for name, times in zip(("here", "by_interval"), taken(good, rate), strict=True):
                after = sorted(time - good for time in times if time > good)
                row[name] = [after[len(after) // 2], after[int(0.9 * len(after))]]
            found[f"{rate:.0%} after {good} good"] = row
    for rate in (0.03, 0.05, FALSE_ALARMS):
        for n in (300, MOST):
            off = [sum(time <= n for time in times) for times in taken(0, rate, n)]
            found[f"{rate:.0%}, switched off within {n} checks"] = dict(
                zip(
                    ("here", "by_interval"), (share(hits, simulations) for hits in off), strict=True
                )
            )
    return found


def _evidence(hits: list[bool]) -> float:
    return above(FALSE_ALARMS, ((hit, 1.0) for hit in hits)).value


def _first(is_so: Callable[[int], bool], life: list[bool]) -> int:
    """The first length at which it is so, as it stays then."""
    if not is_so(len(life)):
        return 10**6
    return bisect_left(range(1, len(life) + 1), True, key=is_so) + 1


def _hits_enough(n: int) -> int:
    """So many of n lie above the limit by the 95% interval."""
    return bisect_left(range(n + 1), True, key=lambda k: exact(k, n)[0] > FALSE_ALARMS) if n else 1


def real() -> dict[str, Any]:
    of_families = [
        (
            {name: case.run.get(name) or [] for name in ("messages", "tools")},
            case.failed,
            case.run["id"],
        )
        for _, family in planted(DATA / "families-dev.tar.xz")
        for case in family
    ]
    tau = [
        (run, run["outcome_status"] == "failure", str(run["metadata"]["task_id"]))
        for run in tau_inputs()
    ]
    return {"families-dev": learned_from(of_families), "tau-bench airline": learned_from(tau)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--projects", type=int, default=50)
    parser.add_argument("--only", default="", help="worlds with these words in their name")
    parser.add_argument("--delays", type=int, help="only simulate so many models' false alarms")
    given = parser.parse_args()
    if given.delays:
        Console(width=170).print(delays(given.delays))
        return
    projects, worlds = given.projects, {name: WORLDS[name] for name in WORLDS if given.only in name}
    console, found = Console(width=170), {}
    for name, world in worlds.items():
        found[name] = report(world, projects)
        console.print(name, found[name])
    table = Table("world", *next(iter(found.values())))
    for name, row in found.items():
        table.add_row(
            name,
            *(f"{cell:.1%}" if isinstance(cell, float) else str(cell) for cell in row.values()),
        )
    console.print(table)
    of_runs = real()
    console.print(of_runs)
    HOME.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"machine": machine(), "worlds": found, "runs": of_runs}, indent=1)
    (HOME / "outcomes.json").write_text(text)


if __name__ == "__main__":
    main()
