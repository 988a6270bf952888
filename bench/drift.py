"""How often the lock asks for a new review: of tasks like those judged, and of others mixed in. By
words alone.

python -m bench.drift [--seeds 50] [--first-seed 1000]

60 tasks are judged and 200 train. “Other tasks” have the tool, form, origin and bucket of the
judged ones, so that only their words can tell: a change of tool, form or origin is counted exactly
and needs no measurement.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable
from dataclasses import replace

from apps.evals.capability.generate import general_tasks
from apps.reviews.drift import Traits, drift_of, traits
from workers.lib.environments.requests import make_requests

JUDGED, TRAINED, MOST = 60, 200, 0.1


def workplace(seed: int, n: int, group: str) -> list[Traits]:
    rows = make_requests(seed, n)
    return [
        _of(f"{seed}/{i}", row[group], row["request"], row["expected"])
        for i, row in enumerate(rows)
    ]


def general(seed: int) -> list[Traits]:
    rows = general_tasks(seed)
    return [
        _of(f"general {seed}/{i}", str(i), str(row.messages[-1]["content"]), row.expected)
        for i, row in enumerate(rows)
    ]


def _of(key: str, group: str, request: str, expected: dict) -> Traits:
    said = [{"role": "user", "content": request}]
    found = traits(key=key, group=group, origin="o", bucket="", messages=said, expected=expected)
    return replace(found, tools=frozenset(["tool"]), forms=frozenset(["form"]))


def same_requests(rng: random.Random, seed: int) -> tuple[list[Traits], list[Traits]]:
    """Both drawn from the same requests, each a group of its own."""
    tasks = workplace(seed, JUDGED + TRAINED, "group")
    return tasks[:JUDGED], tasks[JUDGED:]


def other_templates(rng: random.Random, seed: int) -> tuple[list[Traits], list[Traits]]:
    """No template of those that train is judged, as where a hold-out is split off by template."""
    tasks = workplace(seed, 4 * (JUDGED + TRAINED), "template")
    names = sorted({task.group for task in tasks})
    rng.shuffle(names)
    held = set(names[: len(names) // 3])
    judged, trained = (
        [t for t in tasks if t.group in held],
        [t for t in tasks if t.group not in held],
    )
    return judged[:JUDGED], trained[:TRAINED]


Draw = Callable[[random.Random, int], tuple[list[Traits], list[Traits]]]


def mixed(share: float, draw: Draw) -> Draw:
    def make(rng: random.Random, seed: int) -> tuple[list[Traits], list[Traits]]:
        judged, trained = draw(rng, seed)
        strange = general(seed)
        rng.shuffle(strange)
        n = round(share * len(trained))
        return judged, trained[n:] + strange[:n]

    return make


CASES = {
    "same requests": same_requests,
    "same requests, 20% other tasks": mixed(0.2, same_requests),
    "same requests, half other tasks": mixed(0.5, same_requests),
    "templates that nobody judged": other_templates,
    "such templates, half other tasks": mixed(0.5, other_templates),
    "nothing but other tasks": mixed(1.0, same_requests),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--first-seed", type=int, default=1000)
    given = parser.parse_args()
    print(f"{'training tasks':36} {'unlike':>7} {'locked':>7}")
    for name, make in CASES.items():
        shares = []
        for seed in range(given.first_seed, given.first_seed + given.seeds):
            judged, trained = make(random.Random(seed), seed)
            shares.append(drift_of(trained, judged).share)
        locked = sum(share > MOST for share in shares)
        print(f"{name:36} {sum(shares) / len(shares):7.1%} {locked / len(shares):7.0%}")


if __name__ == "__main__":
    main()
