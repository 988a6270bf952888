"""Grades all 500 tasks of the general set: `python -m bench.capability [--seed 0]`. A right answer
passes, wrong ones fail.
"""

from __future__ import annotations

import argparse
from collections import Counter

from apps.evals.capability.generate import VERIFIER, made_tasks
from workers.lib.verifiers import Rollout, build

OTHERS = ("", "I do not know.", "none")


def main(seed: int) -> None:
    verifier = build(VERIFIER)
    tasks, right, wrong, other, masked = (Counter[str]() for _ in range(5))
    for row, made in made_tasks(seed):
        kind, task = (
            row.metadata["kind"],
            {"messages": row.messages, "tools": row.tools, "expected": row.expected},
        )
        scores = [
            verifier.score(Rollout.of_text(task, answer))
            for answer in (made.right, made.wrong, *OTHERS)
        ]
        tasks[kind] += 1
        right[kind] += scores[0].success
        wrong[kind] += scores[1].success
        other[kind] += any(score.success for score in scores[2:])
        masked[kind] += any(score.masked for score in scores)
    print(
        "| kind | tasks | right passes | wrong passes | nothing or an excuse passes | masked"
        " |\n|---|---|---|---|---|---|"
    )
    for kind in tasks:
        print(
            f"| {kind} | {tasks[kind]} | {right[kind]} | {wrong[kind]} | {other[kind]} |"
            f" {masked[kind]} |"
        )
    print(
        f"| all | {tasks.total()} | {right.total()} | {wrong.total()} | {other.total()} |"
        f" {masked.total()} |"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    main(parser.parse_args().seed)
